"""Storage that is not this machine's disk, for the shared session: S3 by moto's server, HDFS by Hadoop's mini cluster.

`s3` and `hdfs` are the addresses of an empty bucket and of an empty file system. The Java libraries are in the folder
`jars` of the environment; tools/jars/fetch brings them.
"""

import asyncio
import subprocess
import sys
import xml.etree.ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyspark
import pytest
from pyspark.sql import SparkSession

from duetime.spark.session import find_java
from tests.plugins.ci import missing_service
from tests.plugins.ports import find_free_port
from tests.plugins.processes import guard, release
from tests.plugins.until import until

JARS = Path(sys.prefix) / "jars"
START_S = 240
BUCKET = "duetime-lake"


def class_path(name: str) -> str:
    """The libraries for one kind of storage, as Java wants them; ends the test where they are missing."""
    if not (JARS / name).is_dir():
        missing_service(f"the Java libraries for {name} are not in {JARS} (tools/jars/fetch)")
    return f"{JARS / name}/*"


@pytest.fixture(scope="session")
def s3(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    class_path("s3")
    endpoint = f"http://127.0.0.1:{find_free_port()}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", endpoint.rpartition(":")[2]]
    process = _start(command, tmp_path_factory.mktemp("s3"))
    try:
        _await(lambda: _answers(f"{endpoint}/{BUCKET}"), process)
        context: Any = spark.sparkContext
        for name, value in s3_settings(endpoint).items():
            context._jsc.hadoopConfiguration().set(name, value)
        yield f"s3a://{BUCKET}"
    finally:
        _stop(process)


def s3_settings(endpoint: str) -> dict[str, str]:
    """What Hadoop has to know about the server. It checks no key, and a lost answer must not cost a minute."""
    return {
        f"fs.s3a.bucket.{BUCKET}.endpoint": endpoint,
        f"fs.s3a.bucket.{BUCKET}.endpoint.region": "us-east-1",
        f"fs.s3a.bucket.{BUCKET}.path.style.access": "true",
        f"fs.s3a.bucket.{BUCKET}.access.key": "any",
        f"fs.s3a.bucket.{BUCKET}.secret.key": "any",
    }


def _answers(bucket: str) -> bool:
    try:
        return httpx.put(bucket, timeout=30).is_success
    except httpx.TransportError:
        return False


@pytest.fixture(scope="session")
def hdfs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    libraries = f"{class_path('hdfs')}:{Path(pyspark.__file__).parent / 'jars'}/*"
    folder = tmp_path_factory.mktemp("hdfs")
    settings = folder / "settings.xml"
    small = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true"]
    cluster = ["org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-writeConfig", str(settings)]
    process = _start([str(find_java()), *small, "-cp", libraries, *cluster], folder)
    try:
        _await(lambda: settings.exists() and settings.read_text().rstrip().endswith("</configuration>"), process)
        found = xml.etree.ElementTree.parse(settings).getroot().iter("property")
        yield next(str(one.findtext("value")) for one in found if one.findtext("name") == "fs.defaultFS")
    finally:
        _stop(process)


def _start(command: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    guard(process.pid)
    return process


def _await(is_ready: Any, process: "subprocess.Popen[bytes]") -> None:
    def look() -> bool:
        assert process.poll() is None, "the server ended while it was starting"
        return is_ready()

    asyncio.run(until(look, every_s=0.1, deadline_s=START_S))


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    release(process.pid)

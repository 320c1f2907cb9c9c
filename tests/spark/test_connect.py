"""Over Spark Connect: a real server, and a client without a JVM that loads, ingests and audits through it."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from duetime.model.errors import InvalidSettings
from duetime.spark.session import find_java, java_options, open_session
from tests.plugins.ci import missing_service
from tests.plugins.ports import find_free_port
from tests.plugins.processes import guard, release
from tests.spark.cluster import SPARK_HOME
from tests.spark.conftest import FAST_START, jobs_in
from tests.spark.connect_client import ROWS

START_S = 240
CLIENT_S = 640


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """The address of a server of its own."""
    if importlib.util.find_spec("grpc") is None:
        missing_service("Spark Connect's client (grpcio) is not installed")
    try:
        java = find_java()
    except InvalidSettings as error:
        missing_service(error.message)
    port = find_free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.extraJavaOptions": " ".join([java_options(local=False), FAST_START]),
        "spark.local.dir": str(tmp_path / "local"),
        "spark.python.authenticate.socketTimeout": "120s",  # a busy machine is slow to start a worker
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.ui.enabled": "false",
    }
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "1g"]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = {
        **os.environ,
        "JAVA_HOME": str(java.resolve().parent.parent),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=log)
    guard(process.pid)
    try:
        _wait_for(port, process, tmp_path / "server.log")
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(90)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        release(process.pid)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, log.read_text(errors="replace")
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(log.read_text(errors="replace"))


def test_loads_and_pipelines_over_connect(remote: str, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path / 'jobs.db'}"
    ran = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_client", remote, url, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=CLIENT_S,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "connect": True,
        "scheduled": [ROWS, ROWS, 0],
        "again": [ROWS, ROWS, ROWS],
        "bad": ["recall-000999"],
        "elsewhere": "Spark does not see",
        "ingested": [True, True, 0],
        "audited": [ROWS, ROWS, 0],
    }
    jobs = sorted(job.id for job in jobs_in(url, "crm", "recall"))
    assert jobs == [f"recall-{index:06}" for index in range(ROWS)]
    assert len(jobs_in(url, "crm", "saved")) == 10


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("sc://127.0.0.1:{port}/;token=hidden", "no Spark Connect server answers at 127.0.0.1:"),
        ("http://127.0.0.1:{port}", "The URL must start with 'sc://'"),
    ],
)
def test_a_server_that_is_not_there(address: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("grpc") is None:
        missing_service("Spark Connect's client (grpcio) is not installed")
    monkeypatch.setattr("duetime.spark.session.CONNECT_S", 1)
    with pytest.raises(InvalidSettings) as raised:
        open_session("test", remote=address.format(port=find_free_port()))

    assert problem in raised.value.message
    assert "hidden" not in raised.value.message

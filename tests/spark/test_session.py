"""The session: found Java, settings, no noise."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duetime.cli.pipelines.options import SparkOptions
from duetime.model.errors import InvalidRequest, InvalidSettings
from duetime.spark import session
from duetime.spark.session import find_java, open_session


def test_settings_that_the_pipelines_rely_on(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.range(3).toPandas()["id"].tolist() == [0, 1, 2]


def test_an_open_session_is_used_as_it_is(spark: SparkSession) -> None:
    assert open_session("again").sparkContext is spark.sparkContext


def test_without_java_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_java_candidates", lambda environment: iter([tmp_path / "java"]))
    with pytest.raises(InvalidSettings, match="openjdk-17-jre-headless"):
        find_java()


def test_an_old_java_is_passed_over(tmp_path: Path) -> None:
    old = tmp_path / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    assert find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": "/usr/bin:/bin"}) != old


def test_master_and_remote_exclude_each_other() -> None:
    with pytest.raises(InvalidSettings, match="exclude"):
        open_session("test", master="local[1]", remote="sc://localhost")


def test_notices_of_java_are_dropped_and_the_rest_is_passed_on() -> None:
    """In a process of its own: it is about what that process and its children write to standard error."""
    speak = "echo 'WARNING: Using incubator modules: jdk.incubator.vector' >&2; echo 'spark: ERROR' >&2"
    code = f"""
import os, subprocess
from duetime.spark.session import without_java_notices
with without_java_notices():
    child = subprocess.Popen(["sh", "-c", "read line; {speak}"], stdin=subprocess.PIPE)
child.communicate(b"go\\n")  # it speaks after the block, as a JVM does
os.write(2, b"mine\\n")  # in one piece: print writes the end of the line for itself, and the child may be quicker
import threading
[one.join(20) for one in threading.enumerate() if one.name == "java-notices"]
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert sorted(ran.stderr.splitlines()) == ["mine", "spark: ERROR"]


@pytest.mark.parametrize("given", ["lots", "0g", "4", "-1g"])
def test_a_drivers_memory_that_is_no_size(given: str) -> None:
    with pytest.raises(InvalidRequest, match="--driver-memory must be a size such as 4g"):
        SparkOptions(driver_memory=given).settings()


def test_settings_of_the_session_by_options() -> None:
    options = SparkOptions(conf=["spark.executor.memory=4g", "spark.x=a=b"], driver_memory="512m")
    assert options.settings() == {
        "spark.executor.memory": "4g",
        "spark.x": "a=b",
        "spark.driver.memory": "512m",
    }
    with pytest.raises(InvalidRequest, match=r"--conf must be NAME=VALUE, got 'spark\.x'"):
        SparkOptions(conf=["spark.x"]).settings()


def test_sessions_start_from_the_archive_that_the_second_one_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes write it at the same time, and the next one maps it."""
    monkeypatch.setenv("JAVA_HOME", str(find_java().resolve().parent.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert session.class_archive_options() == "", "the first session cannot know whether the folder is kept"
    code = """
from duetime.spark.session import open_session
spark = open_session("test", master="local[1]")
print(open(f"/proc/{spark._jvm.java.lang.ProcessHandle.current().pid()}/maps").read().count(".jsa"))
spark.stop()
"""

    def start() -> "subprocess.Popen[str]":
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def mapped(process: "subprocess.Popen[str]") -> int:
        # Standard error ends when the JVM does, which has written the archive by then.
        out, error = process.communicate(timeout=300)
        assert (process.returncode, error) == (0, "")
        return int(out)

    first = [start(), start()]
    usual = {mapped(one) for one in first}
    [archive] = (tmp_path / "duetime").glob("*.jsa")
    assert archive.read_bytes()[:4] != bytes(4)
    assert mapped(start()) > max(usual)

    archive.chmod(0o600)
    archive.write_bytes(bytes(4096))  # as a writer that was killed leaves it
    assert {mapped(start())} == usual
    assert archive.stat().st_size > 4096


def test_without_a_cache_folder_there_is_no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(find_java().resolve().parent.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert session.class_archive_options() == ""
    assert "-XX:ArchiveClassesAtExit" in session.class_archive_options()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert session.class_archive_options() == ""

"""The session: found Java, settings, no noise."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duetime.errors import InvalidSettings
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

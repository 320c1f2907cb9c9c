"""What is known of a batch whose marks are gone: the journal up to this moment, and the reconcile's plan."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duetime.model.job import Event
from duetime.spark.lake.lake import Lake
from duetime.spark.load.batch import LostNode, ReconcileFirst, ReconcileRun
from duetime.spark.load.options import LoadOptions
from duetime.spark.load.push_round import known_jobs
from tests.spark.history import NAMESPACE, Node, Story

SINCE = 1_790_000_000_000


def known(lake: Lake, reconcile: ReconcileRun, url: str) -> set[str]:
    with known_jobs(lake, reconcile, LoadOptions(url, NAMESPACE), SINCE) as jobs:
        return {f"{row['queue']}/{row['id']}" for row in jobs.collect()}


def test_entries_of_all_segments_and_the_plan_tell_of_jobs(spark: SparkSession, tmp_path: Path) -> None:
    journal, lake, url = tmp_path / "journal", Lake(spark, str(tmp_path / "lake")), f"sqlite://{tmp_path}/jobs.db"
    node = Node(journal, "web-1")
    Story(node.write, "sealed", SINCE, SINCE).accepted()
    Story(node.write, "before", SINCE - 1, SINCE).accepted()
    node.seal()
    Story(node.write, "open", SINCE + 5, SINCE).ended(Event.ACKED)
    node.leave_open()
    reconcile = ReconcileRun("run", journal=str(journal), pool="default")
    assert known(lake, reconcile, url) == {"mail/sealed", "mail/open"}

    plan = [(NAMESPACE, "mail", "adopted", SINCE), (NAMESPACE, "mail", "expired", 5), ("crm", "mail", "other", SINCE)]
    rows = spark.createDataFrame(plan, "namespace string, queue string, id string, born long")
    rows.write.parquet(f"{lake.folder}/reconcile/run/plan")
    assert known(lake, reconcile, url) == {"mail/sealed", "mail/open", "mail/adopted"}
    assert list((tmp_path / "lake" / "_scratch").iterdir()) == []


def test_a_gap_asks_for_another_reconcile_unless_that_one_knew_of_it(spark: SparkSession, tmp_path: Path) -> None:
    journal, lake, url = tmp_path / "journal", Lake(spark, str(tmp_path / "lake")), f"sqlite://{tmp_path}/jobs.db"
    node = Node(journal, "web-1", per_segment=1)
    for name in ("a", "b", "c"):
        Story(node.write, name, SINCE, SINCE).accepted()
    sorted(node.folder.iterdir())[1].unlink()
    reconcile = ReconcileRun("run", journal=str(journal), pool="default")
    with pytest.raises(ReconcileFirst, match=r"since the reconcile run: .* web-1: entries 2 to 2 .* reconcile again"):
        known(lake, reconcile, url)

    told = ReconcileRun("run", journal=str(journal), pool="default", assumed_lost=[LostNode("web-1"), LostNode("gone")])
    assert known(lake, told, url) == {"mail/a", "mail/c"}

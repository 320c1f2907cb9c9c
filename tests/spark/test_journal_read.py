"""What an audit reads of a journal that goes on: a slow reader calls no node silent and no new segment a gap."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duetime.journal.segments import sealed_name
from duetime.model.clock import SystemClock
from duetime.model.job import Event
from duetime.spark.audit import journal as audit_journal
from duetime.spark.audit.journal import open_segments, read_now
from duetime.spark.audit.run import ComparedStore, run_audit
from duetime.spark.lake.lake import Lake
from tests.spark.history import Node

WAIT_S = 0.2


@pytest.fixture
def during_first_look(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Has something happen once, after a look has read the journal and before it has ended."""
    ingest = audit_journal.run_ingest

    def happen(what: Callable[[], object]) -> None:
        left = [what]

        def read(lake: Lake, journal: str) -> object:
            done = ingest(lake, journal)
            if left:
                left.pop()()
            return done

        monkeypatch.setattr(audit_journal, "run_ingest", read)

    return happen


def test_a_segment_that_is_sealed_after_it_was_read_is_no_gap(
    spark: SparkSession, tmp_path: Path, during_first_look: Callable[[Callable[[], object]], None]
) -> None:
    node = Node(tmp_path / "journal", "node-a")
    node.write(Event.HEARTBEAT, 1_790_000_000_000)
    path = node.leave_open()

    def seal() -> None:
        node.write(Event.HEARTBEAT, 1_790_000_005_000)
        added = node.leave_open()
        path.with_name(sealed_name(1, 2)).write_bytes(path.read_bytes() + added.read_bytes())
        path.unlink()
        added.unlink()

    during_first_look(seal)
    lake, journal = Lake(spark, str(tmp_path / "lake")), str(tmp_path / "journal")
    now = read_now(lake, journal, open_segments(lake, journal, "run"))
    assert (now.node("node-a").ranges, now.problems()) == ([(1, 1)], [])


def test_a_node_is_silent_only_if_a_look_after_the_wait_says_so(
    spark: SparkSession, tmp_path: Path, during_first_look: Callable[[Callable[[], object]], None]
) -> None:
    """The first look takes longer than the wait, and the node's heartbeat comes meanwhile."""
    node = Node(tmp_path / "journal", "node-a")
    node.write(Event.HEARTBEAT, SystemClock().now_ms() - 60_000)
    node.leave_open()

    def beat() -> None:
        threading.Event().wait(2 * WAIT_S)
        node.write(Event.HEARTBEAT, SystemClock().now_ms() + 1)
        node.leave_open()

    during_first_look(beat)
    compared = ComparedStore(f"sqlite://{tmp_path}/jobs.db", wait_s=WAIT_S)
    assert run_audit(Lake(spark, str(tmp_path / "lake")), str(tmp_path / "journal"), compared).problems == []

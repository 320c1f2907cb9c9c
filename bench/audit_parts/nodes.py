"""A journal of many nodes: the same jobs, spread over 10, 100 or 10,000 processes that have ended."""

import time
from pathlib import Path
from typing import Any

from bench.audit_parts.history import START
from duetime.journal.events import Entry, write_line
from duetime.journal.segments import sealed_name
from duetime.model.job import Event
from duetime.spark.audit.run import run_audit
from duetime.spark.lake.lake import Lake

LATER_JOBS = 100


def write_node(journal: Path, name: str, jobs: range, *, closed: bool = True) -> None:
    """A sealed segment: each job is accepted, delivered and acked."""
    lines: list[bytes] = []

    def write(event: Event, at: int, **fields: Any) -> None:
        lines.append(write_line(Entry(ts=at, wrote_at=at, node=name, seq=len(lines) + 1, event=event, **fields)))

    for job in jobs:
        born = START + job
        which = {"pool": "default", "namespace": "bench", "queue": "jobs", "id": f"job-{job}", "born": born}
        write(Event.ACCEPTED, born, **which, due_at=born, priority=2, tries=5, body="x" * 20)
        write(Event.DELIVERED, born + 1, **which, attempt=1)
        write(Event.ACKED, born + 2, **which, attempt=1)
    if closed:
        write(Event.CLOSED, START + jobs.stop + 3)
    folder = journal / name
    folder.mkdir(parents=True)
    (folder / sealed_name(1, len(lines))).write_bytes(b"".join(lines))


def measure_nodes(spark: Any, folder: Path, nodes: int, jobs: int) -> tuple[float, float]:
    """Seconds of the first audit, and of a later one that finds one more segment."""
    journal, lake = folder / "journal", Lake(spark, str(folder / "lake"))
    each = jobs // nodes
    for node in range(nodes):
        write_node(journal, f"node-{node:05d}", range(node * each, (node + 1) * each))
    first_s = _audit(lake, journal, nodes * each)
    write_node(journal, "later", range(nodes * each, nodes * each + LATER_JOBS), closed=False)
    return first_s, _audit(lake, journal, nodes * each + LATER_JOBS)


def _audit(lake: Lake, journal: Path, acked: int) -> float:
    started = time.perf_counter()
    audited = run_audit(lake, str(journal))
    assert (audited.is_sound, audited.total("acked")) == (True, acked), audited
    return time.perf_counter() - started

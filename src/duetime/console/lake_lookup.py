"""Finished jobs that the journal on this machine no longer has, from the tables `jobs` and `events` of the pipelines'
lake.

Only a local folder is read, with pyarrow, which not every server has. Each look-up runs in a thread, reads the newest
days first, and takes a few seconds at most.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from duetime.console.journal_lookup import MOST_IDS, WITHIN_S, PastJob
from duetime.console.pipeline_files import local_lake
from duetime.journal.events import Entry
from duetime.model.job import Event
from duetime.model.names import Queue

JOB_COLUMNS = (
    "pool",
    "namespace",
    "queue",
    "id",
    "born",
    "outcome",
    "reason",
    "accepted_at",
    "first_due_at",
    "last_delivered_at",
    "attempt",
    "ended_at",
    "last_at",
)
EVENT_COLUMNS = (
    "ts",
    "wrote_at",
    "node",
    "seq",
    "event",
    "pool",
    "namespace",
    "queue",
    "id",
    "born",
    "attempt",
    "due_at",
    "reason",
    "status",
    "ms",
)
EVENTS = {"waiting": Event.ACCEPTED, "leased": Event.DELIVERED}
"""The events for those outcomes of `jobs` that are not named like an event."""

MOST_ROWS = 2_000
"""Rows of one file that a look-up holds in memory."""


class FoundInLake(NamedTuple):
    """`is_whole` is False if there was no time to read everything, or if nothing can be read here."""

    jobs: Sequence[PastJob]
    is_whole: bool


def has_lake(setting: str) -> bool:
    lake = local_lake(setting)
    return lake is not None and (lake / "jobs" / "current").is_dir()


def find_in_lake(setting: str, beginning: str) -> FoundInLake:
    """The jobs whose ids begin with this text, newest first. Call it in a thread."""
    if not has_lake(setting):
        return FoundInLake((), is_whole=True)
    if find_spec("pyarrow") is None:
        return FoundInLake((), is_whole=False)
    deadline, found = time.monotonic() + WITHIN_S, list[PastJob]()
    for path in _files(setting, "jobs"):
        if time.monotonic() > deadline or len(found) >= MOST_IDS:
            return FoundInLake(found[:MOST_IDS], is_whole=False)
        jobs = [PastJob(row["pool"], _queue(row), row["id"], *_end(row)) for row in _rows(path, JOB_COLUMNS, beginning)]
        found += sorted(jobs, key=lambda one: -one.at)
    return FoundInLake(found[:MOST_IDS], is_whole=len(found) <= MOST_IDS)


def read_entries(setting: str, pool: str, queue: Queue, job_id: str) -> list[Entry]:
    """The events of the newest job with this id, as the journal had them but for bodies and errors. Of a job whose
    events were removed from the lake, what its row in `jobs` tells. Call it in a thread.
    """
    if not has_lake(setting) or find_spec("pyarrow") is None:
        return []

    def rows(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
        found = _rows(path, columns, job_id, is_id=True)
        return [row for row in found if (row["pool"], _queue(row)) == (pool, queue)]

    job = next((found[-1] for path in _files(setting, "jobs") if (found := rows(path, JOB_COLUMNS))), None)
    if job is None:
        return []
    # The table is partitioned by the day of an event.
    first, last = _day(job["born"]), _day(job["last_at"] or job["born"])
    days = (path for path in _files(setting, "events") if first <= path.parent.name.partition("=")[2] <= last)
    events = [row for path in days for row in rows(path, EVENT_COLUMNS) if row["born"] == job["born"]]
    return msgspec.convert(events, list[Entry]) or _summary(job)


def _end(job: dict[str, Any]) -> tuple[Event, int]:
    """The last event of a row of `jobs`, and when it was."""
    event = EVENTS.get(job["outcome"]) or Event(job["outcome"] or Event.ACCEPTED)
    return event, job["ended_at"] or job["last_at"] or job["born"]


def _summary(job: dict[str, Any]) -> list[Entry]:
    event, at = _end(job)
    times = {Event.ACCEPTED: job["accepted_at"], Event.DELIVERED: job["last_delivered_at"], event: at}
    known = {name: job[name] for name in ("pool", "namespace", "queue", "id", "born")}
    return [
        Entry(
            ts=at,
            event=event,
            **known,
            attempt=0 if event is Event.ACCEPTED else job["attempt"],
            due_at=job["first_due_at"] or 0,
            wrote_at=at,
            node="",
            seq=0,
        )
        for event, at in times.items()
        if at
    ]


def _files(setting: str, table: str) -> list[Path]:
    """The files of a table, newest day first. They are links in a folder that a newer folder may replace."""
    folder = (local_lake(setting) or Path()) / table / "current"
    return sorted(folder.resolve().glob("date=*/*.parquet"), reverse=True)


def _rows(path: Path, columns: Sequence[str], beginning: str, *, is_id: bool = False) -> list[dict[str, Any]]:
    """The rows whose id begins with this text, or is it: at most MOST_ROWS, because any text may be searched for."""
    import pyarrow.dataset as ds  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs] - not every server has it

    dataset = cast("Any", ds)
    field = dataset.field("id")
    # Parquet knows the least and greatest id of each part of a file, so that most parts are not read.
    wanted = field == beginning if is_id else (field >= beginning) & (field < beginning + "\U0010ffff")
    try:
        table = dataset.dataset(path, format="parquet")
        return table.head(MOST_ROWS, columns=list(columns), filter=wanted, use_threads=False).to_pylist()
    except FileNotFoundError:  # removed since it was listed
        return []


def _queue(row: dict[str, Any]) -> Queue:
    return Queue(row["namespace"], row["queue"])


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()

"""What the journal on this machine's disk says about jobs, also after they are gone: one job's life, the jobs whose ids
begin with a text, and the last calls of a topic. Each is read in a thread, for a few seconds at most.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec.json import encode

from duetime.journal.events import ENDS, Entry, read_line
from duetime.journal.options import options_of
from duetime.journal.reader import lives_of, read_job
from duetime.journal.segments import nodes, segments
from duetime.model.job import Event
from duetime.model.names import Queue
from duetime.model.settings import Settings

WITHIN_S = 3.0
MOST_IDS = 50
CALL_EVENTS = (b'"event":"notified"', b'"event":"released"', b'"event":"dead"')
MOST_SCANNED = 33_554_432
"""Bytes of the newest segments in which the last calls of a topic are looked for."""


class JobTry(NamedTuple):
    """One delivery of a job. Times are epoch milliseconds, 0 where unknown.

    `outcome` is the event that ended the try (acked, released, dead, lease_expired, given_back ...), empty while it
    runs; `retry_at` is when the next try was due; `status` and `ms` belong to a callback.
    """

    number: int
    started: int
    late_ms: int
    ended: int
    outcome: str
    reason: str
    error: str
    retry_at: int
    node: str
    status: int
    ms: int


class JobTimeline(NamedTuple):
    """One list of entries per incarnation of the id, oldest first.

    `has_journal` says whether this machine has a journal; `is_cut`, whether there was no time to read all of it;
    `is_from_lake`, that the entries are from the pipelines' lake.
    """

    lives: Sequence[Sequence[Entry]]
    has_journal: bool
    is_cut: bool = False
    is_from_lake: bool = False

    @property
    def ends(self) -> frozenset[str]:
        return frozenset(ENDS)

    @property
    def tries(self) -> list[JobTry]:
        """The tries of the last incarnation, oldest first."""
        return tries_of(self.lives[-1]) if self.lives else []


class TopicCall(NamedTuple):
    """A call of a topic. `failed`: the job was tried again or given up after it, whatever status the answer had."""

    entry: Entry
    failed: bool


class PastJob(NamedTuple):
    """A job that the journal or the lake knows; `event` is the last one, `at` its time in epoch milliseconds."""

    pool: str
    queue: Queue
    id: str
    event: Event
    at: int


def _folder(settings: Settings) -> Path | None:
    options = options_of(settings)
    return options.folder if options is not None and options.folder.is_dir() else None


async def read_timeline(settings: Settings, pool: str, queue: Queue, job_id: str, *, born: int) -> JobTimeline:
    """Skips the files that were closed before the job was `born`."""
    folder = _folder(settings)
    if folder is None:
        return JobTimeline((), has_journal=False)

    def read() -> JobTimeline:
        deadline = time.monotonic() + WITHIN_S
        entries: list[Entry] = []
        cut = False
        for item in read_job(folder, job_id, since_ms=born):
            if isinstance(item, Entry) and (item.pool, item.namespace, item.queue) == (pool, *queue):
                entries.append(item)
            if time.monotonic() > deadline:
                cut = True
                break
        return JobTimeline(lives_of(entries), has_journal=True, is_cut=cut)

    return await asyncio.to_thread(read)


def tries_of(life: Sequence[Entry]) -> list[JobTry]:
    """One row per attempt, from what the journal says about it."""
    by_attempt: dict[int, list[Entry]] = {}
    for entry in life:
        if entry.attempt:
            by_attempt.setdefault(entry.attempt, []).append(entry)
    found: list[JobTry] = []
    for attempt, entries in sorted(by_attempt.items()):
        delivered = next((one for one in entries if one.event is Event.DELIVERED), None)
        called = next((one for one in entries if one.event is Event.NOTIFIED), None)
        ends = [one for one in entries if one.event in TRY_ENDS]
        end = ends[0] if ends else None
        found.append(
            JobTry(
                attempt,
                delivered.ts if delivered else 0,
                max(delivered.ts - delivered.due_at, 0) if delivered else 0,
                end.ts if end else 0,
                str(end.event) if end else "",
                end.reason if end else "",
                end.error if end else "",
                end.due_at if end and end.event is Event.RELEASED else 0,
                (end or delivered or entries[0]).node,
                called.status if called else 0,
                called.ms if called else 0,
            )
        )
    return found


TRY_ENDS = frozenset(
    {Event.ACKED, Event.RELEASED, Event.DEAD, Event.LEASE_EXPIRED, Event.GIVEN_BACK, Event.CANCELLED, Event.REPLACED}
)


async def find_ids(settings: Settings, beginning: str) -> tuple[list[PastJob], bool]:
    """The jobs of the last days whose ids begin with this text, newest first; and whether all of the journal was read.

    The newest segments are read first.
    """
    folder = _folder(settings)
    if folder is None:
        return [], True
    needle = b'"id":' + encode(beginning)[:-1]

    def read() -> tuple[list[PastJob], bool]:
        deadline, found = time.monotonic() + WITHIN_S, dict[tuple[str, Queue, str], Entry]()
        for path, _ in _newest_segments(folder):
            if time.monotonic() > deadline:
                return _newest(found), False
            for entry in _lines_with(path, needle):
                if not entry.id.startswith(beginning) or entry.event is Event.NOTIFIED:
                    continue
                key = (entry.pool, Queue(entry.namespace, entry.queue), entry.id)
                known = found.get(key)
                if known is None and len(found) >= MOST_IDS:
                    continue
                if known is None or (entry.born, entry.attempt, entry.ts) >= (known.born, known.attempt, known.ts):
                    found[key] = entry
        return _newest(found), True

    return await asyncio.to_thread(read)


def _newest(found: dict[tuple[str, Queue, str], Entry]) -> list[PastJob]:
    jobs = [PastJob(*key, entry.event, entry.ts) for key, entry in found.items()]
    return sorted(jobs, key=lambda one: -one.at)


async def last_calls(settings: Settings, pool: str, queue: Queue, most: int) -> list[TopicCall]:
    """The last calls of a topic that this machine's journal has, newest first."""
    folder = _folder(settings)
    if folder is None:
        return []

    needle = b',"namespace":%b,"queue":%b,' % (encode(queue.namespace), encode(queue.name))

    def read() -> list[TopicCall]:
        scanned, calls, failed = 0, list[Entry](), set[tuple[str, int, int]]()
        for path, size in _newest_segments(folder):
            for entry in _last_lines_with(path, needle):
                if entry.pool != pool:
                    continue
                if entry.event is not Event.NOTIFIED:
                    failed.add((entry.id, entry.born, entry.attempt))
                elif len(calls) < most:
                    calls.append(entry)
                else:
                    break
            scanned += size
            if scanned > MOST_SCANNED or len(calls) >= most:
                break
        newest = sorted(calls, key=lambda one: -one.ts)[:most]
        return [TopicCall(one, not one.status or (one.id, one.born, one.attempt) in failed) for one in newest]

    return await asyncio.to_thread(read)


def _newest_segments(folder: Path) -> list[tuple[Path, int]]:
    """The files of all nodes with their sizes, the last one that was written to first."""
    found: list[tuple[float, Path, int]] = []
    for node in nodes(folder):
        for segment in segments(node):
            with suppress(FileNotFoundError):  # sealed or deleted meanwhile
                about = segment.path.stat()
                found.append((about.st_mtime, segment.path, about.st_size))
    return [(path, size) for _, path, size in sorted(found, reverse=True)]


def _last_lines_with(path: Path, needle: bytes) -> Iterator[Entry]:
    """The entries of CALL_EVENTS in the lines with this text, from the end of the file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    at = content.rfind(needle)
    while at >= 0:
        start, end = content.rfind(b"\n", 0, at) + 1, content.find(b"\n", at) + 1
        if end and any(content.find(event, start, at) >= 0 for event in CALL_EVENTS):
            with suppress(ValueError):
                yield read_line(content[start:end])
        at = content.rfind(needle, 0, start)


def _lines_with(path: Path, *needles: bytes) -> Iterator[Entry]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    for needle in needles:
        at = content.find(needle)
        while at >= 0:
            start, end = content.rfind(b"\n", 0, at) + 1, content.find(b"\n", at) + 1
            if end:
                with suppress(ValueError):  # damage is reported by `duetime history` and the audit
                    yield read_line(content[start:end])
            at = content.find(needle, end or at + 1)

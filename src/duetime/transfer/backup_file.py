"""A backup: everything in a store as one compressed file of JSON lines, with a checksum at its end.

The first line says what it is, then come the records and counters of the registry, then each queue with its rules, its
jobs and the counts of its joins. The last line has the counts and the SHA-256 of all lines before it, so that a file
that was cut or changed is found before anything is restored. A job that moves to another state while the store is read
could be passed over, so queues are read again until a reading finds no job that is new. A job that was replaced
meanwhile, or pushed again, is there twice; the later one counts.
"""

import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from duetime.model.clock import rfc3339
from duetime.model.errors import NOT_JSON, Conflict, InvalidRequest, StoreUnavailable
from duetime.model.job import STEP_BYTES, STEP_JOBS, Job, State, chunks, payload_bytes
from duetime.model.names import Queue
from duetime.stores.base import QueueRules, RulesChange, Store, list_all
from duetime.stores.finishes import JoinCount
from duetime.stores.registry import Record
from duetime.transfer.put_back import put_back, read_joins
from duetime.transfer.registry_records import read_counters, read_records, write_counters, write_records
from duetime.transfer.transfer_lock import TransferLock

FORMAT = "duetime-backup-1"
RESTORE, CURRENT = "restore", "current"
ORDER = (State.DELAYED, State.READY, State.LEASED, State.DEAD)
READINGS = 5

Done = Callable[[int], None]
"""Called with the number of jobs so far."""


class BackupSummary(Struct, frozen=True):
    """What a backup holds; `sha256` is that of all its lines but the last."""

    jobs: int
    records: int
    queues: int
    sha256: str


class BackupLine(Struct, omit_defaults=True):
    """One line: exactly one of these is set."""

    format: str = ""
    at: str = ""
    record: Record | None = None
    counters: dict[str, int] = {}
    queue: Queue | None = None
    rules: QueueRules | None = None
    job: Job | None = None
    joins: list[JoinCount] = []
    end: BackupSummary | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(BackupLine).decode


class BackupWriter:
    """Writes lines and keeps their checksum."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream, self._digest = stream, hashlib.sha256()

    def write(self, line: BackupLine) -> None:
        data = _encode(line) + b"\n"
        self._digest.update(data)
        self._stream.write(data)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise Conflict(f"cannot write {path}: the file exists")


async def write_backup(store: Store, path: Path, progress: Done = lambda jobs: None) -> BackupSummary:
    """Write the file under a hidden name, and rename it when it is complete. Raises Conflict if it exists."""
    _refuse_existing(path)
    handle, aside = tempfile.mkstemp(".part", f".{path.name}.", path.parent)  # a new file with mode 0600
    try:
        with os.fdopen(handle, "wb") as raw:
            with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=5, mtime=0) as stream:
                summary = await _write(store, BackupWriter(stream), progress)
            raw.flush()
            os.fsync(raw.fileno())
        os.link(aside, path)  # fails if somebody else has made it meanwhile
    except FileExistsError:
        raise Conflict(f"cannot write {path}: the file exists") from None
    finally:
        os.unlink(aside)
    return summary


async def _write(store: Store, writer: BackupWriter, progress: Done) -> BackupSummary:
    writer.write(BackupLine(format=FORMAT, at=rfc3339((await store.ping()).now)))
    records = await read_records(store.registry)
    for record in records:
        writer.write(BackupLine(record=record))
    writer.write(BackupLine(counters=await read_counters(store.registry)))
    jobs, queues = 0, sorted(await store.queues())
    for queue in queues:
        jobs += await _write_queue(store, queue, writer, lambda found, before=jobs: progress(before + found))
    summary = BackupSummary(jobs, len(records), len(queues), writer.sha256)
    writer.write(BackupLine(end=summary))
    return summary


async def _write_queue(store: Store, queue: Queue, writer: BackupWriter, progress: Done) -> int:
    """Write the queue's rules, jobs and counts of joins; answers how many jobs it has."""
    writer.write(BackupLine(queue=queue, rules=await store.configure(queue)))
    seen: dict[str, int] = {}
    joins = await read_joins(store, queue)
    for _ in range(READINGS):
        found_new, before = False, {one.name for one in joins}
        for state in ORDER:
            async for jobs in list_all(store, queue, state):
                for job in jobs:
                    if job.born > seen.get(job.id, 0):
                        seen[job.id] = job.born
                        found_new = True
                        writer.write(BackupLine(job=job))
                progress(len(seen))
        # Counts are read after the jobs, so that a member of a group that was finished meanwhile is in one of them.
        # What follows from a group that was finished meanwhile is found by another reading.
        joins = await read_joins(store, queue)
        if not found_new and before <= {one.name for one in joins}:
            break
    for some in chunks(joins):
        writer.write(BackupLine(joins=list(some)))
    return len(seen)


def read_backup(path: Path) -> Iterator[BackupLine]:
    """All lines. Raises InvalidRequest at the first sign that the file is no complete backup."""
    digest, last = hashlib.sha256(), None
    try:
        with gzip.open(path, "rb") as stream:
            for number, data in enumerate(stream):
                line = _decode(data)
                if number == 0 and line.format != FORMAT:
                    raise InvalidRequest(f"{path} is not a backup of this release ({FORMAT})")
                if last is not None and last.end:
                    raise InvalidRequest(f"{path} is damaged: lines follow its end")
                if line.end and line.end.sha256 != digest.hexdigest():
                    raise InvalidRequest(f"{path} is damaged: its checksum does not fit its content")
                digest.update(data)
                last = line
                yield line
    except FileNotFoundError:
        raise InvalidRequest(f"there is no file {path}") from None
    except (OSError, EOFError, zlib.error, *NOT_JSON) as error:
        raise InvalidRequest(f"{path} cannot be read as a backup: {error}") from None
    if last is None or last.end is None:
        raise InvalidRequest(f"{path} is cut off: its end is missing")


def check_backup(path: Path) -> BackupSummary:
    """Read all of it. Raises InvalidRequest if it is not complete."""
    jobs, records, summary = 0, 0, BackupSummary(0, 0, 0, "")
    ids = set[str]()
    for line in read_backup(path):
        if line.queue:
            ids = set[str]()
        if line.job and line.job.id not in ids:
            ids.add(line.job.id)
            jobs += 1
        records += bool(line.record)
        summary = line.end or summary
    if (jobs, records) != (summary.jobs, summary.records):
        raise InvalidRequest(f"{path} is damaged: it does not hold what it says")
    return summary


class RestoreRun:
    """Puts the lines of a backup into a store, one by one."""

    def __init__(self, store: Store, run: str, progress: Done, lock: TransferLock) -> None:
        self._store, self._run, self._progress, self._lock = store, run, progress, lock
        self._queue = Queue("", "")
        self._rules: list[tuple[Queue, QueueRules]] = []
        self._records: list[Record] = []
        self._chunk: list[Job] = []
        self._done = self._size = 0

    async def add(self, line: BackupLine) -> None:
        if line.record:
            self._records.append(line.record)
        elif line.counters:
            await write_counters(self._store.registry, line.counters)
        elif line.queue and line.rules:
            await self.flush()
            self._queue = line.queue
            self._rules.append((line.queue, line.rules))
            # No consumer may get a job before all are there, and caps are for new jobs.
            await self._store.configure(line.queue, RulesChange(paused=True, kept=True))
        elif line.joins:
            await self._store.raise_joins(self._queue, line.joins)
        elif line.job:
            weight = payload_bytes(line.job)
            if len(self._chunk) == STEP_JOBS or self._size + weight > STEP_BYTES:
                await self.flush()
            self._chunk.append(line.job)
            self._size += weight

    async def flush(self) -> None:
        await self._lock.check()
        if self._chunk:
            problems = await put_back(self._store, self._queue, self._chunk, self._run)
            if any(problems):
                raise Conflict(f"a job of {self._queue} could not be restored: {next(filter(None, problems))}")
        self._done, self._size = self._done + len(self._chunk), 0
        self._chunk.clear()
        self._progress(self._done)

    async def finish(self) -> None:
        """Write what lets servers and consumers in: tokens, topics, the rules of the queues."""
        await write_records(self._store.registry, self._records)
        for queue, rules in self._rules:
            changes: dict[str, Any] = msgspec.structs.asdict(rules)
            await self._store.configure(queue, RulesChange(**changes))


async def restore_backup(store: Store, path: Path, summary: BackupSummary, progress: Done = lambda jobs: None) -> None:
    """Put everything into an empty store; `summary` is what `check_backup` found. Repeatable if it was interrupted."""
    async with TransferLock(store.registry, "restore") as lock:
        await _require_empty(store, summary)
        run = RestoreRun(store, summary.sha256[:16], progress, lock)
        for line in read_backup(path):
            await run.add(line)
        await run.flush()
        await _verify(store, summary)
        await run.finish()
        await store.registry.delete(RESTORE, CURRENT)


async def _require_empty(store: Store, summary: BackupSummary) -> None:
    record = await store.registry.get(RESTORE, CURRENT)
    if record and record.value == summary.sha256.encode():
        return  # this restore was interrupted
    counts = await store.counts(list(await store.queues()))
    if record or any(one.total for one in counts) or await read_records(store.registry):
        raise Conflict("the store must be empty for a restore, which overwrites nothing")
    await store.registry.put(RESTORE, CURRENT, summary.sha256.encode())


async def _verify(store: Store, summary: BackupSummary) -> None:
    """Raises StoreUnavailable if the store does not hold as many jobs as the backup; expired ones have ended."""
    counts = await store.counts(list(await store.queues()))
    held = sum(one.total + one.expired for one in counts)
    if held != summary.jobs:
        raise StoreUnavailable(f"the store holds {held:,} jobs and the backup {summary.jobs:,}: restore it again")

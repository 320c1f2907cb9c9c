"""The journal of a batch that goes straight into a store: the entries that a server would write for it.

A batch is one node. Each of its accepted files is a sealed segment with an entry per good row, so where the entries of
a file begin is known before anything is pushed, and tasks need not wait for each other. The driver registers the node
before the first push, and closes it after the last file. The order is store, journal, the task's answer: a task that
dies in between runs again, meets its marks and writes the same entries. A segment that exists is kept: nobody else
writes to this node. The folder must be reachable from the executors.
"""

import os
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import msgspec

from duetime.journal.events import REPEATED, Draft, Entry, body_fields, place_before_seq, write_line, write_text
from duetime.journal.registration import abandon, register, sign_off
from duetime.journal.segments import sealed_name, sync_folder
from duetime.model.ids import IdMaker
from duetime.model.job import Event, Job, Moved, NewJob
from duetime.model.names import Queue
from duetime.spark.load.chunks import Portion
from duetime.spark.load.job_columns import arrow
from duetime.spark.load.options import LoadOptions
from duetime.stores.base import Store, get_all
from duetime.stores.bulk import Loaded
from duetime.stores.open import open_store

BATCH_NODE = "batch-"
"""How the name of a batch's node begins."""
NAME_PART = 60

_encode = msgspec.json.Encoder().encode
_FOREIGN = re.compile(r"[^A-Za-z0-9_.-]", re.ASCII)


def batch_node(options: LoadOptions) -> str:
    """A name that no other batch has, whatever its pool, namespace and name."""
    parts = (_FOREIGN.sub("-", part)[:NAME_PART] for part in (options.pool, options.namespace, options.batch))
    return f"{BATCH_NODE}{'-'.join(parts)}-{IdMaker().make()}"


class BatchJournal:
    """A batch's node, from the driver's side. `lines` counts the good rows of each file, in the order of the files."""

    def __init__(self, options: LoadOptions, node: str, lines: Sequence[int]) -> None:
        assert options.journal is not None
        self._options, self.node = options, node
        self._folder = Path(options.journal) / node
        *self.firsts, self._last = accumulate(lines, initial=1)

    async def begin(self) -> None:
        """Register the node, before the first push. Idempotent."""
        self._folder.mkdir(0o700, parents=True, exist_ok=True)
        async with self._store() as store:
            await register(store, self.node)

    async def abandon(self) -> None:
        """Give up the node, so that audit and reconcile do not wait for it: what it pushed cannot be known any more."""
        async with self._store() as store:
            await abandon(store, self.node)

    async def end(self) -> None:
        """Close the node and sign it off, when all files are pushed and written. Idempotent."""
        async with self._store() as store:
            at = (await store.ping()).now
            closed = Entry(ts=at, wrote_at=at, node=self.node, seq=self._last, event=Event.CLOSED)
            with SegmentFile(self._folder, self._last, self._last) as file:
                file.write(write_line(closed))
            await sign_off(store, self.node, self._last)

    @asynccontextmanager
    async def _store(self) -> AsyncGenerator[Store]:
        store = await open_store(self._options.store_url)
        try:
            yield store
        finally:
            await store.close()


class SegmentFile:
    """A context manager: after a clean end the segment appears, sealed and whole, unless it exists already."""

    def __init__(self, folder: Path, first: int, last: int) -> None:
        self._path = folder / sealed_name(first, last)
        self._aside = folder / f".{IdMaker().make()}.writing"

    def __enter__(self) -> BinaryIO:
        self._aside.parent.mkdir(0o700, parents=True, exist_ok=True)
        self._file = os.fdopen(os.open(self._aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        return self._file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
                if not self._path.exists():
                    os.link(self._aside, self._path)
        except FileExistsError:
            pass
        finally:
            self._file.close()
            self._aside.unlink(missing_ok=True)
        sync_folder(self._aside.parent)


class FileJournal:
    """The entries of one file's rows, numbered from `first` on. Runs on executors."""

    def __init__(self, options: LoadOptions, node: str, first: int, file: BinaryIO) -> None:
        self._options, self._node, self._file = options, node, file
        self._seq = first - 1
        self._store: Store | None = None

    async def close(self) -> None:
        if self._store:
            await self._store.close()

    async def write(self, portion: Portion, answer: Loaded) -> None:
        """Write an entry for each job of the step."""
        if (lines := self._plain_lines(portion, answer)) is not None:
            self._file.write(b"".join(lines))
            return
        jobs = portion.columns.jobs(answer.step.first, answer.step.last)
        moved = answer.moved or [Moved(Event.ACCEPTED, job.id, answer.born, 0, job.due_at or 0) for job in jobs]
        held = await self._held(portion.queue, moved)
        for job, one in zip(jobs, moved, strict=True):
            kept = held.get(one.id)
            if one.event is Event.KEPT and kept and kept.born == one.born:
                self._append(portion.queue, answer.at, **_kept(kept))
            else:
                self._append(portion.queue, answer.at, **self._moved(one), **_whole(job, one))

    async def _held(self, queue: Queue, moved: Sequence[Moved]) -> dict[str, Job]:
        """The jobs that had the rows' ids before. They are journaled again: their pusher may have died before that."""
        ids = [one.id for one in moved if one.event is Event.KEPT]
        if not ids:
            return {}
        if self._store is None:
            self._store = await open_store(self._options.store_url)
        return {job.id: job for job in await get_all(self._store, queue, ids) if job}

    def _plain_lines(self, portion: Portion, answer: Loaded) -> Iterator[bytes] | None:
        """The lines of a step whose jobs were all accepted and differ in id, due time and text only; None for others.

        They are put together from bytes: encoding a million entries would take as long as pushing their jobs.
        """
        queue, columns, _ = portion
        if answer.moved or columns.attributes is not None:
            return None
        step = slice(answer.step.first, answer.step.last)
        try:
            bodies: list[str] = columns.bodies[step].cast(arrow.string()).to_pylist()
        except arrow.ArrowInvalid:  # not all of them are text
            return None
        common = Draft(
            ts=answer.at,
            event=Event.ACCEPTED,
            pool=self._options.pool,
            namespace=queue.namespace,
            queue=queue.name,
            born=answer.born,
            priority=int(columns.priority),
            ttl=columns.ttl_ms,
            tries=columns.tries,
            batch=self._options.batch,
        )
        middle = b',%b,"due_at":' % _encode(common)[1:-1]
        place = place_before_seq(answer.at, self._node)
        ids, times = columns.ids[step].to_pylist(), columns.due_at[step].to_pylist()
        first = self._seq + 1
        self._seq += len(ids)
        return (
            write_text(b'%b%d%b%d,"id":%b,"body":%b}' % (place, seq, middle, due_at, _encode(name), _encode(body)))
            for seq, (name, due_at, body) in enumerate(zip(ids, times, bodies, strict=True), first)
        )

    def _moved(self, moved: Moved) -> dict[str, Any]:
        return {
            "event": moved.event,
            "id": moved.id,
            "born": moved.born,
            "attempt": moved.attempt,
            "due_at": moved.due_at,
            "reason": moved.reason,
            "batch": self._options.batch,
            "was": moved.was,
        }

    def _append(self, queue: Queue, at: int, **fields: Any) -> None:
        self._seq += 1
        place = {"ts": at, "wrote_at": at, "node": self._node, "seq": self._seq}
        where = {"pool": self._options.pool, "namespace": queue.namespace, "queue": queue.name}
        self._file.write(write_line(Entry(**place, **where, **fields)))


def _whole(job: NewJob, moved: Moved) -> dict[str, Any]:
    """The fields that it takes to push an accepted job again."""
    if moved.event is not Event.ACCEPTED:
        return {}
    return {
        "priority": int(job.priority),
        "ttl": job.ttl_ms,
        "tries": job.tries,
        "attributes": job.attributes,
        **body_fields(job.body),
    }


def _kept(job: Job) -> dict[str, Any]:
    """The entry of a job that was there already, as the store has it (see `RepeatedPushes`)."""
    return {
        "event": Event.ACCEPTED,
        "reason": REPEATED,
        "id": job.id,
        "born": job.born,
        "attempt": job.attempt,
        "due_at": job.due_at,
        "priority": int(job.priority),
        "ttl": max(job.expires_at - job.born, 1) if job.expires_at else 0,
        "tries": job.tries,
        "attributes": job.attributes,
        **body_fields(job.body),
    }

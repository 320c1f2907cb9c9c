"""The journal of a batch that goes straight into a store: the entries that a server would write for it.

A batch is one node. Each of its accepted files is a sealed segment with an entry per good row, so where the entries of
a file begin is known before anything is pushed, and tasks need not wait for each other. The driver registers the node
before the first push, and closes it after the last file. The order is store, journal, the task's answer: a task that
dies in between runs again, meets its marks and writes the same entries. A segment that exists is kept: nobody else
writes to this node. The folder must be reachable from the executors.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import msgspec

from duetime.client.store_link import AsyncStoreLink, opened_store
from duetime.journal.events import REPEATED, Draft, Entry, body_fields, place_before_seq, write_line
from duetime.journal.options import embedded_options
from duetime.journal.registration import (
    abandon,
    begin_journaling,
    find_journaling,
    refusal_without_journal,
    register,
    registered,
    sign_off,
)
from duetime.journal.segments import sealed_name, sync_folder
from duetime.model.ids import IdMaker
from duetime.model.job import Event, Job, Moved, NewJob
from duetime.model.names import Queue
from duetime.spark.load.chunks import Portion
from duetime.spark.load.job_columns import arrow
from duetime.spark.load.options import LoadOptions
from duetime.spark.load.task_entries import number
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


async def with_journal(options: LoadOptions) -> LoadOptions:
    """The options with the folder for the batch's entries, which is found as an embedded engine finds it.

    There is none if the pool does not journal and nobody asked for it, or if a server writes it. Raises InvalidSettings
    if the pool journals and the journal is "off".
    """

    async def find(store: Store) -> LoadOptions | None:
        found = await find_journaling(store)
        if not found and not options.journal:
            return None
        journal = embedded_options(options.url, options.journal, nodes=await registered(store))
        if journal is None:
            if found:
                raise refusal_without_journal(found)
            return None
        pool = found.pool if found else options.pool
        await begin_journaling(store, pool)
        return replace(options, journal=str(journal.folder.absolute()), pool=pool)

    async with AsyncStoreLink.open(options.store_url, options.token) as link:
        return await link.on_store(find) or options


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
        async with opened_store(self._options.store_url) as store:
            await register(store, self.node)

    async def abandon(self) -> None:
        """Give up the node, so that audit and reconcile do not wait for it: what it pushed cannot be known any more."""
        async with opened_store(self._options.store_url) as store:
            await abandon(store, self.node)

    async def end(self) -> None:
        """Close the node and sign it off, when all files are pushed and written. Idempotent."""
        async with opened_store(self._options.store_url) as store:
            at = (await store.ping()).now
            closed = Entry(ts=at, wrote_at=at, node=self.node, seq=self._last, event=Event.CLOSED)
            with SegmentFile(self._folder, self._last, self._last) as file:
                file.write(write_line(closed))
            await sign_off(store, self.node, self._last)


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
        self._steps, self._node, self._file, self._next = StepEntries(options), node, file, first
        self.close = self._steps.close

    async def write(self, portion: Portion, answer: Loaded) -> None:
        """Write an entry for each job of the step."""
        drafts = await self._steps.drafts(portion, answer)
        self._file.write(b"".join(number(drafts, place_before_seq(answer.at, self._node), self._next)))
        self._next += len(drafts)


class StepEntries:
    """The entries of the steps that a task has pushed, as JSON objects without node and number. Runs on executors.

    `again` says that the entries of a repeated step may have been written before, by a task with another node.
    """

    def __init__(self, options: LoadOptions, *, again: bool = False) -> None:
        self._options, self._again = options, again
        self._store: Store | None = None

    async def close(self) -> None:
        if self._store:
            await self._store.close()

    async def drafts(self, portion: Portion, answer: Loaded) -> list[bytes]:
        """An entry for each job of the step."""
        if (plain := self._plain_drafts(portion, answer)) is not None:
            return plain
        jobs = portion.columns.jobs(answer.step.first, answer.step.last)
        moved = answer.moved or [Moved(Event.ACCEPTED, job.id, answer.born, 0, job.due_at or 0) for job in jobs]
        held = await self._held(portion.queue, moved)
        where = {"pool": self._options.pool, "namespace": portion.queue.namespace, "queue": portion.queue.name}
        found: list[bytes] = []
        for job, one in zip(jobs, moved, strict=True):
            kept = held.get(one.id)
            if one.event is Event.KEPT and kept and one.born in (0, kept.born):
                fields = _kept(kept)
            elif one.event is Event.KEPT and not one.born:
                fields = self._moved(Moved(Event.ACKED, one.id, 0, reason=REPEATED))
            else:
                fields = {**self._moved(one), **_whole(job, one)}
                if self._again and answer.repeated:
                    fields["reason"] = REPEATED
            found.append(_encode(Draft(ts=answer.at, **where, **fields)))
        return found

    async def _held(self, queue: Queue, moved: Sequence[Moved]) -> dict[str, Job]:
        """The jobs that had the rows' ids before. They are journaled again: their pusher may have died before that."""
        ids = [one.id for one in moved if one.event is Event.KEPT]
        if not ids:
            return {}
        if self._store is None:
            self._store = await open_store(self._options.store_url)
        return {job.id: job for job in await get_all(self._store, queue, ids) if job}

    def _plain_drafts(self, portion: Portion, answer: Loaded) -> list[bytes] | None:
        """The entries of a step whose jobs were all accepted and differ in id, due time and text only; None for others.

        They are put together from bytes: encoding a million entries would take as long as pushing their jobs.
        """
        queue, columns, *_ = portion
        if answer.moved or columns.attributes is not None or (self._again and answer.repeated):
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
        head = b'%b,"due_at":' % _encode(common)[:-1]
        ids, times = columns.ids[step].to_pylist(), columns.due_at[step].to_pylist()
        return [
            b'%b%d,"id":%b,"body":%b}' % (head, due_at, _encode(name), _encode(body))
            for name, due_at, body in zip(ids, times, bodies, strict=True)
        ]

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


def _whole(job: NewJob, moved: Moved) -> dict[str, Any]:
    """The fields that it takes to push an accepted job again."""
    if moved.event not in (Event.ACCEPTED, Event.REPLACED):
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

"""The journal of a batch that goes straight into a store: the accepted rows as entries, as a server would write them.

Each accepted file is a node of its own, `batch-<batch>-<number>`, with one sealed segment that ends with `closed`. What
is in it follows from the file and from what the marks remember; so a task that runs again writes the same entries, and
replaces the segment with itself. Store first, then the journal, then the task's answer: a task that dies in between
runs again. The folder must be reachable from the executors. Runs on executors.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import msgspec

from duetime.job import Event, Moved, NewJob
from duetime.journal.events import Draft, Entry, body_fields
from duetime.journal.lines import place_before_seq, write_line, write_text
from duetime.journal.segments import sealed_name, sync_folder
from duetime.names import Queue
from duetime.spark.load.chunks import Portion
from duetime.spark.load.job_columns import arrow
from duetime.spark.load.options import LoadOptions
from duetime.stores.bulk import Loaded

_encode = msgspec.json.Encoder().encode


class FileJournal:
    """A context manager; only a clean end publishes the segment."""

    def __init__(self, options: LoadOptions, number: int) -> None:
        assert options.journal is not None
        self._options = options
        self._node = f"batch-{options.batch}-{number:05}"
        self._folder = Path(options.journal) / self._node
        self._aside = self._folder / f".{os.getpid()}.writing"
        self._file: BinaryIO | None = None
        self._seq = 0
        self._latest = 0

    def __enter__(self) -> "FileJournal":
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = self._aside.open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        if kind is not None:
            self._file.close()
            self._aside.unlink(missing_ok=True)
            return
        self._append(
            Entry(ts=self._latest, wrote_at=self._latest, node=self._node, seq=self._next(), event=Event.CLOSED)
        )
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._aside, self._folder / sealed_name(1, self._seq))
        sync_folder(self._folder)

    def write(self, portion: Portion, answer: Loaded) -> None:
        """An entry per job of the step."""
        assert self._file is not None
        self._latest = max(self._latest, answer.at)
        if (lines := self._plain_lines(portion, answer)) is not None:
            self._file.write(b"".join(lines))
            return
        jobs = portion.columns.jobs(answer.step.first, answer.step.last)
        if answer.moved:
            for job, moved in zip(jobs, answer.moved, strict=True):
                self._append(self._entry(portion.queue, job, moved, answer.at))
        else:
            for job in jobs:
                moved = Moved(Event.ACCEPTED, job.id, answer.born, 0, job.due_at or 0)
                self._append(self._entry(portion.queue, job, moved, answer.at))

    def _plain_lines(self, portion: Portion, answer: Loaded) -> Iterator[bytes] | None:
        """The lines of a step whose jobs were all accepted and differ in id, due time and text only; None for others.

        Put together from bytes: a million entries would take as long as pushing their jobs.
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

    def _entry(self, queue: Queue, job: NewJob, moved: Moved, at: int) -> Entry:
        return Entry(
            ts=at,
            wrote_at=at,
            node=self._node,
            seq=self._next(),
            event=moved.event,
            pool=self._options.pool,
            namespace=queue.namespace,
            queue=queue.name,
            id=moved.id,
            born=moved.born,
            attempt=moved.attempt,
            due_at=moved.due_at,
            reason=moved.reason,
            batch=self._options.batch,
            was=moved.was,
            **(_whole(job) if moved.event is Event.ACCEPTED else {}),
        )

    def _append(self, entry: Entry) -> None:
        assert self._file is not None
        self._file.write(write_line(entry))

    def _next(self) -> int:
        self._seq += 1
        return self._seq


def _whole(job: NewJob) -> dict[str, Any]:
    """What it takes to push the job again."""
    return {
        "priority": int(job.priority),
        "ttl": job.ttl_ms,
        "tries": job.tries,
        "attributes": job.attributes,
        **body_fields(job.body),
    }

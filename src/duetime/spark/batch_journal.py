"""The journal of a batch that goes straight into a store: the accepted rows as entries, as a server would write them.

Each accepted file is a node of its own, `batch-<batch>-<number>`, with one sealed segment that ends with `closed`. What
is in it follows from the file and from what the marks remember; so a task that runs again writes the same entries, and
replaces the segment with itself. Store first, then the journal, then the task's answer: a task that dies in between
runs again. The folder must be reachable from the executors. Runs on executors.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from duetime.job import Event, Moved, NewJob
from duetime.journal.events import Entry, body_fields
from duetime.journal.lines import write_line
from duetime.journal.segments import sealed_name, sync_folder
from duetime.names import Queue
from duetime.spark.chunks import Portion
from duetime.spark.load_options import LoadOptions
from duetime.stores.bulk import Loaded


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
        self._latest = max(self._latest, answer.at)
        jobs = portion.columns.jobs(answer.step.first, answer.step.last)
        if answer.moved:
            for job, moved in zip(jobs, answer.moved, strict=True):
                self._append(self._entry(portion.queue, job, moved, answer.at))
        else:
            for job in jobs:
                moved = Moved(Event.ACCEPTED, job.id, answer.born, 0, job.due_at or 0)
                self._append(self._entry(portion.queue, job, moved, answer.at))

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

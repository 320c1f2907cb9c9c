"""Actions on many jobs: done in steps beside the request, with their progress and what undoes them in the registry.

A run is one record. What undoes it is another, compressed, which is written when the run has ended and only if it is
small; both are deleted after an hour. So any process of the server can show a run and undo it, also after a restart.
"""

import asyncio
import logging
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from duetime.console.job_lines import job_line, read_job_line
from duetime.engine.engine import Engine
from duetime.model.errors import DuetimeError
from duetime.model.job import STEP_BYTES, STEP_JOBS, IfExists, Job, Moved, NewJob, State, payload_bytes
from duetime.model.names import Queue
from duetime.stores.registry import Registry

log = logging.getLogger("duetime.console")

RUNS = "console-bulk"
UNDO = "console-undo"
KEPT_S = 3600
MOST_UNDO = 1_048_576
"""The largest record that undoes a run; jobs with more, compressed, cannot be brought back from here."""
VERBS = ("cancel", "run-now", "reschedule")
UNDOABLE = (State.DELAYED, State.READY)


class BulkRun(msgspec.Struct, frozen=True):
    """`done` of `total` jobs were asked for, `changed` of them were changed. `state`: running, done, failed, undone.

    `has_more`: more jobs fitted the filter than one run acts on.
    """

    id: str
    user: str
    pool: str
    queue: Queue
    verb: str
    of_state: State
    total: int
    started_at: float
    done: int = 0
    changed: int = 0
    state: str = "running"
    can_undo: bool = False
    has_more: bool = False
    problem: str = ""


class BulkRuns:
    def __init__(self, registry: Callable[[], Registry]) -> None:
        self._registry = registry
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, run_id: str) -> BulkRun | None:
        record = await self._registry().get(RUNS, run_id)
        return msgspec.json.decode(record.value, type=BulkRun) if record else None

    async def start(self, run: BulkRun, engine: Engine, jobs: Sequence[Job], due: Mapping[str, int]) -> None:
        """Begin a run. One that is a single step is over when this returns; others go on by themselves."""
        await self._delete_old()
        await self._write(run)
        task = asyncio.create_task(self._act(run, engine, jobs, due))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if len(jobs) <= STEP_JOBS:
            await asyncio.wait({task})

    async def _act(self, run: BulkRun, engine: Engine, jobs: Sequence[Job], due: Mapping[str, int]) -> None:
        undo = UndoWriter() if run.of_state in UNDOABLE else None
        try:
            async for step, answers in self._steps(run, engine, jobs, due):
                changed = [job for job, moved in zip(step, answers, strict=True) if isinstance(moved, Moved)]
                if undo is not None:
                    await asyncio.to_thread(undo.add, run.verb, changed)
                run = msgspec.structs.replace(run, done=run.done + len(step), changed=run.changed + len(changed))
                if run.done < run.total:
                    await self._write(run)
            can_undo = bool(run.changed) and undo is not None and await self._keep_undo(run, undo)
            await self._write(msgspec.structs.replace(run, done=run.total, state="done", can_undo=can_undo))
        except DuetimeError as error:
            log.warning("bulk_failed", extra={"run": run.id, "error": error.message})
            try:
                await self._write(msgspec.structs.replace(run, state="failed", problem=error.message))
            except DuetimeError:
                return  # the registry is away, too; the page shows how far the run was

    async def _steps(
        self, run: BulkRun, engine: Engine, jobs: Sequence[Job], due: Mapping[str, int]
    ) -> AsyncIterator[tuple[Sequence[Job], Sequence[Moved | DuetimeError | None]]]:
        """Each step's jobs and what became of them. Jobs that are cancelled come whole, so that they can be undone."""
        ids = [job.id for job in jobs]
        while ids:
            if run.verb == "cancel":
                found = await engine.store.get(run.queue, ids[:STEP_JOBS])
                step, ids = [job for job in found if job is not None], ids[len(found) :]
                yield step, await engine.cancel(run.queue, [job.id for job in step])
            else:
                step, ids, jobs = jobs[:STEP_JOBS], ids[STEP_JOBS:], jobs[STEP_JOBS:]
                yield step, await engine.reschedule(run.queue, [job.id for job in step], **due)

    async def undo(self, run: BulkRun, engine: Engine) -> int:
        """Bring cancelled jobs back under their ids, or give jobs their old due times; answers for how many it worked.

        An id that was pushed again meanwhile keeps its new job.
        """
        record = await self._registry().get(UNDO, run.id)
        if record is None:
            return 0
        await self._registry().delete(UNDO, run.id)
        lines = _read_lines(record.value)
        undone = await (_push_again if run.verb == "cancel" else _move_back)(engine, run.queue, lines)
        await self._write(msgspec.structs.replace(run, state="undone", can_undo=False, changed=undone))
        return undone

    async def _keep_undo(self, run: BulkRun, undo: "UndoWriter") -> bool:
        if (value := undo.finish()) is None:
            return False
        await self._registry().put(UNDO, run.id, value)
        return True

    async def _write(self, run: BulkRun) -> None:
        await self._registry().put(RUNS, run.id, msgspec.json.encode(run))

    async def _delete_old(self) -> None:
        for record in await self._registry().list_records(RUNS):
            if msgspec.json.decode(record.value, type=BulkRun).started_at < time.time() - KEPT_S:
                await self._registry().delete(UNDO, record.key)
                await self._registry().delete(RUNS, record.key)


class UndoWriter:
    """Collects what undoes a run, compressed, unless it grows too large."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj()
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, verb: str, changed: Sequence[Job]) -> None:
        now = int(time.time() * 1000)
        for job in changed:
            if self._size > MOST_UNDO:
                self._parts.clear()
                return
            line = job_line(job, now) if verb == "cancel" else msgspec.json.encode((job.id, job.due_at)) + b"\n"
            self._append(self._compressor.compress(line))

    def finish(self) -> bytes | None:
        """None if there is too much."""
        self._append(self._compressor.flush())
        return b"".join(self._parts) if self._size <= MOST_UNDO else None

    def _append(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)


def _read_lines(value: bytes) -> Iterator[bytes]:
    """The lines of an UndoWriter, a few of them in memory at a time."""
    decompressor, rest = zlib.decompressobj(), b""
    while not decompressor.eof:
        rest += decompressor.decompress(value, STEP_BYTES)
        value = decompressor.unconsumed_tail
        *lines, rest = rest.split(b"\n")
        yield from lines


async def _push_again(engine: Engine, queue: Queue, lines: Iterator[bytes]) -> int:
    pushed = 0
    for step in _steps(read_job_line(line) for line in lines):
        answer = await engine.push(queue, step, if_exists=IfExists.KEEP)
        pushed += sum(moved.event == "accepted" for moved in answer.jobs)
    return pushed


def _steps(jobs: Iterable[NewJob]) -> Iterator[list[NewJob]]:
    step: list[NewJob] = []
    size = 0
    for job in jobs:
        more = payload_bytes(job)
        if step and (len(step) == STEP_JOBS or size + more > STEP_BYTES):
            yield step
            step, size = [], 0
        step.append(job)
        size += more
    if step:
        yield step


async def _move_back(engine: Engine, queue: Queue, lines: Iterator[bytes]) -> int:
    by_due: dict[int, list[str]] = {}
    for line in lines:
        job_id, due_at = msgspec.json.decode(line, type=tuple[str, int])
        by_due.setdefault(due_at, []).append(job_id)
    moved = 0
    for due_at, ids in by_due.items():
        moved += sum(isinstance(one, Moved) for one in await engine.reschedule(queue, ids, due_at=due_at))
    return moved

"""Actions on many jobs: done in steps beside the request, with their progress and what undoes them in the registry.

A run is one record. What undoes it is another, compressed, which is written when the run has ended and only if it is
small; both are deleted after an hour. So any process of the server can show a run and undo it, also after a restart.
"""

import asyncio
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from duetime.console.job_lines import job_line, read_job_line
from duetime.engine.engine import Engine
from duetime.errors import DuetimeError
from duetime.job import STEP_BYTES, STEP_JOBS, IfExists, Job, Moved, NewJob, State, payload_bytes
from duetime.names import Queue
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
        changed: list[Job] = []
        try:
            for at in range(0, len(jobs), STEP_JOBS):
                step = jobs[at : at + STEP_JOBS]
                ids = [job.id for job in step]
                answers: Sequence[Moved | DuetimeError | None]
                if run.verb == "cancel":
                    answers = await engine.cancel(run.queue, ids)
                else:
                    answers = await engine.reschedule(run.queue, ids, **due)
                changed += [job for job, moved in zip(step, answers, strict=True) if isinstance(moved, Moved)]
                run = msgspec.structs.replace(run, done=at + len(step), changed=len(changed))
                if run.done < run.total:
                    await self._write(run)
            can_undo = run.of_state in UNDOABLE and bool(changed) and await self._keep_undo(run, changed)
            await self._write(msgspec.structs.replace(run, state="done", can_undo=can_undo))
        except DuetimeError as error:
            log.warning("bulk_failed", extra={"run": run.id, "error": error.message})
            try:
                await self._write(msgspec.structs.replace(run, state="failed", problem=error.message))
            except DuetimeError:
                return  # the registry is away, too; the page shows how far the run was

    async def undo(self, run: BulkRun, engine: Engine) -> int:
        """Bring cancelled jobs back under their ids, or give jobs their old due times; answers for how many it worked.

        An id that was pushed again meanwhile keeps its new job.
        """
        record = await self._registry().get(UNDO, run.id)
        if record is None:
            return 0
        await self._registry().delete(UNDO, run.id)
        lines = zlib.decompress(record.value).splitlines()
        undone = await (_push_again if run.verb == "cancel" else _move_back)(engine, run.queue, lines)
        await self._write(msgspec.structs.replace(run, state="undone", can_undo=False, changed=undone))
        return undone

    async def _keep_undo(self, run: BulkRun, changed: Sequence[Job]) -> bool:
        now = int(time.time() * 1000)
        if run.verb == "cancel":
            lines = [job_line(job, now) for job in changed]
        else:
            lines = [msgspec.json.encode((job.id, job.due_at)) + b"\n" for job in changed]
        value = await asyncio.to_thread(zlib.compress, b"".join(lines))
        if len(value) > MOST_UNDO:
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


async def _push_again(engine: Engine, queue: Queue, lines: Sequence[bytes]) -> int:
    pushed = 0
    for step in _steps([read_job_line(line) for line in lines]):
        answer = await engine.push(queue, step, if_exists=IfExists.KEEP)
        pushed += sum(moved.event == "accepted" for moved in answer.jobs)
    return pushed


def _steps(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
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


async def _move_back(engine: Engine, queue: Queue, lines: Sequence[bytes]) -> int:
    by_due: dict[int, list[str]] = {}
    for line in lines:
        job_id, due_at = msgspec.json.decode(line, type=tuple[str, int])
        by_due.setdefault(due_at, []).append(job_id)
    moved = 0
    for due_at, ids in by_due.items():
        moved += sum(isinstance(one, Moved) for one in await engine.reschedule(queue, ids, due_at=due_at))
    return moved

"""Actions on many jobs: done in steps after the request, with their progress and what undoes them in the registry.

A run is one record. What undoes it is another, compressed, which is written when the run has ended and only if it is
small; both are deleted after an hour. So any process of the server can show a run and undo it, also after a restart.
"""

import asyncio
import logging
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import msgspec
from msgspec import Struct

from duetime.console.job_lines import job_line, read_job_line
from duetime.engine.engine import Engine
from duetime.engine.recorder import StoreCall
from duetime.model.clock import MAX_INSTANT
from duetime.model.errors import DuetimeError
from duetime.model.job import STEP_BYTES, STEP_JOBS, IfExists, Job, Moved, NewJob, Reason, State, payload_bytes
from duetime.model.names import Queue
from duetime.stores.base import Withdrawal
from duetime.stores.registry import Registry

log = logging.getLogger("duetime.console")

RUNS = "console-bulk"
UNDO = "console-undo"
KEPT_S = 3600
MOST_UNDO = 1_048_576
"""The largest record that undoes a run; jobs with more, compressed, cannot be brought back from here."""
VERBS = ("run-now", "reschedule", "cancel")
DEAD_VERBS = ("retry", "delete")
UNDOABLE = (State.DELAYED, State.READY, State.DEAD)

Place = tuple[str, Queue]
Work = Sequence[tuple[Place, Sequence[Job]]]


class BulkRun(Struct, frozen=True):
    """`done` of `total` jobs were asked for, `changed` of them were changed. `state`: running, done, failed, undone.

    `has_more`: more jobs fitted the filter than one run acts on. `back` is the page that the run was begun from.
    """

    id: str
    user: str
    places: list[Place]
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
    back: str = ""

    @property
    def subject(self) -> str:
        """The queue, or how many there are."""
        return str(self.places[0][1]) if len(self.places) == 1 else ""


class UndoneDeath(Struct, array_like=True, frozen=True):
    """A dead letter that was retried: where it waits now, and what it had died of."""

    id: str
    born: int
    due_at: int
    reason: str
    error: str


class DeletedDeath(Struct, array_like=True, frozen=True):
    job: msgspec.Raw
    reason: str
    error: str


class BulkRuns:
    """`engine_of` opens a pool."""

    def __init__(self, registry: Callable[[], Registry], engine_of: Callable[[str], Engine]) -> None:
        self._registry = registry
        self._engine_of = engine_of
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, run_id: str) -> BulkRun | None:
        record = await self._registry().get(RUNS, run_id)
        return msgspec.json.decode(record.value, type=BulkRun) if record else None

    async def start(self, run: BulkRun, work: Work, due: Mapping[str, int] | None = None) -> BulkRun:
        """Begin a run. One that is a single step is over when this returns; others go on by themselves."""
        await self._delete_old()
        await self._write(run)
        task = asyncio.create_task(self._act(run, work, due or {}))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if run.total <= STEP_JOBS:
            await asyncio.wait({task})
        return await self.read(run.id) or run

    async def _act(self, run: BulkRun, work: Work, due: Mapping[str, int]) -> None:
        undo = UndoWriter() if run.of_state in UNDOABLE else None
        try:
            for number, (place, jobs) in enumerate(work):
                async for step, answers in self._steps(run.verb, place, jobs, due):
                    pairs = [(job, one) for job, one in zip(step, answers, strict=True) if isinstance(one, Moved)]
                    if undo is not None:
                        await asyncio.to_thread(undo.add, run.verb, number, pairs)
                    run = msgspec.structs.replace(run, done=run.done + len(step), changed=run.changed + len(pairs))
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
        self, verb: str, place: Place, jobs: Sequence[Job], due: Mapping[str, int]
    ) -> AsyncIterator[tuple[Sequence[Job], Sequence[Moved | DuetimeError | None]]]:
        """Each step's jobs and what became of them. Jobs that are removed come whole, so that they can be undone."""
        queue, engine = place[1], self._engine_of(place[0])
        ids = [job.id for job in jobs]
        while ids:
            if verb in ("reschedule", "run-now"):
                step, ids, jobs = jobs[:STEP_JOBS], ids[STEP_JOBS:], jobs[STEP_JOBS:]
                yield step, await engine.reschedule(queue, [job.id for job in step], **due)
                continue
            found = await engine.store.get(queue, ids[:STEP_JOBS])
            step, ids = [job for job in found if job is not None], ids[len(found) :]
            if verb in DEAD_VERBS:  # a job that was retried meanwhile is left alone
                step = [job for job in step if job.state is State.DEAD]
            chosen = [job.id for job in step]
            if verb != "retry":
                yield step, await engine.cancel(queue, chosen)
                continue
            moved = {one.id: one for one in await engine.respawn(queue, ids=chosen)}
            yield step, [moved.get(job_id) for job_id in chosen]

    async def undo(self, run: BulkRun) -> int:
        """Bring removed jobs back under their ids, give moved jobs their old due times, and return retried jobs that
        have not run yet to the dead letters. Answers for how many it worked.

        An id that was pushed again meanwhile keeps its new job.
        """
        record = await self._registry().get(UNDO, run.id)
        if record is None:
            return 0
        await self._registry().delete(UNDO, run.id)
        undone = 0
        act = {"cancel": _push_again, "retry": _bury_again, "delete": _push_dead}.get(run.verb, _move_back)
        for number, lines in _by_place(_read_lines(record.value)):
            pool, queue = run.places[number]
            undone += await act(self._engine_of(pool), queue, lines)
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
    """Collects what undoes a run, compressed, unless it grows too large. A line is the number of its queue, a blank
    and what the verb needs.
    """

    def __init__(self) -> None:
        self._compressor = zlib.compressobj()
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, verb: str, place: int, changed: Sequence[tuple[Job, Moved]]) -> None:
        now = int(time.time() * 1000)
        for job, moved in changed:
            if self._size > MOST_UNDO:
                self._parts.clear()
                return
            self._append(self._compressor.compress(b"%d %b" % (place, _undo_line(verb, job, moved, now))))

    def finish(self) -> bytes | None:
        """None if there is too much."""
        self._append(self._compressor.flush())
        return b"".join(self._parts) if self._size <= MOST_UNDO else None

    def _append(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)


def _undo_line(verb: str, job: Job, moved: Moved, now: int) -> bytes:
    match verb:
        case "cancel":
            return job_line(job, now)
        case "retry":
            line = UndoneDeath(job.id, job.born, moved.due_at, job.reason, job.error)
        case "delete":
            line = DeletedDeath(msgspec.Raw(job_line(job, now).strip()), job.reason, job.error)
        case _:
            line = (job.id, job.due_at)
    return msgspec.json.encode(line) + b"\n"


def _read_lines(value: bytes) -> Iterator[bytes]:
    """The lines of an UndoWriter, a few of them in memory at a time."""
    decompressor, rest = zlib.decompressobj(), b""
    while not decompressor.eof:
        rest += decompressor.decompress(value, STEP_BYTES)
        value = decompressor.unconsumed_tail
        *lines, rest = rest.split(b"\n")
        yield from lines


def _by_place(lines: Iterator[bytes]) -> Iterator[tuple[int, Iterator[bytes]]]:
    """The lines of each queue, by its number. Those of a queue follow each other; read them before the next ones."""
    for number, found in groupby(lines, key=lambda line: line.partition(b" ")[0]):
        yield int(number), (line.partition(b" ")[2] for line in found)


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


async def _bury_again(engine: Engine, queue: Queue, lines: Iterator[bytes]) -> int:
    """Only jobs that still wait as the retry left them; one that runs or has run is left alone."""
    dead = [msgspec.json.decode(line, type=UndoneDeath) for line in lines]
    return await _bury(
        engine, queue, [Withdrawal(one.id, one.born, one.due_at, _reason(one.reason), one.error) for one in dead]
    )


async def _push_dead(engine: Engine, queue: Queue, lines: Iterator[bytes]) -> int:
    """Push with a due time that never comes, so that no consumer can take the jobs, and bury them."""
    deaths: dict[str, DeletedDeath] = {}

    def jobs() -> Iterator[NewJob]:
        for line in lines:
            death = msgspec.json.decode(line, type=DeletedDeath)
            job = read_job_line(bytes(death.job))
            deaths[job.id] = death
            yield msgspec.structs.replace(job, due_at=MAX_INSTANT, delay_ms=0, ttl_ms=0)

    buried = 0
    for step in _steps(jobs()):
        answer = await engine.push(queue, step, if_exists=IfExists.KEEP)
        accepted = [moved for moved in answer.jobs if moved.event == "accepted"]
        buried += await _bury(
            engine,
            queue,
            [
                Withdrawal(one.id, one.born, MAX_INSTANT, _reason(deaths[one.id].reason), deaths[one.id].error)
                for one in accepted
            ],
        )
        deaths.clear()
    return buried


def _reason(text: str) -> Reason:
    return Reason(text) if text in set(Reason) else Reason.KILLED


async def _bury(engine: Engine, queue: Queue, withdrawals: Sequence[Withdrawal]) -> int:
    """Send waiting jobs to the dead letters; recorded like a cancel, by what moved."""
    buried = 0
    for at in range(0, len(withdrawals), STEP_JOBS):
        part = withdrawals[at : at + STEP_JOBS]
        call = StoreCall("cancel", queue, [one.id for one in part])
        answers = await engine.recorders.run_alone(call, lambda part=part: engine.store.withdraw(queue, part))
        buried += sum(isinstance(one, Moved) for one in answers)
    return buried

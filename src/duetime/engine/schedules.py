"""Schedules: jobs that are pushed again and again, at an interval or by a cron expression.

A schedule is one job, its *tick*, due at the next run; the body of the tick is the schedule. A process that leases a
due tick pushes the job of the run, and then replaces the tick by the next one in the step that acks it. The job of a
run has the id `name@instant` and a mark that outlives it, so two processes that see one tick, or one that dies in
between, push it once. The body holds the instant of the run, because the due time of a tick moves when its lease
expires.

There are two kinds. The ticks of schedules that an App declares are in the queue `duetime.recurring` of its namespace;
its workers run them, because only they know the task (`worker/recurring.py`). The ticks of schedules that were made
with the API are in one queue per pool, `SCHEDULES`; a `ScheduleRunner` in every server, and in every worker that uses
the store directly, runs them. `Schedules` is what the API, the console and the SDK call; it shows both kinds alike.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from duetime.duties import Rounds, run_duty
from duetime.model.clock import MAX_INSTANT, Clock, SystemClock, duration_ms
from duetime.model.errors import (
    NOT_JSON,
    DuetimeError,
    InvalidRequest,
    InvalidTime,
    LeaseLost,
    ScheduleDeclared,
    ScheduleNotFound,
)
from duetime.model.job import (
    DEFAULT_TRIES,
    MAX_BODY,
    Delivery,
    IfExists,
    Job,
    NewJob,
    Priority,
    State,
    check_job,
    chunks,
)
from duetime.model.names import MAX_ID, Queue, check_id, check_queue
from duetime.model.schedules import Missed, Overlap, SchedulePlan, cron, every, parse, plan, runs_between
from duetime.stores.base import Finish, Mark, Pushed, get_all, list_all
from duetime.wire.convert import PRIORITY_OUT, read_body, write_body
from duetime.wire.messages import BackfillOut, JobScheduleIn, ScheduleOut
from duetime.wire.payload import TICKS, Payload, write

if TYPE_CHECKING:
    from duetime.engine.engine import Engine
    from duetime.engine.pools import Pools

log = logging.getLogger("duetime.schedules")

SCHEDULES = Queue("duetime", "duetime.schedules")
"""The ticks of all schedules of a pool that were made with the API. The id of a tick is `namespace/name`."""
TTR_MS = 30_000
POLL_S = 2.0
"""How long a runner rests if no tick is due earlier: schedules that other processes make are found this late."""
PAUSE_MS = 5_000
"""How long a tick waits whose run was refused."""
MARK_LIFE_MS = 7 * 86_400_000
MAX_SCHEDULE_NAME = MAX_ID - len("@1700000000000")
MOST_BACKFILL = 500
AT_A_TIME = 100
"""How many jobs of last runs are in memory at a time."""
TICK_STATES = (State.LEASED, State.READY, State.DELAYED)


class Tick(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The body of a tick. `run_at` is the first run that it is for, `last_at` the last run that was pushed.
    `asked_at` is a run that was asked for in addition to the schedule. `body` of a task are its arguments.
    """

    schedule: str
    missed: Missed
    queue: str
    run_at: int
    task: str = ""
    namespace: str = ""
    name: str = ""
    body: bytes = b""
    ttl_ms: int = 0
    tries: int = DEFAULT_TRIES
    priority: Priority = Priority.NORMAL
    attributes: dict[str, str] = {}
    overlap: Overlap = "allow"
    paused: bool = False
    last_at: int = 0
    asked_at: int = 0

    def job(self, tick_id: str) -> NewJob:
        """The tick as a job. A paused one is never due."""
        due_at = MAX_INSTANT if self.paused else self.asked_at or self.run_at
        return NewJob(tick_id, msgspec.json.encode(self), due_at=due_at, tries=0)

    def plan(self, now: int) -> SchedulePlan:
        """The runs to push now, oldest first, and the next run."""
        if self.asked_at:
            return SchedulePlan((self.asked_at,), self.run_at)
        return plan(parse(self.schedule), self.missed, self.run_at, now)

    def following(self, next_at: int, last_at: int) -> "Tick":
        """The tick after this one was handled."""
        return structs.replace(self, run_at=next_at, last_at=last_at, asked_at=0)


def read_tick(body: bytes) -> Tick | None:
    """Returns None if the body is not a tick, because any producer may push to the queue of ticks."""
    try:
        tick = msgspec.json.decode(body, type=Tick)
        check_id(run_id(tick.name, tick.last_at))
        check_queue("any", tick.queue)
        with suppress(InvalidTime):  # of a time zone that this machine does not know; another one may
            parse(tick.schedule)
        if tick.task:
            msgspec.json.decode(tick.body or b"{}", type=dict[str, Raw])
    except (*NOT_JSON, DuetimeError):
        return None
    return tick


def run_id(name: str, run_at: int) -> str:
    return f"{name}@{run_at}"


def run_mark(name: str, run_at: int) -> Mark:
    job_id = run_id(name, run_at)
    return Mark(job_id, job_id.encode(), MARK_LIFE_MS)


# --- the service


class Schedules:
    """The schedules of the namespaces of one engine, for the API, the console and the SDK.

    Schedules that an App declares are listed, paused, resumed, run and removed like others; `put` refuses to change
    them. One that is removed comes back with the next worker that declares it.
    """

    def __init__(self, engine: "Engine", clock: Clock | None = None) -> None:
        self._engine = engine
        self._clock = clock or SystemClock()

    async def list_schedules(self, namespace: str) -> list[ScheduleOut]:
        """All schedules of the namespace by name."""
        return await self.list_of([namespace], lambda one: one == namespace)

    async def list_of(self, declared: Iterable[str], sees: Callable[[str], bool]) -> list[ScheduleOut]:
        """By name: the schedules that programs declare in these namespaces, and others in namespaces that `sees`
        accepts.
        """
        found = [
            (job, tick, queue.namespace if queue != SCHEDULES else tick.namespace)
            for queue in (SCHEDULES, *(Queue(namespace, TICKS) for namespace in declared))
            async for job, tick in self._ticks(queue)
            if queue != SCHEDULES or sees(tick.namespace)
        ]
        ids: dict[Queue, list[str]] = {}
        for job, tick, namespace in found:
            if tick.last_at:
                ids.setdefault(Queue(namespace, tick.queue), []).append(_last_id(job, tick))
        last = {
            (queue, one.id): one.state
            for queue, wanted in ids.items()
            for some in chunks(sorted(set(wanted)), AT_A_TIME)
            for one in await get_all(self._engine.store, queue, some)
            if one is not None
        }
        shown = [
            _show(job, tick, namespace, last.get((Queue(namespace, tick.queue), _last_id(job, tick))))
            for job, tick, namespace in found
        ]
        return sorted(shown, key=lambda one: one.name)

    async def get(self, namespace: str, name: str) -> ScheduleOut:
        """Raises ScheduleNotFound."""
        return await self._show(*await self._find(namespace, name), namespace)

    async def put(self, namespace: str, name: str, message: JobScheduleIn) -> ScheduleOut:
        """Make a schedule, or replace the one of this name; a paused one stays paused. Repeatable. Raises
        InvalidRequest, InvalidTime, ScheduleDeclared.
        """
        tick_id = f"{namespace}/{name}"
        if len(name) > MAX_SCHEDULE_NAME or len(tick_id) > MAX_ID:
            raise InvalidRequest(
                f"schedule name must have at most {MAX_SCHEDULE_NAME} characters, and at most {MAX_ID - 1} together "
                f"with its namespace, got {name!r}"
            )
        tick = self._tick(namespace, check_id(name, "schedule name"), message)
        try:
            job, before = await self._find(namespace, name)
        except ScheduleNotFound:
            pass
        else:
            if job.queue != SCHEDULES:
                raise ScheduleDeclared(f"schedule {name!r} is declared by a program: change it there")
            # A run that is due in this moment must not get lost because an equal schedule was put again.
            run_at = before.run_at if before.schedule == tick.schedule else tick.run_at
            tick = structs.replace(tick, run_at=run_at, paused=before.paused, last_at=before.last_at)
        return await self._replace(SCHEDULES, tick_id, tick, namespace)

    async def delete(self, namespace: str, name: str) -> ScheduleOut:
        """Remove a schedule; jobs of its runs stay. Answers the schedule as it was. Raises ScheduleNotFound."""
        job, tick = await self._find(namespace, name)
        shown = await self._show(job, tick, namespace)
        await self._engine.cancel(job.queue, [job.id])
        return shown

    async def run(self, namespace: str, name: str) -> ScheduleOut:
        """Run a schedule now, independent of its times and even if it is paused. Raises ScheduleNotFound."""
        job, tick = await self._find(namespace, name)
        now = self._clock.now_ms()
        if job.queue == SCHEDULES:
            await push_run(self._engine, tick, now)
            return await self._replace(job.queue, job.id, structs.replace(tick, last_at=now), namespace)
        if tick.paused:
            raise InvalidRequest(f"schedule {name!r} is declared by a program and paused: resume it first")
        # Only a worker of the program knows how to make the job.
        return await self._replace(job.queue, job.id, structs.replace(tick, asked_at=now), namespace)

    async def backfill(self, namespace: str, name: str, since: int, until: int | None = None) -> BackfillOut:
        """Push the runs of a span of the past, from `since` on and before `until` (epoch ms, or now), at most
        MOST_BACKFILL. Each job has the due time of its run. A run that was pushed in the last seven days is not pushed
        again, so that this can be repeated; with `overlap = "skip"` each call pushes the next run if the one before it
        has finished. Raises ScheduleNotFound, InvalidRequest.
        """
        job, tick = await self._find(namespace, name)
        if job.queue != SCHEDULES:
            raise InvalidRequest(f"schedule {name!r} is declared by a program: only its workers can make its jobs")
        now = self._clock.now_ms()
        until = now if until is None else until
        if not since < until <= now + 1:
            raise InvalidRequest("`since` must be before `until`, and `until` must not be in the future")
        runs = list(islice(runs_between(parse(tick.schedule), since, until), MOST_BACKFILL + 1))
        if len(runs) > MOST_BACKFILL:
            raise InvalidRequest(f"the span must have at most {MOST_BACKFILL} runs: choose a shorter one")
        _, pushed = await push_runs(self._engine, tick, runs)
        return BackfillOut(runs=len(runs), pushed=pushed)

    async def pause(self, namespace: str, name: str) -> ScheduleOut:
        """Start no runs until it is resumed. Raises ScheduleNotFound."""
        job, tick = await self._find(namespace, name)
        return await self._replace(job.queue, job.id, structs.replace(tick, paused=True), namespace)

    async def resume(self, namespace: str, name: str) -> ScheduleOut:
        """Resume with the next run; runs that fell into the pause are skipped. Raises ScheduleNotFound."""
        job, tick = await self._find(namespace, name)
        if tick.paused:
            run_at = parse(tick.schedule).after(self._clock.now_ms())
            tick = structs.replace(tick, paused=False, run_at=run_at)
        return await self._replace(job.queue, job.id, tick, namespace)

    def _tick(self, namespace: str, name: str, message: JobScheduleIn) -> Tick:
        if (message.every is UNSET) == (message.cron is UNSET):
            raise InvalidRequest("schedule must have either `every` or `cron`")
        chosen = every(message.every) if message.every is not UNSET else cron(message.cron or "", message.tz)
        body = read_body(message.body, message.body_b64)
        if message.task is UNSET and message.arguments is not UNSET:
            raise InvalidRequest("`arguments` must come with a `task`")
        if message.task is not UNSET:
            if (message.body, message.body_b64) != (UNSET, UNSET):
                raise InvalidRequest.not_both("task", "body")
            body = msgspec.json.encode({} if message.arguments is UNSET else message.arguments)
        tick = Tick(
            namespace=namespace,
            name=name,
            schedule=chosen.text,
            run_at=chosen.after(self._clock.now_ms()),
            queue=check_queue(namespace, message.queue).name,
            task="" if message.task is UNSET else message.task,
            body=body,
            ttl_ms=duration_ms(message.ttl),
            tries=message.tries,
            priority=Priority[message.priority.upper()],
            attributes=message.attributes,
            missed=message.missed,
            overlap=message.overlap,
        )
        check_job(run_job(tick, tick.run_at), max_body=MAX_BODY)
        return tick

    async def _find(self, namespace: str, name: str) -> tuple[Job, Tick]:
        check_id(name, "schedule name")
        for queue, tick_id in ((SCHEDULES, f"{namespace}/{name}"), (Queue(namespace, TICKS), name)):
            [job] = await self._engine.store.get(queue, [tick_id]) if len(tick_id) <= MAX_ID else [None]
            tick = None if job is None or job.state is State.DEAD else read_tick(job.body)
            if job is not None and tick is not None:
                return job, tick
        raise ScheduleNotFound(f"there is no schedule {name!r} in {namespace}", name=name)

    async def _ticks(self, queue: Queue) -> AsyncIterator[tuple[Job, Tick]]:
        for state in TICK_STATES:
            async for jobs in list_all(self._engine.store, queue, state):
                for job in jobs:
                    if (tick := read_tick(job.body)) is not None:
                        yield job, tick

    async def _replace(self, queue: Queue, tick_id: str, tick: Tick, namespace: str) -> ScheduleOut:
        """A process that is running the old tick loses its lease, and cannot put it back."""
        await self._engine.push(queue, [tick.job(tick_id)], if_exists=IfExists.REPLACE)
        [job] = await self._engine.store.get(queue, [tick_id])
        if job is None:
            raise ScheduleNotFound(f"schedule {tick_id!r} was removed during the change")
        return await self._show(job, read_tick(job.body) or tick, namespace)

    async def _show(self, job: Job, tick: Tick, namespace: str) -> ScheduleOut:
        last = None
        if tick.last_at:
            [last] = await self._engine.store.get(Queue(namespace, tick.queue), [_last_id(job, tick)])
        return _show(job, tick, namespace, last.state if last else None)


def _last_id(job: Job, tick: Tick) -> str:
    return run_id(tick.name or job.id, tick.last_at)


def _show(job: Job, tick: Tick, namespace: str, last: State | None) -> ScheduleOut:
    """`last` is the state of the job of the last run, if it is still there."""
    body, body_b64 = (UNSET, UNSET) if tick.task else write_body(tick.body)
    return ScheduleOut(
        namespace=namespace,
        name=tick.name or job.id,
        schedule=tick.schedule,
        queue=tick.queue,
        task=tick.task,
        missed=tick.missed,
        overlap=tick.overlap,
        paused=tick.paused,
        declared=job.queue != SCHEDULES,
        next_at=0 if tick.paused else tick.asked_at or tick.run_at,
        last_at=tick.last_at,
        last_id=_last_id(job, tick) if tick.last_at else "",
        last_state=last or "",
        arguments=msgspec.json.decode(tick.body, type=dict[str, Raw]) if tick.task and tick.body else {},
        body=body,
        body_b64=body_b64,
        ttl_ms=tick.ttl_ms,
        tries=tick.tries,
        priority=PRIORITY_OUT[tick.priority],
        attributes=tick.attributes,
    )


# --- runs


def run_job(tick: Tick, run_at: int) -> NewJob:
    """The job of one run of a schedule that was made with the API."""
    job_id, body = run_id(tick.name, run_at), tick.body
    if tick.task:
        payload = Payload(
            displayName=tick.task,
            name=tick.task,
            data=Raw(tick.body),
            uuid=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{tick.namespace}/{job_id}")),
            maxTries=tick.tries,
            createdAt=run_at // 1000,
        )
        body = write(payload)
    return NewJob(
        job_id,
        body,
        due_at=run_at,
        ttl_ms=tick.ttl_ms,
        tries=tick.tries,
        priority=tick.priority,
        attributes=tick.attributes,
    )


async def push_run(engine: "Engine", tick: Tick, run_at: int) -> Pushed:
    """Repeatable: a run is pushed once."""
    queue = Queue(tick.namespace, tick.queue)
    return await engine.push(queue, [run_job(tick, run_at)], mark=run_mark(tick.name, run_at))


async def push_runs(engine: "Engine", tick: Tick, runs: Iterable[int]) -> tuple[int, int]:
    """Push runs, oldest first, each once; with `overlap = "skip"` none while the one before it is unfinished. Returns
    the last run that has a job or had one, and how many were pushed now.
    """
    last_at, pushed = tick.last_at, 0
    for run_at in runs:
        if tick.overlap == "skip" and last_at and await _is_unfinished(engine, tick, last_at):
            continue
        pushed += not (await push_run(engine, tick, run_at)).repeated
        last_at = run_at
    return last_at, pushed


class ScheduleRunner:
    """Runs the schedules of a pool that were made with the API. Any number of them may run on one pool."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._refused: set[str] = set()

    async def run_once(self, engine: "Engine") -> float:
        """Push the runs that are due; returns the seconds until the next check."""
        [head] = await engine.store.heads([SCHEDULES])
        if head is None:
            return POLL_S
        wait_s = (head - self._clock.now_ms()) / 1000
        if wait_s > 0:
            return min(wait_s, POLL_S)
        deliveries = await engine.reserve([SCHEDULES], limit=10, ttr_ms=TTR_MS)
        for delivery in deliveries:
            await self._handle(engine, delivery)
        return 0.0 if deliveries else POLL_S

    async def _handle(self, engine: "Engine", delivery: Delivery) -> None:
        """A run that is refused, because its queue is full for example, waits without delaying other schedules."""
        tick_id = delivery.lease.id
        tick = read_tick(delivery.body)
        try:
            if tick is None:
                await engine.kill(delivery.lease, error="not a schedule")
                return
            await self._run(engine, delivery, tick)
            self._refused.discard(tick_id)
        except LeaseLost:
            return  # another process has changed or leased it
        except DuetimeError as error:
            if tick_id not in self._refused:
                self._refused.add(tick_id)
                log.warning("schedule_waits", extra={"schedule": tick_id, "error": error.message})
            with suppress(LeaseLost):
                await engine.release(delivery.lease, delay_ms=PAUSE_MS, error=error.message)

    async def _run(self, engine: "Engine", delivery: Delivery, tick: Tick) -> None:
        """Push first, then put the tick back: a crash in between repeats and loses nothing."""
        todo = tick.plan(self._clock.now_ms())
        last_at, _ = await push_runs(engine, tick, todo.runs)
        following = tick.following(todo.next_at, last_at).job(delivery.lease.id)
        [answer] = await engine.finish([Finish(delivery.lease, [following])])
        if isinstance(answer, DuetimeError):
            raise answer


async def _is_unfinished(engine: "Engine", tick: Tick, run_at: int) -> bool:
    [job] = await engine.store.get(Queue(tick.namespace, tick.queue), [run_id(tick.name, run_at)])
    return job is not None and job.state is not State.DEAD


class ScheduleRunners:
    """The runners of a server process, one for each of its pools. An async context manager."""

    def __init__(self, pools: "Pools") -> None:
        self._pools = pools
        self._loops: dict[str, asyncio.Task[None]] = {}

    @property
    def loops(self) -> list[asyncio.Task[None]]:
        return list(self._loops.values())

    async def __aenter__(self) -> "ScheduleRunners":
        for name in self._pools.names:
            self._start(name)
        self._pools.on_added.append(self._start)
        return self

    def _start(self, name: str) -> None:
        runner = ScheduleRunner()

        async def run() -> float | None:
            return await runner.run_once(self._pools.engine(name)) if name in self._pools else None

        def ended(loop: asyncio.Task[None]) -> None:
            if name not in self._pools and self._loops.get(name) is loop:  # it was removed: this is no failure
                del self._loops[name]

        if earlier := self._loops.get(name):  # of a pool of this name that was removed
            earlier.cancel()
        loop = self._loops[name] = asyncio.create_task(
            run_duty(Rounds(f"schedules of {name}", run), survives_bugs=True)
        )
        loop.add_done_callback(ended)

    async def __aexit__(self, *_: object) -> None:
        self._pools.on_added.remove(self._start)
        for loop in self.loops:
            loop.cancel()
        await asyncio.gather(*self.loops, return_exceptions=True)

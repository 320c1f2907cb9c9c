"""Recurring tasks: every worker keeps their schedules going, and each run is pushed once.

A schedule lives in the store as one job, its tick, due at the next run. Whichever worker gets the tick pushes the
task's job for that run and puts the tick back for the next one. The run's job has a name that follows from the
schedule and the instant, and a mark that outlives it, so a worker that dies in between, or two that see one tick, push
nothing twice. Nothing is lost while no worker runs: the tick waits, and `missed` says what then happens to the runs in
between. The tick's body holds the instant of its run, because its due time moves when a lease lapses or a worker puts
it back. It all takes nothing but the queue's own verbs, so it works on every store and over HTTP.
"""

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from duetime.client import AsyncClient
from duetime.client.calls import bulk, finish, push
from duetime.engine.duties import Rounds, run_duty
from duetime.model.errors import DuetimeError, InvalidRequest, JobNotFound, LeaseLost
from duetime.model.job import Delivery, Event, IfExists, NewJob, State
from duetime.model.names import MAX_ID, Queue, check_id, check_queue
from duetime.stores.base import Finish, Mark
from duetime.wire.payload import TICKS
from duetime.worker.pusher import renamed
from duetime.worker.schedules import Missed, Schedule, plan

if TYPE_CHECKING:
    from duetime.worker.app import App
    from duetime.worker.task import Task

log = logging.getLogger("duetime.recurring")

TTR_S = 30
WAIT_S = 20
REPLANT_S = 60
"""How often a worker checks that every schedule still has its tick: somebody may have purged the queue."""
BROKEN_S = 2.0
"""The pause after an error of our own."""
MARK_LIFE_MS = 7 * 86_400_000
PAUSE_S = 5
"""How long a tick waits that this worker does not know, or whose run was refused."""
MAX_SCHEDULE_NAME = MAX_ID - len("@1700000000000")
"""The id of a run is the name of its schedule and the instant in milliseconds."""


class Tick(Struct, frozen=True):
    """The body of a tick. `run_at` is the first run that it stands for."""

    task: str
    schedule: str
    missed: Missed
    run_at: int


class Recurring:
    """One schedule of one task. `name` is the tick's id."""

    def __init__(self, name: str, task: "Task[..., Any]", schedule: Schedule, missed: Missed) -> None:
        try:
            task.arguments.pack((), {})
        except InvalidRequest:
            raise InvalidRequest(f"{task.name} cannot recur: all its arguments must have a default") from None
        if len(name) > MAX_SCHEDULE_NAME:
            raise InvalidRequest(
                f"schedule name must have at most {MAX_SCHEDULE_NAME} characters, give another name=: {name!r}"
            )
        self.name = check_id(name)
        self.task = task
        self.schedule = schedule
        self.missed: Missed = missed

    def job(self, run_at: int) -> NewJob:
        """The tick for a run."""
        return NewJob(self.name, msgspec.json.encode(self._tick(run_at)), due_at=run_at, tries=0)

    def planned_run(self, body: bytes) -> int | None:
        """Returns the run that a tick of this schedule stands for, None if the body is not one."""
        try:
            tick = msgspec.json.decode(body, type=Tick)
        except msgspec.MsgspecError:
            return None
        return tick.run_at if tick == self._tick(tick.run_at) else None

    def _tick(self, run_at: int) -> Tick:
        return Tick(self.task.name, self.schedule.text, self.missed, run_at)


class Scheduler:
    """Runs in a worker. An async context manager."""

    def __init__(self, app: "App", client: AsyncClient) -> None:
        self._app = app
        self._client = client
        self._queue: Queue = check_queue(app.namespace, TICKS)
        self._task: asyncio.Task[None] | None = None
        self._refused: set[str] = set()
        self._plant_at = 0.0

    async def __aenter__(self) -> "Scheduler":
        self._task = asyncio.create_task(run_duty(Rounds("recurring tasks", self._run_once)))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run_once(self) -> float:
        try:
            if time.monotonic() >= self._plant_at:
                await (self.replant() if self._plant_at else self.plant())
                self._plant_at = time.monotonic() + REPLANT_S
            for tick in await self._client.queue(TICKS).reserve(limit=10, ttr=TTR_S, wait=WAIT_S):
                await self._try_handle(tick.delivery)
        except DuetimeError:
            raise
        except Exception:
            log.exception("schedules_broke")
            return BROKEN_S
        return 0.0

    async def plant(self) -> None:
        """See to it that every schedule has its tick; one that was changed in the program starts anew."""
        now = self._app.clock.now_ms()
        for one in self._app.schedules.values():
            job = one.job(one.schedule.after(now))
            pushed = await self._client.send(push(self._queue, [job], IfExists.KEEP))
            if pushed.jobs[0].event is Event.KEPT and await self._is_outdated(one):
                await self._client.send(push(self._queue, [job], IfExists.REPLACE))
                log.info("schedule_changed", extra={"schedule": one.name})

    async def replant(self) -> None:
        """Bring back ticks that are gone. Leaves others alone: they may be a newer program's."""
        now = self._app.clock.now_ms()
        jobs = [one.job(one.schedule.after(now)) for one in self._app.schedules.values()]
        for call in bulk(self._queue, jobs):
            await self._client.send(call)

    async def _is_outdated(self, one: Recurring) -> bool:
        try:
            kept = await self._client.queue(TICKS).get(one.name)
        except JobNotFound:
            return True
        return kept.state is State.DEAD or one.planned_run(kept.body) is None

    async def _try_handle(self, delivery: Delivery) -> None:
        """Handle a tick. One that is refused, because its queue is full for example, waits without holding up the
        others. Raises StoreUnavailable.
        """
        name = delivery.lease.id
        try:
            await self.handle(delivery)
            self._refused.discard(name)
        except LeaseLost:
            return  # it was replaced, or another worker has it by now
        except Exception as error:
            if name not in self._refused:
                self._refused.add(name)
                known = isinstance(error, DuetimeError)
                log.warning("schedule_waits", extra={"schedule": name, "error": str(error)}, exc_info=not known)
            with suppress(LeaseLost):
                await self._client.release(delivery, delay=PAUSE_S, error=str(error))

    async def handle(self, delivery: Delivery) -> None:
        """Push what the tick stands for, then put it back: a crash in between repeats and loses nothing. Raises
        LeaseLost if the tick was replaced or its lease has lapsed; then it is not put back.
        """
        one = self._app.schedules.get(delivery.lease.id)
        planned = None if one is None else one.planned_run(delivery.body)
        if one is None or planned is None:
            await self._client.release(delivery, delay=PAUSE_S, error="no such schedule in this program")
            return
        todo = plan(one.schedule, one.missed, planned, self._app.clock.now_ms())
        for run_at in todo.runs:
            await self._push_run(one, run_at)
        following = Finish(delivery.lease, [one.job(todo.next_at)])
        for answer in await self._client.send(finish(self._queue, [following])):
            if isinstance(answer, DuetimeError):
                raise answer

    async def _push_run(self, one: Recurring, run_at: int) -> None:
        name = f"{one.name}@{run_at}"
        outgoing = renamed(one.task.prepare(None, run_at, (), {}), name)
        mark = Mark(name, name.encode(), MARK_LIFE_MS)
        await self._client.send(push(outgoing.queue, [outgoing.job], IfExists.KEEP, mark))

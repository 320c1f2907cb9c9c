"""Recurring tasks: the schedules that an App declares, which its workers run.

Every worker of the App keeps the ticks of its schedules in the queue `duetime.recurring` and handles those that are due
(`engine/schedules.py` says what a tick is). A worker makes the job of a run with the task, so that middleware, options
and listeners apply as in any other push. Nothing is lost while no worker runs: the tick waits, and `missed` says what
happens to the runs in between. All of this uses the verbs of the queue, so it works on every store and over HTTP.
"""

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, get_args

from msgspec.structs import replace

from duetime.client import AsyncClient
from duetime.client.calls import bulk, finish, push
from duetime.duties import Rounds, run_duty
from duetime.engine.schedules import MAX_SCHEDULE_NAME, PAUSE_MS, Tick, read_tick, run_id, run_mark
from duetime.model.errors import DuetimeError, InvalidRequest, JobNotFound, LeaseLost
from duetime.model.job import Delivery, Event, IfExists, State
from duetime.model.names import Queue, check_id, check_queue
from duetime.model.schedules import Missed, Schedule
from duetime.stores.base import Finish
from duetime.wire.payload import TICKS
from duetime.worker.pusher import renamed

if TYPE_CHECKING:
    from duetime.worker.app import App
    from duetime.worker.task import Task

log = logging.getLogger("duetime.recurring")

TTR_S = 30
WAIT_S = 20
REPLANT_S = 60
"""How often a worker checks that every schedule has its tick; the queue of the ticks may have been purged."""
PAUSE_S = PAUSE_MS / 1000


class Recurring:
    """One schedule of one task. `name` is the id of its tick."""

    def __init__(self, name: str, task: "Task[..., Any]", schedule: Schedule, missed: Missed) -> None:
        try:
            task.arguments.pack((), {})
        except InvalidRequest:
            raise InvalidRequest(f"{task.name} cannot recur: all its arguments must have a default") from None
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequest(f"schedule name must be text, got {name!r:.60}")
        if len(name) > MAX_SCHEDULE_NAME:
            raise InvalidRequest(
                f"schedule name must have at most {MAX_SCHEDULE_NAME} characters, give another name=: {name!r}"
            )
        self.name = check_id(name, "schedule name")
        if missed not in get_args(Missed):
            raise InvalidRequest(f"missed must be one of {', '.join(get_args(Missed))}, got {missed!r:.60}")
        self.task = task
        self.schedule = schedule
        self.missed: Missed = missed

    def tick(self, run_at: int) -> Tick:
        queue = self.task.defaults.queue
        return Tick(schedule=self.schedule.text, missed=self.missed, queue=queue, run_at=run_at, task=self.task.name)

    def declares(self, tick: Tick | None) -> bool:
        """Returns whether a tick is for this schedule as the program declares it now."""
        own = (self.schedule.text, self.missed, self.task.name)
        return tick is not None and (tick.schedule, tick.missed, tick.task) == own


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
        self._task = asyncio.create_task(run_duty(Rounds("recurring tasks", self._run_once), survives_bugs=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run_once(self) -> float:
        if time.monotonic() >= self._plant_at:
            await (self.replant() if self._plant_at else self.plant())
            self._plant_at = time.monotonic() + REPLANT_S
        for tick in await self._client.queue(TICKS).reserve(limit=10, ttr=TTR_S, wait=WAIT_S):
            await self._try_handle(tick.delivery)
        return 0.0

    async def plant(self) -> None:
        """Make sure that every schedule has its tick; a schedule that was changed in the program starts anew."""
        now = self._app.clock.now_ms()
        for one in self._app.schedules.values():
            tick = one.tick(one.schedule.after(now))
            pushed = await self._client.send(push(self._queue, [tick.job(one.name)], IfExists.KEEP))
            if pushed.jobs[0].event is not Event.KEPT:
                continue
            kept = await self._kept(one.name)
            if not one.declares(kept):
                changed = replace(tick, paused=kept is not None and kept.paused)
                await self._client.send(push(self._queue, [changed.job(one.name)], IfExists.REPLACE))
                log.info("schedule_changed", extra={"schedule": one.name})

    async def replant(self) -> None:
        """Bring back ticks that are gone. Leaves others alone: they may be a newer program's."""
        now = self._app.clock.now_ms()
        jobs = [one.tick(one.schedule.after(now)).job(one.name) for one in self._app.schedules.values()]
        for call in bulk(self._queue, jobs):
            await self._client.send(call)

    async def _kept(self, name: str) -> Tick | None:
        try:
            job = await self._client.queue(TICKS).get(name)
        except JobNotFound:
            return None
        return None if job.state is State.DEAD else read_tick(job.body)

    async def _try_handle(self, delivery: Delivery) -> None:
        """Handle a tick. A run that is refused, because its queue is full for example, waits without delaying other
        schedules. Raises StoreUnavailable.
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
        """Push the runs of a tick, then put it back: a crash in between repeats and loses nothing. Raises LeaseLost if
        the tick was replaced or its lease has expired; then it is not put back.
        """
        one = self._app.schedules.get(delivery.lease.id)
        tick = read_tick(delivery.body)
        if tick is None and one is None:
            await self._client.kill(delivery, error="not a schedule")
            return
        if one is not None and tick is None:  # somebody pushed something else under the name of a schedule
            tick = one.tick(one.schedule.after(self._app.clock.now_ms()))
            await self._client.send(push(self._queue, [tick.job(one.name)], IfExists.REPLACE))
            return
        if one is None or tick is None or not one.declares(tick):
            await self._client.release(delivery, delay=PAUSE_S, error="no such schedule in this program")
            return
        todo = tick.plan(self._app.clock.now_ms())
        for run_at in todo.runs:
            outgoing = renamed(one.task.prepare(None, run_at, (), {}), run_id(one.name, run_at))
            await self._client.send(push(outgoing.queue, [outgoing.job], IfExists.KEEP, run_mark(one.name, run_at)))
        following = tick.following(todo.next_at, todo.runs[-1] if todo.runs else tick.last_at)
        for answer in await self._client.send(finish(self._queue, [Finish(delivery.lease, [following.job(one.name)])])):
            if isinstance(answer, DuetimeError):
                raise answer

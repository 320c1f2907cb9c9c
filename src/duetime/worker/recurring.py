"""Recurring tasks: every worker keeps their schedules going, and each run is pushed once.

A schedule lives in the store as one job, its tick, due at the next run. Whichever worker gets the tick pushes the
task's job for that run and puts the tick back for the next one. The run's job has a name that follows from the
schedule and the instant, and a mark that outlives it, so a worker that dies in between, or two that see one tick, push
nothing twice. Nothing is lost while no worker runs: the tick waits, and `missed` says what then happens to the runs in
between. It all takes nothing but the queue's own verbs, so it works on every store and over HTTP.
"""

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from duetime.backoff import OUTAGE, Outage
from duetime.client import AsyncClient
from duetime.client.calls import bulk, push
from duetime.errors import DuetimeError, InvalidRequest, JobNotFound
from duetime.job import Delivery, Event, IfExists, NewJob, State
from duetime.names import Queue, check_queue
from duetime.stores.base import Mark
from duetime.wire.payload import TICKS
from duetime.worker.schedules import Missed, Schedule, plan

if TYPE_CHECKING:
    from duetime.worker.app import App
    from duetime.worker.task import Task

log = logging.getLogger("duetime.recurring")

TTR_S = 30
WAIT_S = 20
REPLANT_S = 60
"""How often a worker looks whether every schedule still has its tick: somebody may have purged the queue."""
MARK_LIFE_MS = 7 * 86_400_000
FOREIGN_PAUSE_S = 5
"""How long a tick of another version of the program is left to a worker that knows it."""


class Tick(Struct, frozen=True):
    """The body of a tick."""

    task: str
    schedule: str
    missed: Missed


class Recurring:
    """One schedule of one task. `name` is the tick's id."""

    def __init__(self, name: str, task: "Task[..., Any]", schedule: Schedule, missed: Missed) -> None:
        try:
            task.arguments.pack((), {})
        except InvalidRequest:
            raise InvalidRequest(f"{task.name} cannot recur: it has arguments without a default") from None
        self.name = name
        self.task = task
        self.schedule = schedule
        self.tick = Tick(task.name, schedule.text, missed)

    def job(self, due_at: int) -> NewJob:
        """The tick for a run."""
        return NewJob(self.name, msgspec.json.encode(self.tick), due_at=due_at, tries=0)


class Scheduler:
    """Runs beside a worker. An async context manager."""

    def __init__(self, app: "App", client: AsyncClient) -> None:
        self._app = app
        self._client = client
        self._queue: Queue = check_queue(app.namespace, TICKS)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Scheduler":
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        outage, plant_at = Outage(), 0.0
        while True:
            try:
                if time.monotonic() >= plant_at:
                    await (self.replant() if plant_at else self.plant())
                    plant_at = time.monotonic() + REPLANT_S
                ticks = await self._client.queue(TICKS).reserve(limit=10, ttr=TTR_S, wait=WAIT_S)
                for tick in ticks:
                    await self.handle(tick.delivery)
                outage.worked()
            except DuetimeError as error:
                if outage.failed():
                    log.warning("schedules_wait", extra={"error": error.message})
                await asyncio.sleep(outage.pause_s)
            except Exception:
                # The lease of its tick lapses, and another worker may do better.
                log.exception("schedule_broke")
                await asyncio.sleep(OUTAGE.cap_ms / 1000)

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
        return kept.state is State.DEAD or kept.body != msgspec.json.encode(one.tick)

    async def handle(self, delivery: Delivery) -> None:
        """Push what the tick stands for, then put it back: a crash in between repeats and loses nothing."""
        one = self._app.schedules.get(delivery.lease.id)
        if one is None or delivery.body != msgspec.json.encode(one.tick):
            await self._client.release(delivery, delay=FOREIGN_PAUSE_S, error="no such schedule in this program")
            return
        todo = plan(one.schedule, one.tick.missed, delivery.due_at, self._app.clock.now_ms())
        for run_at in todo.runs:
            await self._push_run(one, run_at)
        # Replacing fences the lease off: no release that could put the tick back a second time.
        await self._client.send(push(self._queue, [one.job(todo.next_at)], IfExists.REPLACE))

    async def _push_run(self, one: Recurring, run_at: int) -> None:
        outgoing = one.task.prepare(None, run_at, (), {})
        name = f"{one.name}@{run_at}"
        job = msgspec.structs.replace(outgoing.job, id=name)
        mark = Mark(name, name.encode(), MARK_LIFE_MS)
        await self._client.send(push(outgoing.queue, [job], IfExists.KEEP, mark))

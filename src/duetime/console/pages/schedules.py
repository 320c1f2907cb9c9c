"""The page Schedules: tasks that recur, and when each of them runs next."""

from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from cronsim import CronSim, CronSimError
from starlette.responses import Response

from duetime.console.visit import Visit
from duetime.model.job import Job, State
from duetime.model.names import Queue
from duetime.wire.payload import TICKS

RECURRING = 200
CRON_FIELDS = 5
MAX_TICK = 16_384
"""The longest body of a tick in bytes; workers push much shorter ones."""
MAX_SCHEDULE = 512


class Tick(msgspec.Struct):
    """The fields of a tick that the page shows."""

    task: str
    schedule: str


class RecurringTask(NamedTuple):
    pool: str
    job: Job
    task: str
    schedule: str

    @property
    def words(self) -> str:
        """What a cron expression means, in English; empty where that cannot be said."""
        kind, _, rest = self.schedule.partition(" ")
        fields = rest.split()
        if kind != "cron" or len(fields) < CRON_FIELDS:
            return ""
        try:
            said = CronSim(" ".join(fields[:CRON_FIELDS]), datetime.now(UTC)).explain()
        except (CronSimError, ValueError):
            return ""
        return f"{said}, {fields[CRON_FIELDS]}" if len(fields) > CRON_FIELDS else said


async def show_schedules(visit: Visit) -> Response:
    look = await visit.parts.live.looks.look_for_page(is_partial=visit.is_partial)
    queues = [
        (line.pool, line.queue)
        for line in look.lines
        if line.queue.name == TICKS and visit.sees(line.pool, line.queue.namespace)
    ]
    found = await _recurring(visit, queues)
    return visit.page("schedules.html", schedules=sorted(found, key=lambda one: one.job.due_at))


async def _recurring(visit: Visit, queues: list[tuple[str, Queue]]) -> list[RecurringTask]:
    found: list[RecurringTask] = []
    for pool, queue in queues:
        store = visit.parts.pools.engine(pool).store
        for state in (State.LEASED, State.READY, State.DELAYED):
            page = await store.list_jobs(queue, state, limit=RECURRING)
            found += [_read(pool, job) for job in page.jobs]
    return found[:RECURRING]


def _read(pool: str, job: Job) -> RecurringTask:
    """Anybody may push to the queue of recurring tasks, so the body may be anything."""
    try:
        tick = msgspec.json.decode(job.body, type=Tick) if len(job.body) <= MAX_TICK else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        tick = None
    if tick is None or len(tick.schedule) > MAX_SCHEDULE:
        return RecurringTask(pool, job, "?", "?")
    return RecurringTask(pool, job, tick.task, tick.schedule)

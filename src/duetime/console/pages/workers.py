"""The page of workers: the server's processes, consumers that wait, jobs that are leased, tasks that recur."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from cronsim import CronSim, CronSimError
from starlette.responses import Response

from duetime.console.pages.jobs import preview
from duetime.console.visit import Visit
from duetime.model.job import Job, State
from duetime.model.names import Queue, check_namespace
from duetime.wire.payload import PAUSES, RESTARTS, TICKS, UNKNOWN_TASKS, counter_name
from duetime.wire.worker_beats import PREFIX, WorkerBeat, read_beats

RUNNING = 50
SPACES = 20
RECURRING = 200
UNKNOWN = 50
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


class UnknownTaskLine(NamedTuple):
    """`deliveries` counts those of the last ten minutes."""

    queue: Queue
    task: str
    deliveries: int


async def show_workers(visit: Visit) -> Response:
    look = await visit.parts.live.looks.look_for_page(is_partial=visit.is_partial)
    lines = [one for one in look.lines if visit.session.sees(one.pool, one.queue.namespace)]
    busy = sorted((one for one in lines if one.counts.leased), key=lambda one: -one.counts.leased)
    running: list[tuple[str, Job, str]] = []
    for line in busy:
        if len(running) >= RUNNING:
            break
        store = visit.parts.pools.engine(line.pool).store
        page = await store.list_jobs(line.queue, State.LEASED, limit=RUNNING - len(running))
        running += [(line.pool, job, preview(job)) for job in page.jobs]
    since = await visit.parts.live.running_s([(pool, job) for pool, job, _ in running]) if running else []
    everything = not visit.session.namespace
    spaces = sorted({(one.pool, one.queue.namespace) for one in lines})
    return visit.page(
        "workers.html",
        processes=await visit.parts.siblings.workers() if everything else [],
        parked=sum(sum(one.parked.values()) for one in await visit.parts.live.processes()) if everything else None,
        counting=not look.is_known,
        connected=await _connected(visit, spaces) if spaces else [],
        unknown=await _unknown(visit, spaces),
        leased=sum(one.counts.leased for one in lines),
        running=[(*one, seconds) for one, seconds in zip(running, since, strict=True)],
        recurring=await _recurring(visit, [(one.pool, one.queue) for one in lines if one.queue.name == TICKS]),
        spaces=[(*space, await _is_paused(visit, *space)) for space in spaces[:SPACES]],
        now=int(time.time() * 1000),
    )


async def _connected(visit: Visit, spaces: Sequence[tuple[str, str]]) -> list[tuple[str, WorkerBeat, int]]:
    """The workers of these namespaces: the namespace, who it is, and how many jobs it had in its hands."""
    found: list[tuple[str, WorkerBeat, int]] = []
    for pool, namespace in spaces[:SPACES]:
        prefix = counter_name(namespace, PREFIX)
        counters = await visit.parts.pools.engine(pool).store.registry.counters(prefix)
        found += [(namespace, beat, jobs) for beat, jobs in read_beats(counters, prefix)]
    return found


async def _unknown(visit: Visit, spaces: Sequence[tuple[str, str]]) -> list[UnknownTaskLine]:
    """The tasks that workers of these namespaces met lately and do not know."""
    found: list[UnknownTaskLine] = []
    for pool, namespace in spaces[:SPACES]:
        prefix = counter_name(namespace, f"{UNKNOWN_TASKS}/")
        counters = await visit.parts.pools.engine(pool).store.registry.counters(prefix)
        for name, deliveries in sorted(counters.items()):
            queue, _, task = name.removeprefix(prefix).partition("/")
            found.append(UnknownTaskLine(Queue(namespace, queue), task, deliveries))
    return found[:UNKNOWN]


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


async def _is_paused(visit: Visit, pool: str, namespace: str) -> bool:
    registry = visit.parts.pools.engine(pool).store.registry
    return (await registry.increment(counter_name(namespace, PAUSES), 0)).value > 0


def _namespace(visit: Visit) -> str:
    namespace = check_namespace(visit.field("namespace"))
    visit.check_sees(visit.pool(), namespace)
    return namespace


async def restart_workers(visit: Visit) -> Response:
    """Workers of the namespace finish their jobs and exit; whatever keeps them running starts them anew."""
    namespace = _namespace(visit)
    await visit.engine().store.registry.increment(counter_name(namespace, RESTARTS))
    await visit.log("restart-workers", namespace)
    return visit.go(text=visit.say("workers.restarting", namespace=namespace))


async def pause_workers(visit: Visit) -> Response:
    """Workers of the namespace finish their jobs and take no new ones. Other consumers go on."""
    return await _set_pause(visit, paused=True)


async def resume_workers(visit: Visit) -> Response:
    return await _set_pause(visit, paused=False)


async def _set_pause(visit: Visit, *, paused: bool) -> Response:
    namespace, registry = _namespace(visit), visit.engine().store.registry
    name = counter_name(namespace, PAUSES)
    # Only the sign counts, so two who click at once do not undo each other.
    value = (await registry.increment(name, 0)).value
    await registry.increment(name, int(paused) - value)
    action = "pause" if paused else "resume"
    await visit.log(f"{action}-workers", namespace)
    return visit.go(text=visit.say(f"workers.{action}_done", namespace=namespace))

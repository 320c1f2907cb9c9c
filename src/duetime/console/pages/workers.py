"""The page of workers: the server's processes, consumers that wait, jobs that are leased, tasks that recur."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response

from duetime.console.pages.jobs import preview
from duetime.console.visit import Visit
from duetime.job import Job, State
from duetime.names import Queue, check_namespace
from duetime.wire.payload import RESTARTS, TICKS, counter_name
from duetime.wire.worker_beats import PREFIX, WorkerBeat, read_beats

RUNNING = 50
SPACES = 20
RECURRING = 200


class RecurringTask(NamedTuple):
    pool: str
    job: Job
    task: str
    schedule: str


async def show_workers(visit: Visit) -> Response:
    look = await visit.parts.live.look_for_page(is_partial=visit.is_partial)
    lines = [one for one in look.lines if visit.session.sees(one.pool, one.queue.namespace)]
    busy = sorted((one for one in lines if one.counts.leased), key=lambda one: -one.counts.leased)
    running: list[tuple[str, Job, str]] = []
    for line in busy:
        if len(running) >= RUNNING:
            break
        store = visit.parts.pools.engine(line.pool).store
        page = await store.list_jobs(line.queue, State.LEASED, limit=RUNNING - len(running))
        running += [(line.pool, job, preview(job)) for job in page.jobs]
    everything = not visit.session.namespace
    spaces = sorted({(one.pool, one.queue.namespace) for one in lines})
    return visit.page(
        "workers.html",
        processes=await visit.parts.siblings.workers() if everything else [],
        parked=sum(sum(one.parked.values()) for one in await visit.parts.live.processes()) if everything else None,
        counting=not look.is_known,
        connected=await _connected(visit, spaces) if spaces else [],
        leased=sum(one.counts.leased for one in lines),
        running=running,
        recurring=await _recurring(visit, [(one.pool, one.queue) for one in lines if one.queue.name == TICKS]),
        spaces=spaces,
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
        body: Any = msgspec.json.decode(job.body)
        return RecurringTask(pool, job, str(body["task"]), str(body["schedule"]))
    except (msgspec.DecodeError, KeyError, TypeError):
        return RecurringTask(pool, job, "?", "?")


async def restart_workers(visit: Visit) -> Response:
    """Workers of the namespace finish their jobs and exit; whatever keeps them running starts them anew."""
    namespace = check_namespace(visit.field("namespace"))
    visit.check_sees(visit.pool(), namespace)
    await visit.engine().store.registry.increment(counter_name(namespace, RESTARTS))
    await visit.log("restart-workers", namespace)
    return visit.go(text=visit.say("workers.restarting", namespace=namespace))

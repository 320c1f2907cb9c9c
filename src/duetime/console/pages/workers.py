"""The page Workers: who runs what and how far it is, idle consumers, the server's own processes."""

from collections.abc import Sequence
from typing import NamedTuple

from starlette.responses import Response

from duetime.console.pages.jobs import preview
from duetime.console.visit import Visit
from duetime.engine.schedules import SCHEDULES
from duetime.model.job import Job, State
from duetime.model.names import Queue, check_namespace
from duetime.wire.job_output import read_output
from duetime.wire.payload import PAUSES, RESTARTS, UNKNOWN_TASKS, counter_name
from duetime.wire.worker_beats import RunningJobOut, WorkerOut, find_workers

RUNNING = 50
SPACES = 20
UNKNOWN = 50
OUTPUTS = 20
"""Number of jobs whose last line of output is read."""


class UnknownTaskLine(NamedTuple):
    """`deliveries` counts those of the last ten minutes."""

    queue: Queue
    task: str
    deliveries: int


class RunningLine(NamedTuple):
    """`percent` is how far the task said it is, 0 if it said nothing; `said` is the last line that it logged."""

    job: RunningJobOut
    percent: int
    said: str


class WorkerRow(NamedTuple):
    """A worker of a namespace, with the jobs that it named in its last beat."""

    pool: str
    namespace: str
    worker: WorkerOut
    running: Sequence[RunningLine]


async def show_workers(visit: Visit) -> Response:
    snapshot = await visit.parts.live.snapshots.for_page(is_partial=visit.is_partial)
    lines = [one for one in snapshot.lines if visit.sees(one.pool, one.queue.namespace)]
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
    spaces = sorted({(one.pool, one.queue.namespace) for one in lines if one.queue != SCHEDULES})
    workers = await _workers(visit, spaces)
    return await visit.page(
        "workers.html",
        processes=await visit.parts.siblings.workers() if everything else [],
        parked=sum(sum(one.parked.values()) for one in await visit.parts.live.processes()) if everything else None,
        counting=not snapshot.is_known,
        workers=workers,
        slots=sum(one.worker.concurrency for one in workers),
        unknown=await _unknown(visit, spaces),
        leased=sum(one.counts.leased for one in lines),
        running=[(*one, seconds) for one, seconds in zip(running, since, strict=True)],
        spaces=[(*space, await _is_paused(visit, *space)) for space in spaces[:SPACES]],
    )


async def _workers(visit: Visit, spaces: Sequence[tuple[str, str]]) -> list[WorkerRow]:
    found: list[WorkerRow] = []
    outputs = 0
    for pool, namespace in spaces[:SPACES]:
        seen = await find_workers(visit.parts.pools.engine(pool).store.registry, namespace)
        for worker in seen.workers:
            running: list[RunningLine] = []
            for job in worker.running:
                queue, said = Queue(namespace, job.queue), ""
                if outputs < OUTPUTS:
                    outputs += 1
                    output = await read_output(visit.parts.pools.engine(pool).store.registry, queue, job.id)
                    said = output.lines[-1] if output.lines else ""
                running.append(RunningLine(job, await read_progress(visit, pool, queue, job.id), said))
            found.append(WorkerRow(pool, namespace, worker, running))
    return found


async def read_progress(visit: Visit, pool: str, queue: Queue, job_id: str) -> int:
    """Percent of a running job as its task last said; 0 if it said nothing."""
    name = counter_name(queue.namespace, f"progress/{queue.name}/{job_id}")
    return (await visit.parts.pools.engine(pool).store.registry.increment(name, 0)).value


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


async def set_paused(visit: Visit, *, paused: bool) -> Response:
    """Workers of the namespace finish their jobs and take no new ones, or go on. Other consumers always go on."""
    namespace, registry = _namespace(visit), visit.engine().store.registry
    name = counter_name(namespace, PAUSES)
    # Only the sign counts, so two users who click at the same time do not undo each other.
    value = (await registry.increment(name, 0)).value
    await registry.increment(name, int(paused) - value)
    action = "pause" if paused else "resume"
    await visit.log(f"{action}-workers", namespace)
    return visit.go(text=visit.say(f"workers.{action}_done", namespace=namespace))

"""The page of dead letters: group them by error; bring back or delete one, some or all; export them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.responses import Response

from duetime.console.formats import number
from duetime.console.pages.jobs import JobFilter, export_lines, find_jobs
from duetime.console.visit import Visit
from duetime.model.errors import InvalidRequest
from duetime.model.job import Job, State
from duetime.model.names import check_id

LOOK_AT = 2_000
SHOWN = 100
_VARIES = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9A-Z]{26}\b|\d+", re.IGNORECASE)


@dataclass
class ErrorGroup:
    """Dead letters whose errors are the same apart from numbers and ids."""

    name: str
    reason: str
    jobs: list[Job] = field(default_factory=list[Job])


def error_name(job: Job) -> str:
    """The first line of the error, with an N for every number and id that varies from job to job."""
    line = (job.error.strip().splitlines() or [""])[0]
    return _VARIES.sub("N", line)[:200]


def group_by_error(jobs: Iterable[Job]) -> list[ErrorGroup]:
    """Largest first."""
    groups: dict[tuple[str, str], ErrorGroup] = {}
    for job in jobs:
        name = error_name(job)
        groups.setdefault((name, job.reason), ErrorGroup(name, job.reason)).jobs.append(job)
    return sorted(groups.values(), key=lambda group: -len(group.jobs))


async def show_dead(visit: Visit) -> Response:
    if not visit.query.get("queue"):
        return await _list_queues(visit)
    pool, queue = visit.pool(), visit.queue()
    [counts] = await visit.engine().store.counts([queue])
    found = await find_jobs(visit, JobFilter(State.DEAD), cursor=None, most=LOOK_AT, look_at=LOOK_AT)
    groups = group_by_error(found.jobs)
    wanted = visit.query.get("error")
    rows = zip(found.jobs, found.previews, strict=True)
    shown = [(job, text) for job, text in rows if wanted is None or error_name(job) == wanted]
    return visit.page(
        "dead.html",
        pool=pool,
        queue=queue,
        total=counts.dead,
        looked_at=len(found.jobs),
        groups=groups,
        error=wanted,
        count=len(shown),
        rows=shown[:SHOWN],
    )


async def _list_queues(visit: Visit) -> Response:
    look = await visit.parts.live.looks.look_for_page(is_partial=visit.is_partial)
    lines = [one for one in look.lines if one.counts.dead and visit.session.sees(one.pool, one.queue.namespace)]
    lines.sort(key=lambda one: -one.counts.dead)
    return visit.page("dead_queues.html", lines=lines, counting=not look.is_known)


async def respawn(visit: Visit) -> Response:
    """Bring back the dead letters that were ticked, those of one error, or all."""
    queue, engine = visit.queue(), visit.engine()
    if visit.field("which") == "all":
        [counts] = await engine.store.counts([queue])
        moved = await engine.respawn(queue, limit=max(counts.dead, 1))
    else:
        moved = await engine.respawn(queue, ids=await _chosen(visit))
    await visit.log("respawn", queue, f"{len(moved)}")
    return visit.go(text=visit.say("dead.respawned", count=number(len(moved)), queue=queue))


async def delete(visit: Visit) -> Response:
    queue, engine = visit.queue(), visit.engine()
    if visit.field("which") == "all":
        if visit.field("confirm").strip() != queue.name:
            raise InvalidRequest(visit.say("queue.purge_confirm", queue=queue.name))
        removed = await engine.purge(queue, [State.DEAD])
    else:
        ids = await _still_dead(visit, await _chosen(visit))
        removed = sum(one is not None for one in await engine.cancel(queue, ids))
    await visit.log("delete-dead", queue, f"{removed}")
    return visit.go(text=visit.say("dead.deleted", count=number(removed), queue=queue))


async def _chosen(visit: Visit) -> list[str]:
    if visit.field("which") == "error":
        wanted = visit.field("error")
        found = await find_jobs(visit, JobFilter(State.DEAD), cursor=None, most=LOOK_AT, look_at=LOOK_AT)
        return [job.id for job in found.jobs if error_name(job) == wanted]
    ids = [check_id(one) for one in visit.all_of("id")]
    if not ids:
        raise InvalidRequest(visit.say("dead.none_chosen"))
    return ids


async def _still_dead(visit: Visit, ids: list[str]) -> list[str]:
    """The ids that are still dead: a cancel removes jobs of any state, and must spare those respawned meanwhile."""
    dead: list[str] = []
    while ids:
        jobs = await visit.engine().store.get(visit.queue(), ids)
        dead += [job.id for job in jobs if job is not None and job.state is State.DEAD]
        ids = ids[len(jobs) :]
    return dead


async def export(visit: Visit) -> Response:
    wanted = visit.query.get("error")
    return export_lines(visit, State.DEAD, lambda job: wanted is None or error_name(job) == wanted)

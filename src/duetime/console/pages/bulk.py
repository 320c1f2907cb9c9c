"""Actions on all jobs that fit a filter, or on chosen ones: counted first, done in steps with their progress, undone
where that can be.
"""

import time
from typing import NamedTuple

from starlette.responses import Response

from duetime.console.bulk_runs import VERBS, BulkRun
from duetime.console.formats import number
from duetime.console.pages.job import new_due
from duetime.console.pages.jobs import FoundJobs, JobFilter, find_jobs, jobs_link, preview, read_filter
from duetime.console.visit import Visit, chosen, link
from duetime.model.errors import InvalidRequest, NotFound
from duetime.model.ids import IdMaker
from duetime.model.job import Job, State
from duetime.model.names import check_id

MOST = 5_000
"""How many jobs one click acts on at most; the preview before it counts no further."""
ROWS = 10

_ids = IdMaker()


class Chosen(NamedTuple):
    wanted: JobFilter
    found: FoundJobs
    ids: list[str]


async def _choose(visit: Visit) -> Chosen:
    """The jobs with the ids that were ticked, or all of the filter."""
    ids = (
        []
        if visit.given("all")
        else [check_id(one) for one in [*visit.all_of("id"), *visit.request.query_params.getlist("id")]]
    )
    wanted = read_filter(visit)
    if not ids:
        return Chosen(wanted, await find_jobs(visit, wanted, cursor=None, most=MOST, look_at=MOST * 4), [])
    jobs: list[Job] = []
    left = ids[:MOST]
    while left:
        page = await visit.engine().store.get(visit.queue(), left)
        left = left[len(page) :]
        jobs += [job for job in page if job is not None and job.state in (State.DELAYED, State.READY)]
    return Chosen(wanted, FoundJobs(jobs, [preview(job) for job in jobs], len(ids), None), ids)


async def show_bulk(visit: Visit) -> Response:
    """Show what an action would do: how many jobs it finds, and the first of them. A time that is missing or wrong is
    said here, before anything is done.
    """
    pool, queue = visit.pool(), visit.queue()
    verb = chosen(VERBS, visit.given("verb"))
    wanted, found, ids = await _choose(visit)
    if verb == "reschedule" and not visit.errors:
        try:
            new_due(visit)
        except InvalidRequest as refused:
            visit.errors = getattr(refused, "errors", {"when": refused.message})
    return await visit.page(
        "bulk.html",
        pool=pool,
        queue=queue,
        wanted=wanted,
        verb=verb,
        when=visit.given("when"),
        found=found,
        ids=ids,
        rows=list(zip(found.jobs, found.previews, strict=True))[:ROWS],
        back=jobs_link(pool, queue, wanted),
    )


async def do_bulk(visit: Visit) -> Response:
    """Begin a run of at most MOST jobs; its page says how far it is, and whether there are more jobs."""
    pool, queue = visit.pool(), visit.queue()
    verb = chosen(VERBS, visit.field("verb"))
    due = new_due(visit) if verb == "reschedule" else {"delay_ms": 0} if verb == "run-now" else {}
    wanted, found, ids = await _choose(visit)
    run = BulkRun(
        _ids.make(),
        visit.session.user,
        [(pool, queue)],
        verb,
        wanted.state,
        len(found.jobs),
        time.time(),
        has_more=found.cursor is not None,
        back=jobs_link(pool, queue, wanted),
    )
    what = f"{len(found.jobs)} chosen jobs" if ids else f"{len(found.jobs)} jobs: {wanted}"
    await visit.log(f"bulk {verb}", queue, what)
    await visit.services.bulk_runs.start(run, [((pool, queue), found.jobs)], due)
    return visit.go(link("bulk-run", run=run.id))


async def show_run(visit: Visit) -> Response:
    run = await _run(visit)
    return await visit.page("bulk_run.html", run=run)


async def undo(visit: Visit) -> Response:
    run = await _run(visit)
    if not run.can_undo:
        raise InvalidRequest(visit.say("bulk.cannot_undo"))
    undone = await visit.services.bulk_runs.undo(run)
    await visit.services.failures.forget(run.places)
    await visit.log(f"undo {run.verb}", run.subject or f"{len(run.places)} queues", f"{undone} jobs")
    return visit.go(
        (visit.field("back") and visit.back()) or link("bulk-run", run=run.id),
        visit.say("bulk.undone", count=number(undone)),
    )


async def _run(visit: Visit) -> BulkRun:
    run = await visit.services.bulk_runs.read(visit.given("run")[:64])
    if run is None:
        raise NotFound(visit.say("bulk.no_run"))
    for pool, queue in run.places:
        visit.check_sees(pool, queue.namespace)
    return run

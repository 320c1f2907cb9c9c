"""Actions on all jobs that fit a filter: counted first, done in steps with their progress, undone where that can be."""

import time

from starlette.responses import Response

from duetime.console.bulk_runs import VERBS, BulkRun
from duetime.console.formats import number
from duetime.console.pages.jobs import find_jobs, new_due, read_filter
from duetime.console.visit import Visit, chosen, link, queue_link
from duetime.model.errors import InvalidRequest, NotFound
from duetime.model.ids import IdMaker

MOST = 5_000
"""How many jobs one click acts on at most; the preview before it counts no further."""

_ids = IdMaker()


async def show_bulk(visit: Visit) -> Response:
    """Show what an action on all jobs of a filter would do: how many jobs it finds, and the first of them."""
    pool, queue, wanted = visit.pool(), visit.queue(), read_filter(visit)
    verb = chosen(VERBS, visit.query.get("verb", ""))
    found = await find_jobs(visit, wanted, cursor=None, most=MOST, look_at=MOST * 4)
    return visit.page(
        "bulk.html",
        pool=pool,
        queue=queue,
        wanted=wanted,
        verb=verb,
        when=visit.query.get("when", ""),
        found=found,
        rows=list(zip(found.jobs, found.previews, strict=True))[:10],
        back=queue_link(pool, queue, "jobs", state=wanted.state),
    )


async def do_bulk(visit: Visit) -> Response:
    """Begin a run of at most MOST jobs; its page says how far it is, and whether there are more jobs."""
    pool, queue, wanted = visit.pool(), visit.queue(), read_filter(visit)
    verb = chosen(VERBS, visit.field("verb"))
    due = new_due(visit) if verb == "reschedule" else {"delay_ms": 0} if verb == "run-now" else {}
    found = await find_jobs(visit, wanted, cursor=None, most=MOST, look_at=MOST * 4)
    run = BulkRun(
        _ids.make(),
        visit.session.user,
        pool,
        queue,
        verb,
        wanted.state,
        len(found.jobs),
        time.time(),
        has_more=found.cursor is not None,
    )
    await visit.log(f"bulk {verb}", queue, f"{wanted}: {len(found.jobs)} jobs")
    await visit.services.bulk_runs.start(run, visit.engine(), found.jobs, due)
    return visit.go(link("bulk-run", run=run.id))


async def show_run(visit: Visit) -> Response:
    run = await _run(visit)
    back = queue_link(run.pool, run.queue, "jobs", state=run.of_state)
    return visit.page("bulk_run.html", run=run, back=back)


async def undo(visit: Visit) -> Response:
    run = await _run(visit)
    if not run.can_undo:
        raise InvalidRequest(visit.say("bulk.cannot_undo"))
    undone = await visit.services.bulk_runs.undo(run, visit.parts.pools.engine(run.pool))
    await visit.log(f"undo {run.verb}", run.queue, f"{undone} jobs")
    return visit.go(link("bulk-run", run=run.id), visit.say("bulk.undone", count=number(undone)))


async def _run(visit: Visit) -> BulkRun:
    run = await visit.services.bulk_runs.read(visit.given("run")[:64])
    if run is None:
        raise NotFound(visit.say("bulk.no_run"))
    visit.check_sees(run.pool, run.queue.namespace)
    return run

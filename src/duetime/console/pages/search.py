"""The search box of every page: an id or its beginning, a queue, a topic, or a text in any job."""

import asyncio
import heapq
import time
from typing import Any

from starlette.responses import Response

from duetime.callbacks.topic_registry import KIND as TOPICS
from duetime.callbacks.topic_registry import TopicAddress
from duetime.console.journal_lookup import PastJob, find_ids
from duetime.console.lake_lookup import find_in_lake
from duetime.console.searches import SearchTarget, TextSearch
from duetime.console.visit import Visit, job_link, link, queue_link
from duetime.model.errors import DuetimeError, InvalidRequest, NotFound
from duetime.model.ids import IdMaker
from duetime.model.job import Job, State
from duetime.model.names import check_id

MOST_ASKED = 300
"""How many queues are asked for an id before the page is shown; the text search of all jobs finds ids, too."""
MOST_NAMES = 12
LONGEST = 200
WITHIN_S = 0.1
"""How long the page waits for a text search before it shows how far it is."""
SEARCHED = (State.READY, State.DELAYED, State.LEASED, State.DEAD)

_ids = IdMaker()


async def search(visit: Visit) -> Response:
    """Looks for an id first, and goes to its job if there is one; else shows queues, topics and a text search."""
    if visit.query.get("run"):
        run = await _run(visit)
        return await _show(visit, run.text, run)
    wanted = visit.query.get("q", "").strip()
    if len(wanted) > LONGEST:
        raise InvalidRequest(f"text to search for must have at most {LONGEST} characters")
    if not wanted:
        return await _show(visit, "", None)
    if place := await _in_queue(visit, wanted):
        return visit.go(place)
    found = await _by_id(visit, wanted) if _is_id(wanted) else []
    old, is_whole = await _past(visit, wanted)
    exact = [one for one in old if one.id == wanted]
    if len(found) == 1:
        pool, job = found[0]
        return visit.go(job_link(pool, job.queue, job.id))
    if not found and len(exact) == 1:
        return visit.go(job_link(exact[0].pool, exact[0].queue, exact[0].id))
    queues, topics = await _names(visit, wanted)
    run = await _start(visit, wanted) if not found and not exact else None
    return await _show(visit, wanted, run, found=found, old=old, is_whole=is_whole, queues=queues, topics=topics)


async def _show(visit: Visit, text: str, run: TextSearch | None, *, is_whole: bool = True, **found: object) -> Response:
    """`run` searches all jobs for the text; `found` has what was found by id and by name."""
    lists: dict[str, Any] = {"found": (), "old": (), "queues": (), "topics": (), **found}
    return await visit.page("search.html", q=text, run=run, is_whole=is_whole, **lists)


async def _past(visit: Visit, beginning: str) -> tuple[list[PastJob], bool]:
    """The jobs whose ids begin with this text, from the journal on this machine; from the pipelines' lake, too, if the
    journal has no job with this id. And whether both were read to the end.
    """
    found, is_whole = await find_ids(visit.parts.settings, beginning)
    if not any(one.id == beginning for one in found):
        lake = await asyncio.to_thread(find_in_lake, visit.parts.settings.lake, beginning)
        known = {(one.pool, one.queue, one.id) for one in found}
        found += [one for one in lake.jobs if (one.pool, one.queue, one.id) not in known]
        is_whole = is_whole and lake.is_whole
    return [one for one in found if visit.session.sees(one.pool, one.queue.namespace)], is_whole


async def _in_queue(visit: Visit, wanted: str) -> str:
    """The page of a job that is given by its topic or queue and its id: `order.paid 17`, `shop/order.paid 17`. A job
    that is finished is known from the journal or the lake.
    """
    name, _, rest = wanted.partition(" ")
    job_id = rest.strip()
    if not _is_id(job_id):
        return ""
    listed, _ = await visit.parts.live.snapshots.names()
    named = {
        (pool, queue)
        for pool, queue in listed
        if name in (queue.name, str(queue)) and visit.sees(pool, queue.namespace)
    }
    for pool, queue in sorted(named)[:MOST_ASKED]:
        [job] = await visit.parts.pools.engine(pool).store.get(queue, [job_id])
        if job is not None:
            return job_link(pool, queue, job_id)
    past, _ = await _past(visit, job_id) if named else ([], True)
    finished = (one for one in past if one.id == job_id and (one.pool, one.queue) in named)
    return next((job_link(one.pool, one.queue, job_id) for one in finished), "")


def _is_id(text: str) -> bool:
    try:
        check_id(text)
    except DuetimeError:
        return False
    return True


async def _by_id(visit: Visit, job_id: str) -> list[tuple[str, Job]]:
    """The jobs with this id in the largest queues that the visitor sees."""
    listed, _ = await visit.parts.live.snapshots.names()
    sizes = {(line.pool, line.queue): line.counts.total for line in visit.parts.live.snapshots.last.lines}
    seen = (place for place in listed if visit.session.sees(place[0], place[1].namespace))
    found: list[tuple[str, Job]] = []
    for pool, queue in heapq.nlargest(MOST_ASKED, seen, key=lambda place: sizes.get(place, 1)):
        [job] = await visit.parts.pools.engine(pool).store.get(queue, [job_id])
        if job is not None:
            found.append((pool, job))
    return found


async def _names(visit: Visit, wanted: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Queues and topics with this text in their names: what they are called, and their addresses."""
    part = wanted.lower()
    listed, _ = await visit.parts.live.snapshots.names()
    queues = [
        (str(queue), queue_link(pool, queue))
        for pool, queue in sorted(listed)
        if visit.session.sees(pool, queue.namespace) and part in str(queue).lower()
    ]
    places = [TopicAddress.of_key(record.key) for record in visit.parts.registry_copy.list_records(TOPICS)]
    topics = [
        (str(place.queue), queue_link(place.pool, place.queue, "topic"))
        for place in places
        if visit.session.sees(place.pool, place.queue.namespace) and part in str(place.queue).lower()
    ]
    return queues[:MOST_NAMES], topics[:MOST_NAMES]


async def _start(visit: Visit, text: str) -> TextSearch:
    """Search all jobs that the visitor has chosen, or those of one queue and state."""
    name, state = visit.given("queue"), visit.given("state")
    if name:
        queue, store = visit.queue(), visit.engine().store
        [counts] = await store.counts([queue])
        states = (State(state),) if state in set(State) else SEARCHED
        targets = [SearchTarget((visit.pool(), queue), states)]
        total = sum(getattr(counts, str(one)) for one in states)
    else:
        snapshot = await visit.parts.live.snapshots.read(fresh=True)
        lines = [line for line in snapshot.lines if visit.sees(line.pool, line.queue.namespace) and line.counts.total]
        lines.sort(key=lambda line: line.counts.total)
        targets = [SearchTarget((line.pool, line.queue), SEARCHED) for line in lines]
        total = sum(line.counts.total for line in lines)
    session = visit.session
    run = TextSearch(
        _ids.make(),
        session.user,
        text,
        total,
        time.time(),
        pool=session.pool,
        namespace=session.namespace,
        queue=str(visit.queue()) if name else "",
    )
    return await visit.services.searches.start(run, targets, within_s=WITHIN_S)


async def search_all(visit: Visit) -> Response:
    """Search all jobs for a text, on the page of their progress."""
    text = visit.field("q").strip()
    if not text or len(text) > LONGEST:
        raise InvalidRequest(f"text to search for must have 1 to {LONGEST} characters")
    return visit.go(link("search", run=(await _start(visit, text)).id))


async def stop(visit: Visit) -> Response:
    run = await _run(visit)
    await visit.services.searches.stop(run.id)
    return visit.go(link("search", run=run.id), visit.say("search.stopping"))


async def _run(visit: Visit) -> TextSearch:
    run = await visit.services.searches.read(visit.given("run")[:64])
    session = visit.session
    # The user of the session that began it, and nobody with other rights under the same name.
    if run is None or (run.user, run.pool, run.namespace) != (session.user, session.pool, session.namespace):
        raise NotFound(visit.say("search.no_run"))
    return run

"""The page Failures: the dead letters of all queues, newest first, grouped by error; retry, delete and export them."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response

from duetime.console.bulk_runs import DEAD_VERBS, BulkRun
from duetime.console.errors_seen import ErrorName, fold_frames, name_error, quote_error
from duetime.console.failures import FailureGroup, GroupKey, Place
from duetime.console.formats import number
from duetime.console.pages.jobs import export_lines, preview
from duetime.console.visit import Visit, chosen, link, read_number
from duetime.model.errors import NOT_JSON, InvalidRequest
from duetime.model.ids import IdMaker
from duetime.model.job import STEP_JOBS, Job, State
from duetime.model.names import Queue, check_id, check_queue

PER_PAGE = 50
GROUPS = 50
FIRST_S = 0.25
"""How long the page waits for dead letters to be read before it shows what was read so far."""
ACT_S = 20.0
"""How long an action on a group waits until all of the group was read."""
ROWS = 10
BREATHER = 2_000

_ids = IdMaker()


SORTS: Mapping[str, Callable[[FailureGroup], Any]] = {
    "last": lambda one: -one.last,
    "error": lambda one: one.name.line,
    "count": lambda one: -one.count,
    "first": lambda one: -one.first,
}


class FailureFilter(NamedTuple):
    """One group, one queue, or both; neither for everything that the visitor has chosen."""

    group: str = ""
    place: Place | None = None

    def query(self) -> dict[str, str]:
        of_place = {}
        if self.place:
            pool, queue = self.place
            of_place = {"pool": pool, "namespace": queue.namespace, "queue": queue.name}
        return {"group": self.group, **of_place}


def read_filter(visit: Visit) -> FailureFilter:
    place = (visit.pool(), visit.queue()) if visit.given("queue") else None
    return FailureFilter(visit.given("group")[:32], place)


async def show_failures(visit: Visit) -> Response:
    wanted, failures = read_filter(visit), visit.services.failures
    await failures.refresh(within_s=FIRST_S, fresh=not visit.is_partial)
    seen = failures.seen(visit.sees, only=wanted.place)
    before = _read_cursor(visit.query.get("before", ""))
    page = list(islice(failures.newest(visit.sees, group=wanted.group, only=wanted.place, before=before), PER_PAGE + 1))
    rows = await _details(visit, [(place, job.id) for place, job in page[:PER_PAGE]])
    last = page[PER_PAGE - 1][1] if len(page) > PER_PAGE else None
    group = next((one for one in seen.groups if one.key == wanted.group), None)
    return await visit.page(
        "failures.html",
        seen=seen,
        wanted=wanted,
        group=group,
        folded=fold_frames(group.sample) if group else None,
        groups=visit.sort(seen.groups, SORTS)[:GROUPS],
        hidden_groups=max(len(seen.groups) - GROUPS, 0),
        rows=rows,
        total=group.count if group else sum(one.count for one in seen.groups) if not wanted.group else 0,
        older=link("failures", **wanted.query(), before=f"{last.dead_at}:{last.id}") if last else "",
        is_first=not visit.query.get("before"),
    )


def _read_cursor(text: str) -> tuple[int, str]:
    at, _, job_id = text.partition(":")
    return read_number(at) or 1 << 62, job_id


async def _details(visit: Visit, page: Sequence[tuple[Place, str]]) -> list[tuple[str, Job, str, ErrorName]]:
    """The jobs of a page as the store has them now, in this order; those that are not dead any more are left out."""
    ids: dict[Place, list[str]] = {}
    for place, job_id in page:
        ids.setdefault(place, []).append(job_id)
    found: dict[tuple[Place, str], Job] = {}
    for place, wanted in ids.items():
        left = list(wanted)
        while left:
            jobs = await visit.parts.pools.engine(place[0]).store.get(place[1], left)
            left = left[len(jobs) :]
            found |= {(place, job.id): job for job in jobs if job is not None and job.state is State.DEAD}
    dead = [(place, found[place, job_id]) for place, job_id in page if (place, job_id) in found]
    return [(place[0], job, preview(job), quote_error(job.error)) for place, job in dead]


# --- actions


class ActOn(NamedTuple):
    """The jobs that an action is about: `total` of them, by queue; `group` is the one they are of, if it is one."""

    ids: Mapping[Place, list[str]]
    total: int
    group: FailureGroup | None
    wanted: FailureFilter


async def _chosen(visit: Visit, until: int) -> ActOn:
    """The jobs that were ticked, or all of a group or queue that died until then."""
    wanted, failures = read_filter(visit), visit.services.failures
    ids: dict[Place, list[str]] = {}
    ticked = visit.all_of("job")
    if ticked:
        for text in ticked:
            place, job_id = _read_job(visit, text)
            ids.setdefault(place, []).append(job_id)
        return ActOn(ids, len(ticked), None, wanted)
    if visit.given("which") == "chosen":
        raise InvalidRequest(visit.say("failures.none_chosen"))
    await failures.refresh(within_s=ACT_S, fresh=True)
    for step, (place, job) in enumerate(failures.newest(visit.sees, group=wanted.group, only=wanted.place)):
        if job.dead_at <= until:
            ids.setdefault(place, []).append(job.id)
        if step % BREATHER == 0:
            await asyncio.sleep(0)  # others have the event loop in between
    groups = failures.seen(visit.sees, only=wanted.place).groups
    group = next((one for one in groups if one.key == wanted.group), None)
    return ActOn(ids, sum(len(one) for one in ids.values()), group, wanted)


def _read_job(visit: Visit, text: str) -> tuple[Place, str]:
    """A ticked row: pool, namespace, queue and id. Raises InvalidRequest, and NotFound where the session sees none."""
    try:
        pool, namespace, name, job_id = msgspec.json.decode(text, type=tuple[str, str, str, str])
    except NOT_JSON:
        raise InvalidRequest("not a job of the list") from None
    queue: Queue = check_queue(namespace, name)
    visit.check_sees(pool, queue.namespace)
    return (pool, queue), check_id(job_id)


async def preview_action(visit: Visit) -> Response:
    """What the action would do: how many jobs in which queues, and the first of them."""
    verb = chosen(DEAD_VERBS, visit.given("verb"))
    act = await _chosen(visit, visit.now)
    first = [(place, job_id) for place, ids in act.ids.items() for job_id in ids[:ROWS]][:ROWS]
    return await visit.page(
        "failures_act.html",
        verb=verb,
        act=act,
        ticked=visit.all_of("job"),
        until=visit.now,
        rows=await _details(visit, first),
        back=link("failures", **act.wanted.query()),
    )


async def act(visit: Visit) -> Response:
    """Retry or delete exactly the jobs that the preview counted, without those that are no longer dead."""
    verb = chosen(DEAD_VERBS, visit.field("verb"))
    act = await _chosen(visit, read_number(visit.field("until")) or visit.now)
    group = act.wanted.group if not visit.all_of("job") else ""
    found = await visit.services.failures.jobs_of(act.ids, group)
    total = sum(len(jobs) for jobs in found.values())
    back = (visit.field("back") and visit.back()) or link("failures")
    if not total:
        return visit.go(back, visit.say("failures.none_left"), kind="problem")
    run = BulkRun(_ids.make(), visit.session.user, list(found), verb, State.DEAD, total, time.time(), back=back)
    name = act.group.name.line if act.group else ""
    one = next(iter(found.values()))[0].id if total == 1 else ""
    subject = f"{run.subject} {one}".strip() if run.subject else f"{len(run.places)} queues"
    await visit.log(verb, subject, f"{total} jobs" + (f": {name}" if name else ""))
    run = await visit.services.bulk_runs.start(run, list(found.items()))
    await visit.services.failures.forget(list(found))
    if run.state == "running" or run.total > STEP_JOBS:
        return visit.go(link("bulk-run", run=run.id))
    text = visit.say(f"failures.{verb}_done", count=number(run.changed))
    return visit.go(back, text, undo=run.id if run.can_undo else "")


async def export(visit: Visit) -> Response:
    wanted = visit.given("group")
    return export_lines(
        visit,
        (State.DEAD,),
        lambda job: not wanted or GroupKey(name_error(job.error), job.reason).key == wanted,
    )

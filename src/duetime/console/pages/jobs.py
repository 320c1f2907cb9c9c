"""The page that lists the jobs of a queue by state and filter, and the export of what it lists."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from heapq import heapify, heappop, heappush, nlargest
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response, StreamingResponse

from duetime.console.bulk_runs import VERBS
from duetime.console.errors_seen import quote_error
from duetime.console.formats import body_text
from duetime.console.forms import FormReader
from duetime.console.job_lines import job_line
from duetime.console.queue_snapshots import LiveQueue
from duetime.console.saved_views import saved_views
from duetime.console.searches import contains
from duetime.console.visit import Visit, chosen, queue_link
from duetime.model.clock import MAX_INSTANT, rfc3339
from duetime.model.errors import InvalidRequest, NotFound
from duetime.model.job import STEP_JOBS, Counts, Job, State
from duetime.model.names import Queue
from duetime.stores.base import Cursor, Page
from duetime.wire.payload import describe

PER_PAGE = 50
LOOK_AT = 2_000
"""How many jobs are read for one page to find those that pass its filter."""
STEP = 100
MOST_READ = 268_435_456
"""Bytes of bodies that are read for one page."""
PREVIEW = 120
MAX_SEARCH = 1_000
RETRYING = "retrying"
"""Waiting jobs that were tried before: shown like a state, though stores keep them among ready and delayed."""
TABS = (State.READY, State.DELAYED, RETRYING, State.LEASED, State.DEAD)
MOST_TRAIL = 30
MOST_CHIPS = 8
ALL_TABS = (State.DELAYED, State.READY, State.LEASED)
READ_JOBS = 10
MOST_READS = 60
"""How many times queues are read for the list of all queues, each for READ_JOBS jobs."""


@dataclass(frozen=True)
class JobFilter:
    """Which jobs of a state: due from `since` and before `until`, with a text in the body, with an attribute."""

    state: State
    since: int = 0
    until: int = 0
    text: str = ""
    attribute: str = ""
    retrying: bool = False

    @property
    def is_open(self) -> bool:
        return not (self.since or self.until or self.text or self.attribute)

    @property
    def tab(self) -> str:
        return RETRYING if self.retrying else self.state

    @property
    def states(self) -> Sequence[State]:
        return (State.READY, State.DELAYED) if self.retrying else (self.state,)

    def query(self) -> dict[str, object]:
        """As addresses and forms have it."""
        since, until = self.since or "", self.until or ""
        return {"state": self.tab, "since": since, "until": until, "text": self.text, "attribute": self.attribute}

    def fits(self, job: Job) -> bool:
        if self.retrying and not job.attempt:
            return False
        if job.due_at < self.since or (self.until and job.due_at >= self.until):
            return False
        if self.text and not contains(job, self.text.casefold()):
            return False
        name, equals, value = self.attribute.partition("=")
        return not name or (name in job.attributes and (not equals or job.attributes[name] == value))

    def is_past(self, job: Job, state: State) -> bool:
        """True if no job after this one can fit: delayed jobs are listed in the order of their due times."""
        return state is State.DELAYED and bool(self.until) and job.due_at >= self.until

    def __str__(self) -> str:
        """As the audit log shows it."""
        parts = [self.tab]
        parts += [f"due from {rfc3339(self.since)}"] if self.since else []
        parts += [f"due before {rfc3339(self.until)}"] if self.until else []
        parts += [f"with the text {self.text!r}"] if self.text else []
        parts += [f"with the attribute {self.attribute}"] if self.attribute else []
        return ", ".join(parts)


class FoundJobs(NamedTuple):
    """`looked_at` jobs were read; `cursor` is where to go on, None at the end.

    The jobs have no bodies and attributes, so that thousands of them fit into memory; `previews` show the bodies, and
    `attributes` counts `name=value` of the first of them.
    """

    jobs: list[Job]
    previews: list[str]
    looked_at: int
    cursor: str | None
    attributes: Mapping[str, int] = MappingProxyType({})


def read_filter(visit: Visit) -> JobFilter:
    """Raises FormRefused with every field that is wrong."""
    form = FormReader(visit)
    for name in ("text", "attribute"):
        if len(visit.given(name)) > MAX_SEARCH:
            form.refuse(name, f"must have at most {MAX_SEARCH:,} characters")

    def instant(text: str) -> int:
        return visit.read_time(text).at(visit.now) if text.strip() else 0

    tab = chosen([str(one) for one in (State.DELAYED, *TABS)], visit.given("state"))
    wanted = JobFilter(
        State.DELAYED if tab == RETRYING else State(tab),
        since=form.read("since", instant, 0),
        until=form.read("until", instant, 0),
        text=visit.given("text"),
        attribute=visit.given("attribute").strip(),
        retrying=tab == RETRYING,
    )
    form.check()
    return wanted


async def find_jobs(visit: Visit, wanted: JobFilter, *, cursor: str | None, most: int, look_at: int) -> FoundJobs:
    """Walk the jobs of a state in order until `most` are found or about `look_at`, or MOST_READ, are read."""
    found, previews, attributes = list[Job](), list[str](), Counter[str]()
    looked_at = size = 0
    async for state, page, is_last in _pages(visit, wanted, cursor, min(STEP, max(most, 50))):
        mark = f"{state}~" if wanted.retrying else ""
        for job in page.jobs:
            if wanted.is_past(job, state):
                return FoundJobs(found, previews, looked_at, None, attributes)
            looked_at += 1
            size += len(job.body)
            if wanted.fits(job):
                found.append(msgspec.structs.replace(job, body=b"", attributes={}))
                previews.append(preview(job))
                if len(found) <= PER_PAGE:
                    attributes.update(f"{name}={value}" for name, value in job.attributes.items())
                if len(found) == most:
                    more = page.cursor is not None or job is not page.jobs[-1] or not is_last
                    return FoundJobs(
                        found, previews, looked_at, f"{mark}{Cursor.of(job)}" if more else None, attributes
                    )
        if page.cursor is not None and (looked_at >= look_at or size >= MOST_READ):
            return FoundJobs(found, previews, looked_at, mark + page.cursor, attributes)
    return FoundJobs(found, previews, looked_at, None, attributes)


async def _pages(
    visit: Visit, wanted: JobFilter, cursor: str | None, limit: int
) -> AsyncIterator[tuple[State, Page, bool]]:
    """The pages of the filter's states from a cursor on, and whether a page is of the last state."""
    store, queue, states = visit.engine().store, visit.queue(), list(wanted.states)
    if wanted.retrying and cursor is not None:
        name, _, cursor = cursor.partition("~")
        states = states[states.index(State(name)) :] if name in states else states
    for state in states:
        if cursor is None and wanted.since and state is State.DELAYED:
            cursor = str(Cursor(0, wanted.since, ""))
        while True:
            page = await store.list_jobs(queue, state, cursor=cursor or None, limit=limit)
            yield state, page, state is states[-1]
            cursor = page.cursor
            if cursor is None:
                break
            await asyncio.sleep(0)


async def count_retrying(visit: Visit, counts: Counts) -> tuple[int, bool]:
    """How many waiting jobs of the queue were tried before, among the first LOOK_AT; and whether these are all."""
    if not counts.ready and not counts.delayed:
        return 0, True
    found = await find_jobs(visit, JobFilter(State.DELAYED, retrying=True), cursor=None, most=LOOK_AT, look_at=LOOK_AT)
    return len(found.jobs), found.cursor is None


async def check_queue_exists(visit: Visit, pool: str, queue: Queue) -> None:
    """Raises NotFound for a queue that has no jobs, no rules and no totals."""
    engine = visit.parts.pools.engine(pool)
    [counts] = await engine.store.counts([queue])
    if counts.total:
        return
    [totals], queues = await engine.store.totals([queue]), await engine.store.queues(queue.namespace)
    if queue not in queues and not any(getattr(totals.running, name) for name in totals.running.__struct_fields__):
        raise NotFound(visit.say("error.no_queue", queue=queue))


async def list_jobs(visit: Visit) -> Response:
    """The jobs of one queue by state and filter. Without a queue, the next jobs of all queues."""
    if not visit.given("queue"):
        return await _list_all(visit)
    pool, queue = visit.pool(), visit.queue()
    await check_queue_exists(visit, pool, queue)
    [counts] = await visit.engine().store.counts([queue])
    try:
        wanted = read_filter(visit)
    except InvalidRequest as refused:
        visit.errors = getattr(refused, "errors", {"": refused.message})
        wanted = JobFilter(State(chosen(list(State), visit.given("state"))))
    total = sum(getattr(counts, str(state)) for state in wanted.states)
    can_sort = total <= LOOK_AT
    if visit.errors:
        shown = ListedJobs(FoundJobs([], [], 0, None), [])
    elif visit.query.get("sort") and can_sort:
        shown = await _sorted_jobs(visit, wanted)
    else:
        shown = await _next_page(visit, wanted)
    return await visit.page(
        "jobs.html",
        pool=pool,
        queue=queue,
        counts=counts,
        wanted=wanted,
        since=shown_time(visit, wanted.since),
        until=shown_time(visit, wanted.until),
        shown=shown,
        total=total,
        can_sort=can_sort,
        most_sorted=LOOK_AT,
        attributes=nlargest(MOST_CHIPS, shown.found.attributes, key=shown.found.attributes.__getitem__),
        views=saved_views(visit, pool, queue),
        tabs=TABS,
        verbs=VERBS,
        filtered=partial(jobs_link, pool, queue, wanted),
        quote_error=quote_error,
        time_of=time_of,
    )


class ListedJobs(NamedTuple):
    """The jobs of one page with their previews; `previous` and `next` are the addresses of its neighbours, if any."""

    found: FoundJobs
    rows: Sequence[tuple[Job, str]]
    previous: str = ""
    next: str = ""


def time_of(job: Job) -> int:
    """The time that the list shows: when it is due, or its lease ends, or it died."""
    return {State.LEASED: job.lease_until, State.DEAD: job.dead_at}.get(job.state, job.due_at)


SORTS: Mapping[str, Callable[[tuple[Job, str]], Any]] = {
    "due": lambda row: time_of(row[0]),
    "body": lambda row: row[1].casefold(),
    "id": lambda row: row[0].id,
    "born": lambda row: -row[0].born,
    "attempt": lambda row: -row[0].attempt,
    "error": lambda row: quote_error(row[0].error).line,
}


async def _next_page(visit: Visit, wanted: JobFilter) -> ListedJobs:
    """The next jobs in the order of the store; `trail` has the cursors of the pages before."""
    cursor = visit.query.get("cursor", "")
    found = await find_jobs(visit, wanted, cursor=cursor or None, most=PER_PAGE, look_at=LOOK_AT)
    if wanted.state is not State.READY and not wanted.retrying:
        visit.sorted_by = "due"
    trail = [one for one in visit.query.get("trail", "").split("\n") if one.count(":") >= 2 or one == "-"][-MOST_TRAIL:]
    go = partial(jobs_link, visit.pool(), visit.queue(), wanted)
    return ListedJobs(
        found,
        list(zip(found.jobs, found.previews, strict=True)),
        go(cursor=trail[-1].removeprefix("-"), trail="\n".join(trail[:-1])) if trail else "",
        go(cursor=found.cursor, trail="\n".join([*trail, cursor or "-"])) if found.cursor else "",
    )


async def _sorted_jobs(visit: Visit, wanted: JobFilter) -> ListedJobs:
    """Stores list jobs in one order only, so all jobs of the state are read; there are LOOK_AT at most."""
    found = await find_jobs(visit, wanted, cursor=None, most=LOOK_AT, look_at=LOOK_AT)
    rows = visit.sort(zip(found.jobs, found.previews, strict=True), SORTS)
    page = visit.paged(rows, PER_PAGE)
    return ListedJobs(
        found,
        page.rows,
        visit.changed(page=page.number - 1) if page.number > 1 else "",
        visit.changed(page=page.number + 1) if page.number < page.pages else "",
    )


def shown_time(visit: Visit, at: int) -> str:
    """A time as forms take it, in the visitor's zone."""
    if not 0 < at <= MAX_INSTANT:
        return ""
    return f"{datetime.fromtimestamp(at / 1000, visit.zone):%Y-%m-%d %H:%M:%S}"


def preview(job: Job) -> str:
    """The call if the body is a task's, else the beginning of the body."""
    shown = describe(job.body)
    if shown is not None or not job.body:
        return shown or ""
    kind, text = body_text(job.body[: PREVIEW * 4])
    return (text if kind == "hex" else job.body[: PREVIEW * 4].decode(errors="ignore"))[:PREVIEW]


async def _list_all(visit: Visit) -> Response:
    """The next jobs of all queues: by due time, running ones by the end of their leases."""
    state = State(chosen([str(one) for one in ALL_TABS], visit.query.get("state", "")))
    snapshot = await visit.parts.live.snapshots.for_page(is_partial=visit.is_partial)
    counts = visit.parts.live.snapshots.sums(snapshot, *visit.scope, visit.sees).counts
    seen = (line for line in snapshot.lines if visit.sees(line.pool, line.queue.namespace) and not line.is_internal)
    lines = [line for line in seen if getattr(line.counts, state)]
    found = await _next_jobs(visit, state, lines)
    return await visit.page(
        "all_jobs.html",
        state=state,
        tabs=ALL_TABS,
        counts=counts,
        rows=[(pool, job, preview(job)) for pool, job in found],
        views=saved_views(visit),
        total=getattr(counts, state),
        counting=not snapshot.is_known,
    )


async def _next_jobs(visit: Visit, state: State, lines: Sequence[LiveQueue]) -> list[tuple[str, Job]]:
    """A queue is read when its earliest job may be the next one, and a few jobs at a time."""
    heap: list[tuple[int, int, LiveQueue, str | None, Job | None]] = []
    number = count()
    for line in lines:
        bound = line.head or 0 if state is not State.LEASED else 0
        heap.append((bound, next(number), line, None, None))
    heapify(heap)
    found: list[tuple[str, Job]] = []
    reads = 0
    while heap and len(found) < PER_PAGE:
        bound, _, line, cursor, job = heappop(heap)
        if job is not None:
            found.append((line.pool, job))
        elif reads < MOST_READS:
            reads += 1
            store = visit.parts.pools.engine(line.pool).store
            page = await store.list_jobs(line.queue, state, cursor=cursor, limit=READ_JOBS)
            for one in page.jobs:
                bound = one.lease_until if state is State.LEASED else one.due_at
                heappush(heap, (bound, next(number), line, None, one))
            if page.cursor is not None:
                heappush(heap, (bound, next(number), line, page.cursor, None))
    return found


# --- export


async def export(visit: Visit) -> Response:
    """The jobs of a filter as JSON lines, which `duetime push --file` takes."""
    wanted = read_filter(visit)
    return export_lines(visit, wanted.states, wanted.fits)


def export_lines(visit: Visit, states: Sequence[State], fits: Callable[[Job], bool]) -> Response:
    store, queue = visit.engine().store, visit.queue()

    async def lines() -> AsyncIterator[bytes]:
        [counts] = await store.counts([queue])
        for state in states:
            cursor: str | None = None
            while True:
                page = await store.list_jobs(queue, state, cursor=cursor, limit=STEP_JOBS)
                yield b"".join(job_line(job, counts.now) for job in page.jobs if fits(job))
                cursor = page.cursor
                if cursor is None:
                    break

    name = f"{queue.namespace}-{queue.name}-{states[-1]}.jsonl"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)


def jobs_link(pool: str, queue: Queue, wanted: JobFilter, path: str = "jobs", **more: object) -> str:
    """The address of the list, or of another page about the same jobs."""
    return queue_link(pool, queue, path, **{**wanted.query(), **more})

"""The pages that find jobs, and the page of one job: what it is, what happened to it, and what can be done to it."""

import base64
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from starlette.responses import Response, StreamingResponse

from duetime.console.action_log import changes
from duetime.console.bulk_runs import VERBS
from duetime.console.formats import body_text
from duetime.console.job_lines import job_line
from duetime.console.timeline import read_timeline
from duetime.console.visit import Visit, chosen, job_link
from duetime.model.clock import MAX_INSTANT, bare_instant_ms, duration_ms, instant_ms, rfc3339
from duetime.model.errors import DuetimeError, InvalidRequest, InvalidTime, JobNotFound
from duetime.model.ids import IdMaker
from duetime.model.job import STEP_JOBS, IfExists, Job, Lease, NewJob, Priority, State
from duetime.model.names import check_attributes, check_id
from duetime.wire.payload import describe

PER_PAGE = 50
LOOK_AT = 2_000
"""How many jobs are read for one page to find those that pass its filter."""
QUEUES = 5_000
SEARCH_S = 2.0
SURELY = 500
"""So many queues are searched for an id in any case, and as many more as the time allows."""
MOST_READ = 268_435_456
"""Bytes of bodies that are read for one page."""
PREVIEW = 120
MAX_SEARCH = 1_000
LOGGED = ("body", "due_at", "expires_at", "priority", "tries", "attributes")
"""What the log of actions says of a job that was edited."""

_ids = IdMaker()


@dataclass(frozen=True)
class JobFilter:
    """Which jobs of a state: due from `since` and before `until`, with a text in the body, with an attribute."""

    state: State
    since: int = 0
    until: int = 0
    text: str = ""
    attribute: str = ""

    @property
    def is_open(self) -> bool:
        return not (self.since or self.until or self.text or self.attribute)

    def fits(self, job: Job) -> bool:
        if job.due_at < self.since or (self.until and job.due_at >= self.until):
            return False
        if self.text and self.text.encode() not in job.body:
            return False
        name, equals, value = self.attribute.partition("=")
        return not name or (name in job.attributes and (not equals or job.attributes[name] == value))

    def is_past(self, job: Job) -> bool:
        """True if no job after this one can fit: delayed jobs are listed in the order of their due times."""
        return self.state is State.DELAYED and bool(self.until) and job.due_at >= self.until


class FoundJobs(NamedTuple):
    """`looked_at` jobs were read; `cursor` is where to go on, None at the end.

    The jobs have no bodies and attributes, so that thousands of them fit into memory; `previews` show the bodies.
    """

    jobs: list[Job]
    previews: list[str]
    looked_at: int
    cursor: str | None


def read_filter(visit: Visit) -> JobFilter:
    for name in ("text", "attribute"):
        if len(visit.given(name)) > MAX_SEARCH:
            raise InvalidRequest(f"{name} to search for must have at most {MAX_SEARCH:,} characters")
    return JobFilter(
        State(chosen(list(State), visit.given("state"))),
        since=_when(visit.given("since")),
        until=_when(visit.given("until")),
        text=visit.given("text"),
        attribute=visit.given("attribute").strip(),
    )


ZONE = re.compile(r"(Z|[+-]\d\d:\d\d)$", re.IGNORECASE)


def _when(text: str) -> int:
    """Epoch milliseconds, RFC 3339, or `2026-11-15 09:00`, which is UTC here."""
    text = text.strip()
    if not text:
        return 0
    if not text.isdigit() and not ZONE.search(text):
        text = text.replace(" UTC", "").replace(" ", "T") + "Z"
    return instant_ms(text)


async def find_jobs(visit: Visit, wanted: JobFilter, *, cursor: str | None, most: int, look_at: int) -> FoundJobs:
    """Walk the jobs of a state in order until `most` are found or about `look_at`, or MOST_READ, are read."""
    store, queue = visit.engine().store, visit.queue()
    if cursor is None and wanted.since and wanted.state is State.DELAYED:
        cursor = visit.parts.cursor_at(visit.pool(), wanted.since)
    found, previews = list[Job](), list[str]()
    looked_at = size = 0
    while True:
        page = await store.list_jobs(queue, wanted.state, cursor=cursor, limit=min(STEP_JOBS, max(most, 100)))
        cursor = page.cursor
        for job in page.jobs:
            if wanted.is_past(job):
                return FoundJobs(found, previews, looked_at, None)
            looked_at += 1
            size += len(job.body)
            if wanted.fits(job):
                found.append(msgspec.structs.replace(job, body=b"", attributes={}))
                previews.append(preview(job))
                if len(found) == most:
                    more = cursor is not None or job is not page.jobs[-1]
                    return FoundJobs(found, previews, looked_at, _after(wanted.state, job) if more else None)
        if cursor is None or looked_at >= look_at or size >= MOST_READ:
            return FoundJobs(found, previews, looked_at, cursor)


def _after(state: State, job: Job) -> str | None:
    """The cursor that goes on after a job, in the form that all stores share (checked by protocols/v1/views.py)."""
    at = {State.LEASED: job.lease_until, State.DEAD: job.dead_at}.get(state, job.due_at)
    return f"{int(job.priority) if state is State.READY else 0}:{at}:{job.id}"


async def list_jobs(visit: Visit) -> Response:
    """Find a job by id in all queues, or list the jobs of one queue by state and filter."""
    if not visit.query.get("queue"):
        return await _search(visit)
    pool, queue, wanted = visit.pool(), visit.queue(), read_filter(visit)
    cursor = visit.query.get("cursor") or None
    if cursor is not None and cursor.count(":") < 2:
        raise InvalidRequest("not a cursor of a list")
    found = await find_jobs(visit, wanted, cursor=cursor, most=PER_PAGE, look_at=LOOK_AT)
    return visit.page(
        "jobs.html",
        pool=pool,
        queue=queue,
        wanted=wanted,
        since=_shown(wanted.since),
        until=_shown(wanted.until),
        found=found,
        rows=list(zip(found.jobs, found.previews, strict=True)),
        states=list(State),
        verbs=VERBS,
        now=int(time.time() * 1000),
    )


def _shown(at: int) -> str:
    return rfc3339(at)[:19].replace("T", " ") if 0 < at <= MAX_INSTANT else ""


def preview(job: Job) -> str:
    """The call if the body is a task's, else the beginning of the body."""
    shown = describe(job.body)
    return shown if shown is not None else body_text(job.body[:PREVIEW])[1][:PREVIEW] if job.body else ""


async def _search(visit: Visit) -> Response:
    """Look for an id in every queue that the visitor sees, for no longer than a person would wait."""
    job_id = visit.query.get("id", "").strip()
    listed, _ = await visit.parts.live.looks.names()
    places = sorted(place for place in listed if visit.session.sees(place[0], place[1].namespace))
    found: list[tuple[str, Job]] = []
    looked_at, deadline = 0, time.monotonic() + SEARCH_S
    if job_id:
        check_id(job_id)
        for pool, queue in places[:QUEUES]:
            if looked_at >= SURELY and time.monotonic() > deadline:
                break
            looked_at += 1
            [job] = await visit.parts.pools.engine(pool).store.get(queue, [job_id])
            if job is not None:
                found.append((pool, job))
    if len(found) == 1:
        pool, job = found[0]
        return visit.go(job_link(pool, job.queue, job.id))
    lines = await visit.parts.live.looks.lines_of(places[:PER_PAGE])
    return visit.page("search.html", id=job_id, found=found, looked_at=looked_at, queues=len(places), lines=lines)


# --- one job


async def show_job(visit: Visit) -> Response:
    pool, queue, job_id = visit.pool(), visit.queue(), visit.job_id()
    [job] = await visit.engine().store.get(queue, [job_id])
    timeline = await read_timeline(visit.parts.settings, pool, queue, job_id, born=job.born if job else 0)
    if job is None and not timeline.lives:
        raise JobNotFound.of(job_id, queue)
    kind, text = body_text(job.body) if job else ("", "")
    return visit.page(
        "job.html",
        status=200,
        pool=pool,
        queue=queue,
        id=job_id,
        job=job,
        kind=kind,
        text=text,
        call=describe(job.body) if job else None,
        timeline=timeline,
        now=int(time.time() * 1000),
    )


async def download_body(visit: Visit) -> Response:
    job = await _job(visit)
    headers = {"content-disposition": 'attachment; filename="body"'}
    return Response(job.body, media_type="application/octet-stream", headers=headers)


async def _job(visit: Visit) -> Job:
    queue, job_id = visit.queue(), visit.job_id()
    [job] = await visit.engine().store.get(queue, [job_id])
    if job is None:
        raise JobNotFound.of(job_id, queue)
    return job


async def cancel(visit: Visit) -> Response:
    queue, job_id = visit.queue(), visit.job_id()
    [moved] = await visit.engine().cancel(queue, [job_id])
    if moved is None:
        raise JobNotFound.of(job_id, queue)
    await visit.log("cancel", f"{queue} {job_id}")
    return visit.go(text=visit.say("job.cancelled", id=job_id))


async def run_now(visit: Visit) -> Response:
    return await _reschedule(visit, "run-now", delay_ms=0)


async def reschedule(visit: Visit) -> Response:
    """`when` is a delay (10m) or an instant."""
    return await _reschedule(visit, "reschedule", **new_due(visit))


async def _reschedule(visit: Visit, action: str, *, delay_ms: int = 0, due_at: int | None = None) -> Response:
    queue, job_id = visit.queue(), visit.job_id()
    [moved] = await visit.engine().reschedule(queue, [job_id], delay_ms=delay_ms, due_at=due_at)
    if isinstance(moved, DuetimeError):
        raise moved
    if moved is None:
        raise JobNotFound.of(job_id, queue)
    await visit.log(action, f"{queue} {job_id}", f"due {rfc3339(moved.due_at)}")
    return visit.go(text=visit.say("job.rescheduled", id=job_id, at=rfc3339(moved.due_at)))


async def release(visit: Visit) -> Response:
    """Take a job from its consumer: it is tried again at once, and the consumer's lease is lost."""
    job = await _job(visit)
    await visit.engine().release(Lease(job.queue, job.id, job.born, job.attempt), error="released in the console")
    await visit.log("release", f"{job.queue} {job.id}")
    return visit.go(text=visit.say("job.released", id=job.id))


async def kill(visit: Visit) -> Response:
    job = await _job(visit)
    await visit.engine().kill(Lease(job.queue, job.id, job.born, job.attempt), error="killed in the console")
    await visit.log("kill", f"{job.queue} {job.id}")
    return visit.go(text=visit.say("job.killed", id=job.id))


# --- new, edited and cloned jobs


async def show_new(visit: Visit) -> Response:
    """An empty form, or one filled in from a job, to push it again under its id (edit) or under another (clone)."""
    mode = chosen(("new", "edit", "clone"), visit.query.get("mode", ""))
    job = await _job(visit) if mode != "new" else None
    body, encoding = _editable(job.body) if job else ("", "text")
    return visit.page(
        "new.html",
        pool=visit.pool(),
        queue=visit.queue(),
        mode=mode,
        job=job,
        body=body,
        encoding=encoding,
        attributes="\n".join(f"{name}={value}" for name, value in job.attributes.items()) if job else "",
        priorities=list(Priority),
        due=_due_text(job),
        ttl=_ttl_left(job),
    )


def _due_text(job: Job | None) -> str:
    return rfc3339(job.due_at) if job is not None and job.state is State.DELAYED else ""


def _ttl_left(job: Job | None) -> str:
    """What is left of the ttl, so that a job that is edited expires when it would have."""
    return f"{max(job.expires_at - int(time.time() * 1000), 1)}ms" if job is not None and job.expires_at else ""


def _editable(body: bytes) -> tuple[str, str]:
    """Forms change line ends, so a body with a carriage return is edited as base64, like one that is no text."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\r"
    if "\r" in text or "\0" in text:
        return base64.b64encode(body).decode(), "base64"
    return text, "text"


async def push(visit: Visit) -> Response:
    queue, engine, edited = visit.queue(), visit.engine(), visit.field("mode") == "edit"
    job = NewJob(
        id=check_id(visit.field("id").strip() or _ids.make()),
        body=_body(visit),
        tries=_tries(visit.field("tries").strip()),
        priority=Priority(int(chosen([str(int(one)) for one in Priority], visit.field("priority")))),
        ttl_ms=duration_ms(visit.field("ttl").strip() or "0"),
        attributes=_attributes(visit.field("attributes")),
        **_due(visit.field("when").strip()),  # pyright: ignore[reportArgumentType]
    )
    if_exists = IfExists.REPLACE if edited else IfExists.ERROR
    [before] = await engine.store.get(queue, [job.id])
    await engine.push(queue, [job], if_exists=if_exists)
    [after] = await engine.store.get(queue, [job.id])
    detail = changes(before, after, LOGGED) if edited and before and after else f"{len(job.body)} bytes"
    await visit.log("edit" if edited else "push", f"{queue} {job.id}", detail)
    return visit.go(job_link(visit.pool(), queue, job.id), visit.say("job.pushed", id=job.id))


def _body(visit: Visit) -> bytes:
    text = visit.field("body")
    if visit.field("encoding") != "base64":
        return text.replace("\r\n", "\n").encode()
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        raise InvalidRequest(visit.say("job.not_base64")) from None


def _tries(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise InvalidRequest(f"tries: {text[:40]!r} is not a number")
    return int(text)


def _attributes(text: str) -> dict[str, str]:
    lines = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
    return dict(check_attributes({line.partition("=")[0].strip(): line.partition("=")[2] for line in lines}))


def new_due(visit: Visit) -> dict[str, int]:
    """The time of a form that moves jobs. An empty one is refused: it would make them due at once."""
    text = visit.field("when").strip()
    if not text:
        raise InvalidTime("when: give a delay (10m) or an instant")
    return _due(text)


def _due(text: str) -> dict[str, int]:
    if not text:
        return {}
    if (due_at := bare_instant_ms(text)) is not None:
        return {"due_at": due_at}
    try:
        return {"delay_ms": duration_ms(text)}
    except DuetimeError:
        return {"due_at": _when(text)}


# --- export


async def export(visit: Visit) -> Response:
    """The jobs of a filter as JSON lines, which `duetime push --file` takes."""
    wanted = read_filter(visit)
    return export_lines(visit, wanted.state, wanted.fits)


def export_lines(visit: Visit, state: State, fits: Callable[[Job], bool]) -> Response:
    store, queue = visit.engine().store, visit.queue()

    async def lines() -> AsyncIterator[bytes]:
        cursor: str | None = None
        [counts] = await store.counts([queue])
        while True:
            page = await store.list_jobs(queue, state, cursor=cursor, limit=STEP_JOBS)
            yield b"".join(job_line(job, counts.now) for job in page.jobs if fits(job))
            cursor = page.cursor
            if cursor is None:
                return

    name = f"{queue.namespace}-{queue.name}-{state}.jsonl"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)

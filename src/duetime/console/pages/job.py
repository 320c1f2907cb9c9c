"""The page of one job: what it is, each of its tries, and what can be done to it; new, edited and cloned jobs."""

import asyncio
import base64
from typing import Any

from starlette.responses import Response

from duetime.console.action_log import changes
from duetime.console.errors_seen import FoldedTrace, fold_frames, quote_error
from duetime.console.formats import SHOWN_BODY, body_text, clock_time, colored, full_time
from duetime.console.forms import FormReader, read_span, whole_number
from duetime.console.journal_lookup import JobTimeline, JobTry, read_timeline
from duetime.console.lake_lookup import read_entries
from duetime.console.pages.jobs import check_queue_exists, shown_time
from duetime.console.pages.workers import read_progress
from duetime.console.visit import Visit, chosen, job_link, queue_link
from duetime.journal.reader import lives_of
from duetime.model.clock import rfc3339
from duetime.model.errors import DuetimeError, InvalidRequest, InvalidTime, JobNotFound
from duetime.model.ids import IdMaker
from duetime.model.job import IfExists, Job, Lease, NewJob, Priority, State
from duetime.model.names import check_attributes, check_id
from duetime.model.when import EXAMPLES
from duetime.wire.job_output import read_output
from duetime.wire.payload import describe
from duetime.wire.worker_beats import find_workers

LOGGED = ("body", "due_at", "expires_at", "priority", "tries", "attributes")
"""What the audit log says of a job that was edited."""
MOST_TRIES = 999_999

_ids = IdMaker()


async def show_job(visit: Visit) -> Response:
    pool, queue, job_id = visit.pool(), visit.queue(), visit.job_id()
    [job] = await visit.engine().store.get(queue, [job_id])
    timeline = await read_timeline(visit.parts.settings, pool, queue, job_id, born=job.born if job else 0)
    if job is None and not timeline.lives:
        entries = await asyncio.to_thread(read_entries, visit.parts.settings.lake, pool, queue, job_id)
        timeline = JobTimeline(lives_of(entries), has_journal=True, is_from_lake=True)
    if job is None and not timeline.lives:
        raise JobNotFound.of(job_id, queue)
    # In a thread: to indent 64 KiB of JSON takes 40 ms.
    kind, text = await asyncio.to_thread(body_text, job.body) if job else ("", "")
    running = job if job is not None and job.state is State.LEASED else None
    registry = visit.engine().store.registry
    tries = _with_last_error(timeline.tries, job)
    return await visit.page(
        "job.html",
        pool=pool,
        queue=queue,
        id=job_id,
        job=job,
        kind=kind,
        text=await asyncio.to_thread(colored, kind, text),
        call=describe(job.body) if job else None,
        is_retrying=job is not None and job.state in (State.DELAYED, State.READY) and job.attempt > 0,
        error_name=quote_error(job.error) if job and job.error else None,
        tries=[(one, fold_frames(one.error) if one.error else FoldedTrace("", 0)) for one in reversed(tries)],
        worker=await _worker(visit, running) if running else None,
        progress=await read_progress(visit, pool, queue, job_id) if running else 0,
        output=(await read_output(registry, queue, job_id)).lines if running else [],
        running_s=(await visit.parts.live.running_s([(pool, running)]))[0] if running else None,
        timeline=timeline,
    )


def _with_last_error(tries: list[JobTry], job: Job | None) -> list[JobTry]:
    """The store has all of the last error, also of a program without a journal; the journal has the end of each."""
    if job is None or not job.error:
        return tries
    if not tries:
        end = job.dead_at if job.state is State.DEAD else 0
        outcome = "dead" if job.state is State.DEAD else "released"
        return [JobTry(job.attempt, 0, 0, end, outcome, job.reason, job.error, 0, "", 0, 0)]
    for place in range(len(tries) - 1, -1, -1):
        if tries[place].outcome in ("released", "dead", "lease_expired"):
            tries[place] = tries[place]._replace(error=job.error)
            break
    return tries


async def _worker(visit: Visit, job: Job) -> str | None:
    """Which worker says that it runs the job, by its last beat."""
    found = await find_workers(visit.engine().store.registry, job.queue.namespace)
    for worker in found.workers:
        if any((one.queue, one.id) == (job.queue.name, job.id) for one in worker.running):
            return f"{worker.host} {worker.pid}"
    return None


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
    return await _reschedule(visit, "reschedule", **new_due(visit))


async def _reschedule(visit: Visit, action: str, *, delay_ms: int = 0, due_at: int | None = None) -> Response:
    queue, job_id = visit.queue(), visit.job_id()
    [moved] = await visit.engine().reschedule(queue, [job_id], delay_ms=delay_ms, due_at=due_at)
    if isinstance(moved, DuetimeError):
        raise moved
    if moved is None:
        raise JobNotFound.of(job_id, queue)
    await visit.log(action, f"{queue} {job_id}", f"due {rfc3339(moved.due_at)}")
    at = clock_time(moved.due_at, visit.zone, visit.now)
    return visit.go(
        job_link(visit.pool(), queue, job_id),
        visit.say("job.rescheduled", id=job_id, at=at, span=visit.from_now(moved.due_at)),
    )


async def release(visit: Visit) -> Response:
    """Take a job from its consumer: it is tried again immediately, and the consumer's lease is lost."""
    job = await _job(visit)
    await visit.engine().release(Lease(job.queue, job.id, job.born, job.attempt), error=_stopped_by(visit))
    await visit.log("release", f"{job.queue} {job.id}")
    return visit.go(text=visit.say("job.released", id=job.id))


async def kill(visit: Visit) -> Response:
    job = await _job(visit)
    await visit.engine().kill(Lease(job.queue, job.id, job.born, job.attempt), error=_stopped_by(visit))
    await visit.log("kill", f"{job.queue} {job.id}")
    return visit.go(text=visit.say("job.killed", id=job.id))


def _stopped_by(visit: Visit) -> str:
    return f"stopped in the console by {visit.session.user}"


async def show_time(visit: Visit) -> Response:
    """What a time means that somebody is typing, in a few words."""
    text = visit.query.get(visit.query.get("field", ""), "").strip()
    if not text:
        said = ""
    else:
        try:
            at = visit.read_time(text).at(visit.now)
            said = visit.say("form.means", at=full_time(at, visit.zone).replace(".000", ""), span=visit.from_now(at))
        except InvalidTime as error:
            said = visit.explain(error.message)
    return visit.text(said)


# --- new, edited and cloned jobs


async def show_new(visit: Visit) -> Response:
    """An empty form, or one filled in from a job, to push it again under its id (edit) or under another (clone)."""
    mode = chosen(("new", "edit", "clone"), visit.given("mode"))
    pool, queue = visit.pool(), visit.queue()
    job: Job | None = None
    if mode != "new" and not visit.errors:
        job = await _job(visit)
    elif mode == "new" and not visit.errors:
        await check_queue_exists(visit, pool, queue)
    body, encoding = _editable(job.body) if job else (visit.field("body"), visit.field("encoding") or "text")
    shown = job.body if job and len(job.body) <= SHOWN_BODY else b""
    kind, formatted = await asyncio.to_thread(body_text, shown)
    can_format = kind == "JSON" and encoding == "text" and formatted != body
    if can_format and visit.query.get("format"):
        body, can_format = formatted, False
    return await visit.page(
        "new.html",
        pool=pool,
        queue=queue,
        mode=mode,
        job=job,
        body=body,
        can_format=can_format,
        encoding=encoding,
        attributes="\n".join(f"{name}={value}" for name, value in job.attributes.items()) if job else "",
        priorities=list(Priority),
        due=shown_time(visit, job.due_at) if job is not None and job.state is State.DELAYED else "",
        ttl=_ttl_left(visit, job),
        back=job_link(pool, queue, visit.given("id")) if visit.given("id") else queue_link(pool, queue),
    )


def _ttl_left(visit: Visit, job: Job | None) -> str:
    """What is left of the ttl, so that a job that is edited expires when it would have."""
    return f"{max(job.expires_at - visit.now, 1)}ms" if job is not None and job.expires_at else ""


def _editable(body: bytes) -> tuple[str, str]:
    """The body unchanged, because a receiver that checks a signature notices other white space. Forms change line ends,
    so a body with a carriage return is edited as base64, like one that is not text.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\r"
    if "\r" in text or "\0" in text:
        return base64.b64encode(body).decode(), "base64"
    return text, "text"


async def push(visit: Visit) -> Response:
    queue, engine, edited = visit.queue(), visit.engine(), visit.field("mode") == "edit"
    form = FormReader(visit)
    job_id = form.read("id", lambda text: check_id(text.strip() or _ids.make()), "")
    body = form.read("body", lambda _: _body(visit), b"")
    tries = form.read("tries", lambda text: whole_number(text, most=MOST_TRIES), 0)
    ttl_ms = form.read("ttl", lambda text: read_span(text) if text.strip() else 0, 0)
    attributes = form.read("attributes", read_attributes, {})
    due = form.read("when", lambda text: _due(visit, text), {})
    form.check()
    priority = Priority(int(chosen([str(int(one)) for one in Priority], visit.field("priority"))))
    job = NewJob(id=job_id, body=body, tries=tries, priority=priority, ttl_ms=ttl_ms, attributes=attributes, **due)
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


def read_attributes(text: str) -> dict[str, str]:
    lines = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
    return dict(check_attributes({line.partition("=")[0].strip(): line.partition("=")[2] for line in lines}))


def new_due(visit: Visit) -> dict[str, int]:
    """The time of a form that moves jobs. An empty one is refused: it would make them due immediately."""
    form = FormReader(visit)
    due = form.read("when", lambda text: _due(visit, text), {})
    if not visit.given("when").strip():
        form.refuse("when", visit.say("form.needs_time", examples=EXAMPLES))
    form.check()
    return due


def _due(visit: Visit, text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    when = visit.read_time(text)
    if when.due_at is not None:
        return {"due_at": when.due_at}
    return {"delay_ms": max(when.delay_ms or 0, 0)}

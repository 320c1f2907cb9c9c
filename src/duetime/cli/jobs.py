"""`delete`, `reschedule`, `get`, `list` and `peek`: jobs by their id and state."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated

from duetime.cli.consume import Shown, describe_move, show_each
from duetime.cli.options import IdArgument, QueueArgument, Target, argument, flag, option
from duetime.cli.output import (
    Answer,
    StateWord,
    body_text,
    job_document,
    moment,
    moved_document,
    preview,
    relative,
    safe,
    tries_text,
)
from duetime.client import Client, calls
from duetime.client.client import QueueClient
from duetime.model.clock import SystemClock, rfc3339
from duetime.model.errors import DuetimeError, JobNotFound
from duetime.model.job import Job, State, chunks
from duetime.model.names import Queue, check_id
from duetime.model.when import read_due

PAGE = 100

IdsArgument = Annotated[list[str], argument("ID", "Ids of jobs.")]
LimitOption = Annotated[int, option("N", "The most jobs to show; 0: all.", min=0)]


def delete(queue: QueueArgument, ids: IdsArgument, target: Target) -> None:
    """Delete jobs in any state.

    The consumer of a running job loses its lease: its ack will be refused.

    Examples:
        duetime delete mail welcome-42
    """
    name = target.queue(queue)
    _for_each(target, name, ids, lambda client, chunk: client.send(calls.cancel(name, chunk)))


def reschedule(
    queue: QueueArgument,
    ids: IdsArgument,
    when: Annotated[str, option("WHEN", "A delay (5m), or tomorrow 09:00.", "--delay", "--at")],
    target: Target,
) -> None:
    """Change the due time of waiting jobs.

    Examples:
        duetime reschedule mail welcome-42 --delay 1h
        duetime reschedule mail welcome-42 --at 2027-01-01T00:00:00Z
    """
    name, due = target.queue(queue), read_due(when, zone=None)
    delay = None if due.delay_ms is None else f"{due.delay_ms}ms"
    _for_each(target, name, ids, lambda client, chunk: client.send(calls.reschedule(name, chunk, delay, due.due_at)))


def _for_each(
    target: Target, queue: Queue, ids: Sequence[str], call: Callable[[Client, Sequence[str]], Sequence[calls.Result]]
) -> None:
    checked = [check_id(job_id) for job_id in ids]

    def shown(job_id: str, result: calls.Result) -> Shown | DuetimeError:
        if result is None or isinstance(result, DuetimeError):
            return result or JobNotFound.of(job_id, queue)
        return moved_document(queue, result), describe_move(result)

    with target.connect() as client:
        results = (
            (queue, job_id, shown(job_id, result))
            for chunk in chunks(checked)
            for job_id, result in zip(chunk, call(client, chunk), strict=True)
        )
        show_each(target.answer, results, len(checked), "jobs were not there or refused")


def get(
    queue: QueueArgument,
    job_id: IdArgument,
    target: Target,
    body: Annotated[bool, flag("Print the body alone, byte for byte.", "--body")] = False,
) -> None:
    """Show a job in any state.

    Examples:
        duetime get mail welcome-42
        duetime get backup nightly --body > backup.tar
    """
    with target.connect() as client:
        job = client.queue(queue).get(check_id(job_id))
    if body:
        sys.stdout.buffer.write(job.body)
        return
    target.answer.show(job_document(job), describe_job(job))


def describe_job(job: Job) -> str:
    """Every field of the job that is set."""
    now = SystemClock().now_ms()
    facts: list[tuple[str, str]] = [
        ("queue", str(job.queue)),
        ("state", f"{StateWord.of(job.state)} ({job.reason})" if job.reason else StateWord.of(job.state)),
        ("due", moment(job.due_at, now) if job.due_at else ""),
        ("running", f"until {moment(job.lease_until, now)}" if job.lease_until else ""),
        ("expires", moment(job.expires_at, now) if job.expires_at else ""),
        ("failed", moment(job.dead_at, now) if job.dead_at else ""),
        ("tries", f"{tries_text(job.used, job.tries)} used, {job.attempt} deliveries so far"),
        ("priority", job.priority.name.lower()),
        ("born", rfc3339(job.born)),
        *((f"@{safe(name)}", safe(value)) for name, value in job.attributes.items()),
        ("error", safe(job.error)),
        ("body", body_text(job.body)),
    ]
    return "\n".join([job.id, *(f"  {name:<9} {value}" for name, value in facts if value)])


def list_jobs(
    queue: QueueArgument,
    target: Target,
    state: Annotated[StateWord | None, option(None, "Only jobs in this state.")] = None,
    limit: LimitOption = PAGE,
) -> None:
    """List the jobs of a queue by state: running, ready, delayed, failed.

    Running jobs are sorted by the end of their lease, ready jobs by the order of delivery, delayed jobs by due time,
    failed jobs by the time of failure.

    Examples:
        duetime list mail
        duetime list mail --state delayed --limit 0 --json | jq -r .id
        duetime list mail --state ready --limit 0 --json | duetime push other --file -
    """
    with target.connect() as client:
        show_jobs(client.queue(queue), state, limit, target.answer)


def show_jobs(queue: QueueClient, state: StateWord | None, limit: int, answer: Answer) -> None:
    found = (job for one in ([state] if state else StateWord) for job in walk(queue, one.state))
    show_walk(found, state, limit, answer, nothing=f"no {f'{state} ' if state else ''}jobs in {queue.name}")


def show_walk(found: Iterable[Job], state: StateWord | None, limit: int, answer: Answer, *, nothing: str) -> None:
    """A table in one piece, or JSON as it comes; says when there are more."""
    jobs: list[Job] = []
    for shown, job in enumerate(found, 1):
        if limit and shown > limit:
            answer.note(f"there are more; --limit 0 shows all {f'{state} ' if state else ''}jobs")
            break
        if answer.as_json:
            answer.document(job_document(job))
        else:
            jobs.append(job)
    answer.table([], job_columns(jobs, state), nothing=nothing)


def walk(queue: QueueClient, state: State) -> Iterator[Job]:
    """Every job in a state, page by page."""
    cursor: str | None = None
    while True:
        page = queue.list_jobs(state, cursor=cursor, limit=PAGE)
        yield from page.jobs
        cursor = page.cursor
        if cursor is None:
            return


def job_columns(jobs: Sequence[Job], state: StateWord | None) -> dict[str, list[str]]:
    now = SystemClock().now_ms()
    columns = {"id": [safe(job.id) for job in jobs]}
    if len({job.queue for job in jobs}) > 1:
        columns = {"queue": [job.queue.name for job in jobs], **columns}
    match state:
        case None:
            columns["state"] = [StateWord.of(job.state) for job in jobs]
            columns["due"] = ["-" if job.state is State.DEAD else relative(job.due_at, now) for job in jobs]
        case StateWord.RUNNING:
            columns["lease ends"] = [relative(job.lease_until, now) for job in jobs]
        case StateWord.FAILED:
            columns["failed"] = [relative(job.dead_at, now) for job in jobs]
            columns["reason"] = [job.reason for job in jobs]
        case StateWord.DELAYED | StateWord.READY:
            columns["due"] = [relative(job.due_at, now) for job in jobs]
    columns["tries"] = [tries_text(job.used, job.tries) for job in jobs]
    columns["priority"] = [job.priority.name.lower() for job in jobs]
    columns["body"] = [preview(job.body) for job in jobs]
    if state is StateWord.FAILED:
        columns["last error"] = [preview(last_line(job.error).encode()) for job in jobs]
    return columns


def last_line(error: str) -> str:
    """The line of a traceback that has the error; the others have the place."""
    return next((line for line in reversed(error.splitlines()) if line.strip()), "")


def peek(queue: QueueArgument, target: Target) -> None:
    """Show the next job without leasing it: the first ready job, else the next due one.

    Exits with 1 if no job waits.

    Examples:
        duetime peek mail
    """
    with target.connect() as client:
        queue_client = client.queue(queue)
        for state in (State.READY, State.DELAYED):
            for job in queue_client.list_jobs(state, limit=1).jobs:
                target.answer.show(job_document(job), describe_job(job))
                return
    raise JobNotFound(f"no job waits in {target.queue(queue)}")

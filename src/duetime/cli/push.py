"""`push` and `later`: what a producer does from a shell."""

import sys
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from duetime.cli.options import QueueArgument, Target, argument, option, parse_attributes
from duetime.cli.output import moment, moved_document
from duetime.client import Client, calls
from duetime.client.job_building import JobFields, new_job
from duetime.model.errors import InvalidRequest
from duetime.model.job import DEFAULT_TRIES, Event, IfExists, Moved, NewJob, Priority
from duetime.model.names import Queue
from duetime.model.when import When, read_due


class PriorityWord(StrEnum):
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


@dataclass(frozen=True)
class JobOptions:
    """Options of a job; by default it is due immediately and never expires."""

    id: Annotated[str | None, option("ID", "The job's id; generated if not given.")] = None
    ttl: Annotated[str, option("DURATION", "Drop the job if it is not done in time; 0 keeps it.")] = "0"
    tries: Annotated[int, option("N", "Deliveries allowed; 0 is unlimited.", min=0)] = DEFAULT_TRIES
    priority: Annotated[PriorityWord, option(None, "Which ready jobs are delivered first.")] = PriorityWord.NORMAL
    if_exists: Annotated[IfExists, option(None, "What to do if the id is taken.")] = IfExists.KEEP
    attribute: Annotated[list[str], option("NAME=VALUE", "A header of the job; repeatable.")] = field(
        default_factory=list[str]
    )

    def fields(self, when: When) -> JobFields:
        fields: JobFields = {
            "ttl": self.ttl,
            "tries": self.tries,
            "priority": Priority[self.priority.name],
            "attributes": parse_attributes(self.attribute),
        }
        if self.id is not None:
            fields["id"] = self.id
        if when.delay_ms is not None:
            fields["delay"] = f"{when.delay_ms}ms"
        if when.due_at is not None:
            fields["due_at"] = when.due_at
        return fields


@dataclass(frozen=True)
class PushOptions(JobOptions):
    when: Annotated[
        str | None,
        option(
            "WHEN",
            "When it is due: a delay (10s, 5 minutes) or an instant (tomorrow 09:00, 2026-11-15T09:00:00Z). "
            "Immediately if not given.",
            "--delay",
            "--at",
        ),
    ] = None
    file: Annotated[
        Path | None,
        option(
            "JSONL",
            "Push one job per line, each a JSON object such as "
            '{"body": ..., "id": ..., "delay": "10s"}; - is standard input. '
            "The other options apply to lines that do not set them.",
        ),
    ] = None


def push(
    options: PushOptions,
    target: Target,
    queue: Annotated[str | None, argument("QUEUE", "The queue's name; with --file each line may name its own.")] = None,
    body: Annotated[str | None, argument("BODY", "The job's body; - reads it from stdin.")] = None,
) -> None:
    """Add a job, or a file of jobs.

    Prints the id first, then what happened: accepted, kept (the id existed) or replaced.

    Examples:
        duetime push mail 'hello'
        duetime push mail 'hello' --delay 10m --id welcome-42 --tries 3
        duetime push mail 'happy new year' --at 2027-01-01T00:00:00Z
        tar c folder | duetime push backup -
        duetime push mail --file jobs.jsonl --priority low
    """
    name = None if queue is None else target.queue(queue)
    when = When() if options.when is None else read_due(options.when, zone=None)
    if options.file is not None:
        if body is not None:
            raise InvalidRequest.not_both("BODY", "--file")
        if options.id is not None:
            raise InvalidRequest("--id cannot be used with --file; each line of the file has its own id")
        from duetime.cli.push_file import load_file  # noqa: PLC0415 (it draws a progress bar, which takes long to import)

        load_file(target, name, options.file, options.fields(when), options.if_exists)
        return
    if name is None:
        raise typer.BadParameter("name a queue, or give --file", param_hint="QUEUE")
    if body is None:
        raise InvalidRequest("push must have a BODY, - to read it from standard input, or --file")
    with target.connect(new=True) as client:
        _push_one(client, name, read_body(body), options.fields(when), options.if_exists, target)


def later(
    delay: Annotated[str, argument("WHEN", "A delay (5m) or an instant (tomorrow 09:00).")],
    queue: QueueArgument,
    body: Annotated[str, argument("BODY", "The job's body; - reads it from stdin.")],
    options: JobOptions,
    target: Target,
) -> None:
    """Add a job that is due later.

    Examples:
        duetime later 10m mail 'hello'
        duetime later 2027-01-01T00:00:00Z mail 'hello'
    """
    fields = options.fields(read_due(delay, zone=None))
    with target.connect(new=True) as client:
        _push_one(client, target.queue(queue), read_body(body), fields, options.if_exists, target)


def read_body(body: str) -> bytes:
    """`-` is standard input, byte for byte."""
    return sys.stdin.buffer.read() if body == "-" else body.encode(errors="surrogateescape")


def _push_one(
    client: Client, queue: Queue, body: bytes, fields: JobFields, if_exists: IfExists, target: Target
) -> None:
    job: NewJob = new_job(body, fields, client.make_id)
    pushed = client.send(calls.push(queue, [job], if_exists))
    moved = pushed.jobs[0]
    target.answer.show(moved_document(queue, moved), describe_push(queue, moved, pushed.now))


def describe_push(queue: Queue, moved: Moved, now_ms: int) -> str:
    match moved.event:
        case Event.KEPT:
            return f"{moved.id} kept: {queue} has a job with this id ({moved.reason or 'waiting'}), nothing was changed"
        case _:
            due = moment(moved.due_at, now_ms) if moved.due_at > now_ms else "now"
            return f"{moved.id} {moved.event} in {queue}, due {due}"

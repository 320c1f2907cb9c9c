"""`reserve`, `ack` and `release`: what a consumer does from a shell.

The lease goes from one command to the next as one word (`leases.py`), so a shell script is a worker:

    while lease=$(duetime reserve mail --wait 1m --json | jq -r .lease); do ...; duetime ack "$lease"; done
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from duetime.cli.leases import read_lease, write_lease
from duetime.cli.options import Target, takes_options
from duetime.cli.output import (
    Answer,
    body_text,
    delivery_document,
    moment,
    moved_document,
    refused_document,
    relative,
    safe,
    tries_text,
)
from duetime.client import Client, calls
from duetime.clock import SystemClock
from duetime.errors import DuetimeError, NotFound
from duetime.job import DEFAULT_TTR_MS, Delivery, Event, Lease, Moved, batches
from duetime.names import Queue

LeasesArgument = Annotated[
    list[str], typer.Argument(metavar="LEASE", help="What `reserve` printed; - reads leases from stdin, one a line.")
]
LeaseArgument = Annotated[str, typer.Argument(metavar="LEASE", help="What `reserve` printed.")]


class NothingReady(NotFound):
    """No job was ready in time."""

    code = "nothing_ready"


class SomeRefused(DuetimeError):
    """Some of what was asked for was refused."""

    code = "some_refused"
    status = 409


@dataclass(frozen=True)
class ReserveOptions:
    limit: Annotated[int, typer.Option(min=1, max=500, metavar="N", help="Lease up to so many jobs.")] = 1
    ttr: Annotated[str, typer.Option(metavar="DURATION", help="Time to run: how long the lease holds.")] = (
        f"{DEFAULT_TTR_MS // 1000}s"
    )
    wait: Annotated[str, typer.Option(metavar="DURATION", help="Wait so long for the first job.")] = "0"


@takes_options
def reserve(
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE", help="Queues, tried in this order.")],
    options: ReserveOptions,
    target: Target,
) -> None:
    """Lease jobs that are due, to `ack` or `release` them.

    Exits with 1 when no job was ready in time.
    """
    answer = Answer(as_json=target.json)
    with target.connect() as client:
        deliveries = client.reserve(queues, limit=options.limit, ttr=options.ttr, wait=options.wait)
    if not deliveries:
        raise NothingReady(f"no job was ready in {', '.join(queues)}")
    for delivery in deliveries:
        lease = write_lease(delivery.lease)
        answer.tell(delivery_document(delivery, lease), describe_delivery(delivery, lease))


def describe_delivery(delivery: Delivery, lease: str) -> str:
    now = SystemClock().now_ms()
    lines = [
        f"{delivery.lease.id} from {delivery.lease.queue}",
        f"  lease     {lease}",
        f"  until     {moment(delivery.lease_until, now)}",
        f"  try       {tries_text(delivery.used, delivery.tries)}",
        f"  due       {moment(delivery.due_at, now)}",
    ]
    lines += [f"  {name}={value}" for name, value in delivery.attributes.items()]
    lines += [f"  last error {safe(delivery.error)}"] if delivery.error else []
    return "\n".join([*lines, f"  body      {body_text(delivery.body)}"])


@takes_options
def ack(leases: LeasesArgument, target: Target) -> None:
    """Finish jobs: they are gone.

    Acking a job that is gone already is no error; a lease that somebody else holds by now is.
    """
    held = [read_lease(text) for text in _each(leases)]
    answer = Answer(as_json=target.json)
    refused = 0
    with target.connect() as client:
        for lease, result in _ack_all(client, held):
            refused += isinstance(result, DuetimeError)
            _tell_ack(answer, lease, result)
    if refused:
        raise SomeRefused(f"{refused} of {len(held)} leases are no longer held")


def _each(texts: Sequence[str]) -> list[str]:
    if list(texts) != ["-"]:
        return list(texts)
    return [line for line in sys.stdin.read().splitlines() if line.strip()]


def _ack_all(client: Client, leases: Sequence[Lease]) -> list[tuple[Lease, calls.Result]]:
    by_queue: dict[Queue, list[Lease]] = {}
    for lease in leases:
        by_queue.setdefault(lease.queue, []).append(lease)
    return [
        (lease, result)
        for queue, held in by_queue.items()
        for some in batches(held)
        for lease, result in zip(some, client.send(calls.ack(queue, some)), strict=True)
    ]


def _tell_ack(answer: Answer, lease: Lease, result: calls.Result) -> None:
    if isinstance(result, DuetimeError):
        text = f"{lease.id} {result.code}: {result.message}"
        answer.tell(refused_document(lease.queue, lease.id, result), text)
    elif result is None:
        gone = Moved(Event.ACKED, lease.id, lease.born, lease.attempt, reason="gone")
        answer.tell(moved_document(lease.queue, gone), f"{lease.id} was gone already")
    else:
        answer.tell(moved_document(lease.queue, result), f"{lease.id} acked")


@dataclass(frozen=True)
class ReleaseOptions:
    delay: Annotated[str, typer.Option(metavar="DURATION", help="How long until the next try.")] = "0"
    error: Annotated[str, typer.Option(metavar="TEXT", help="Why; kept with the job.")] = ""
    kill: Annotated[bool, typer.Option("--kill", help="No further try: send it to the dead letters.")] = False


@takes_options
def release(lease: LeaseArgument, options: ReleaseOptions, target: Target) -> None:
    """Give a job back, to be tried again.

    A job that has used up its tries goes to the dead letters instead; the answer says so.
    """
    held = read_lease(lease)
    with target.connect() as client:
        if options.kill:
            moved = client.kill(held, error=options.error)
        else:
            moved = client.release(held, delay=options.delay, error=options.error)
    Answer(as_json=target.json).tell(moved_document(held.queue, moved), describe_move(moved))


def describe_move(moved: Moved) -> str:
    """What happened to one job, id first."""
    now = SystemClock().now_ms()
    match moved.event:
        case Event.DEAD:
            return f"{moved.id} dead: {moved.reason}"
        case Event.CANCELLED if moved.reason == "running":
            return f"{moved.id} cancelled while a consumer held it"
        case _ if moved.due_at:
            # A due time in the past is delivered immediately.
            due = relative(moved.due_at, now) if moved.due_at > now else "now"
            return f"{moved.id} {moved.event}, due {due}"
        case _:
            return f"{moved.id} {moved.event}"

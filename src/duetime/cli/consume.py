"""`reserve`, `ack`, `release`, `extend` and `kill`: what a consumer does from a shell.

The lease goes from one command to the next as one word (`leases.py`), so a shell script is a worker:

    while lease=$(duetime reserve mail --wait 1m --json | jq -r .lease); do ...; duetime ack "$lease"; done
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from duetime.cli.leases import read_lease, write_lease
from duetime.cli.options import Target, takes_options
from duetime.cli.output import (
    Answer,
    body_text,
    delivery_document,
    moment,
    moved_document,
    queue_document,
    refused_document,
    relative,
    safe,
    tries_text,
)
from duetime.client import Client, calls
from duetime.model.clock import SystemClock
from duetime.model.errors import DuetimeError, LeaseLost, NotFound
from duetime.model.job import DEFAULT_TTR_MS, Delivery, Event, Lease, Moved, batches
from duetime.model.names import Queue

TTR = f"{DEFAULT_TTR_MS // 1000}s"

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
    limit: Annotated[int, typer.Option(min=1, max=500, metavar="N", help="The most jobs to lease.")] = 1
    ttr: Annotated[str, typer.Option(metavar="DURATION", help="Time to run: how long the lease holds.")] = TTR
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
    for job in deliveries:
        delivery = job.delivery
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


@takes_options
def extend(
    leases: LeasesArgument,
    target: Target,
    ttr: Annotated[str, typer.Option(metavar="DURATION", help="How long the lease holds, from now.")] = TTR,
) -> None:
    """Hold jobs for longer: renew their leases."""

    def renew(client: Client, lease: Lease) -> tuple[dict[str, Any], str]:
        until = client.extend(lease, ttr)
        document = {**queue_document(lease.queue), "id": lease.id, "event": "extended", "lease_until": until}
        return document, f"{lease.id} held until {moment(until, SystemClock().now_ms())}"

    _for_each(leases, target, renew)


@takes_options
def kill(
    leases: LeasesArgument,
    target: Target,
    error: Annotated[str, typer.Option(metavar="TEXT", help="Why; kept with the job.")] = "",
) -> None:
    """Send jobs to the dead letters, without another try."""

    def end(client: Client, lease: Lease) -> tuple[dict[str, Any], str]:
        moved = client.kill(lease, error=error)
        return moved_document(lease.queue, moved), describe_move(moved)

    _for_each(leases, target, end)


def _for_each(
    leases: Sequence[str], target: Target, work: Callable[[Client, Lease], tuple[dict[str, Any], str]]
) -> None:
    """One answer per lease; one that is refused does not stop the others."""
    held = [read_lease(text) for text in _each(leases)]
    answer = Answer(as_json=target.json)
    failures: list[DuetimeError] = []
    with target.connect() as client:
        for lease in held:
            try:
                answer.tell(*work(client, lease))
            except (LeaseLost, NotFound) as error:
                failures.append(error)
                if len(held) > 1:
                    text = f"{lease.id} {error.code}: {error.message}"
                    answer.tell(refused_document(lease.queue, lease.id, error), text)
    if failures and len(held) == 1:
        raise failures[0]
    if failures:
        raise SomeRefused(f"{len(failures)} of {len(held)} leases are no longer held")


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

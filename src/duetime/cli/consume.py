"""`reserve`, `ack`, `release`, `extend` and `kill`: what a consumer does from a shell.

The lease goes from one command to the next as one word, so a shell script is a worker:

    while lease=$(duetime reserve mail --wait 1m --json | jq -r .lease); do ...; duetime ack "$lease"; done

The word is `namespace/queue:id:born:attempt`, the id percent-encoded: the whole fence, in characters that need no
quotes in a shell.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote, unquote

from duetime.cli.options import Target, argument, flag, option
from duetime.cli.output import (
    EVENT_WORDS,
    Answer,
    body_text,
    delivery_document,
    error_document,
    moment,
    moved_document,
    queue_document,
    relative,
    safe,
    tries_text,
)
from duetime.client import Client, calls
from duetime.model.clock import SystemClock
from duetime.model.errors import DuetimeError, InvalidRequest, LeaseLost, NotFound
from duetime.model.job import DEFAULT_TTR_MS, Delivery, Event, Lease, Moved, chunks
from duetime.model.names import Queue, check_id, check_queue

TTR = f"{DEFAULT_TTR_MS // 1000}s"

LeasesArgument = Annotated[
    list[str], argument("LEASE", "What `reserve` printed; - reads leases from stdin, one a line.")
]
Shown = tuple[dict[str, Any], str]
"""An answer as JSON and as text."""
LeaseArgument = Annotated[str, argument("LEASE", "What `reserve` printed.")]


def write_lease(lease: Lease) -> str:
    return f"{lease.queue}:{quote(lease.id, safe='')}:{lease.born}:{lease.attempt}"


def read_lease(text: str) -> Lease:
    """The inverse; InvalidRequest for anything else."""
    parts = text.strip().split(":")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts[2:]):
        raise InvalidRequest(f"lease must be copied from the output of `duetime reserve`, got {text!r}")
    queue = Queue.parse(parts[0])
    return Lease(check_queue(*queue), check_id(unquote(parts[1])), int(parts[2]), int(parts[3]))


class NothingReady(NotFound):
    """No job was ready in time."""

    code = "nothing_ready"


class SomeRefused(DuetimeError):
    """Some jobs were refused."""

    code = "some_refused"
    status = 409


@dataclass(frozen=True)
class ReserveOptions:
    limit: Annotated[int, option("N", "The most jobs to lease.", min=1, max=500)] = 1
    ttr: Annotated[str, option("DURATION", "Time to run: how long the lease holds.")] = TTR
    wait: Annotated[str, option("DURATION", "How long to wait for the first job.")] = "0"


def reserve(
    queues: Annotated[list[str], argument("QUEUE", "Queues, tried in this order.")],
    options: ReserveOptions,
    target: Target,
) -> None:
    """Lease jobs that are due, to `ack` or `release` them.

    Exits with 1 when no job was ready in time.

    Examples:
        duetime reserve mail
        duetime reserve urgent mail --wait 1m --ttr 5m --limit 10
        lease=$(duetime reserve mail --json | jq -r .lease)
    """
    answer = target.answer
    with target.connect(new=True) as client:
        deliveries = client.reserve(queues, limit=options.limit, ttr=options.ttr, wait=options.wait)
    if not deliveries:
        raise NothingReady(f"no job was ready in {', '.join(queues)}")
    for job in deliveries:
        delivery = job.delivery
        lease = write_lease(delivery.lease)
        answer.show(delivery_document(delivery, lease), describe_delivery(delivery, lease))


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


def ack(leases: LeasesArgument, target: Target) -> None:
    """Finish jobs.

    Acking a job twice is not an error. Acking is refused if the lease has expired and another consumer has the job.

    Examples:
        duetime ack "$lease"
        duetime reserve mail --limit 100 --json | jq -r .lease | duetime ack -
    """
    held = [read_lease(text) for text in _each(leases)]
    with target.connect() as client:
        results = (
            (queue, lease.id, _acked(lease, result))
            for queue, some in _by_queue(held)
            for lease, result in zip(some, client.send(calls.ack(queue, some)), strict=True)
        )
        show_each(target.answer, results, len(held), "leases are no longer held")


def _each(texts: Sequence[str]) -> list[str]:
    if list(texts) != ["-"]:
        return list(texts)
    return [line for line in sys.stdin.read().splitlines() if line.strip()]


def _by_queue(leases: Sequence[Lease]) -> Iterator[tuple[Queue, Sequence[Lease]]]:
    by_queue: dict[Queue, list[Lease]] = {}
    for lease in leases:
        by_queue.setdefault(lease.queue, []).append(lease)
    return ((queue, some) for queue, held in by_queue.items() for some in chunks(held))


def _acked(lease: Lease, result: calls.Result) -> Shown | DuetimeError:
    if isinstance(result, DuetimeError):
        return result
    gone = Moved(Event.ACKED, lease.id, lease.born, lease.attempt, reason="gone")
    return moved_document(lease.queue, result or gone), f"{lease.id} {'done' if result else 'was done already'}"


@dataclass(frozen=True)
class ReleaseOptions:
    delay: Annotated[str, option("DURATION", "How long until the next try.")] = "0"
    error: Annotated[str, option("TEXT", "Why; kept with the job.")] = ""
    kill: Annotated[bool, flag("No further try: the job fails for good.", "--kill")] = False


def release(lease: LeaseArgument, options: ReleaseOptions, target: Target) -> None:
    """Give a job back, to be tried again.

    A job that has used up its tries fails instead; the answer says so.

    Examples:
        duetime release "$lease" --delay 30s --error "mail server busy"
        duetime release "$lease" --kill --error "no such address"
    """
    held = read_lease(lease)
    with target.connect() as client:
        if options.kill:
            moved = client.kill(held, error=options.error)
        else:
            moved = client.release(held, delay=options.delay, error=options.error)
    target.answer.show(moved_document(held.queue, moved), describe_move(moved))


def extend(
    leases: LeasesArgument,
    target: Target,
    ttr: Annotated[str, option("DURATION", "How long the lease holds, from now.")] = TTR,
) -> None:
    """Renew the leases of running jobs.

    Examples:
        duetime extend "$lease" --ttr 5m
    """

    def renew(client: Client, lease: Lease) -> Shown:
        until = client.extend(lease, ttr)
        document = {**queue_document(lease.queue), "id": lease.id, "event": "extended", "lease_until": until}
        return document, f"{lease.id} held until {moment(until, SystemClock().now_ms())}"

    _for_each(leases, target, renew)


def kill(
    leases: LeasesArgument,
    target: Target,
    error: Annotated[str, option("TEXT", "Why; kept with the job.")] = "",
) -> None:
    """Fail jobs for good, without another try.

    Examples:
        duetime kill "$lease" --error "no such address"
    """

    def end(client: Client, lease: Lease) -> Shown:
        moved = client.kill(lease, error=error)
        return moved_document(lease.queue, moved), describe_move(moved)

    _for_each(leases, target, end)


def _for_each(leases: Sequence[str], target: Target, work: Callable[[Client, Lease], Shown]) -> None:
    held = [read_lease(text) for text in _each(leases)]

    def results(client: Client) -> Iterator[tuple[Queue, str, Shown | DuetimeError]]:
        for lease in held:
            try:
                yield lease.queue, lease.id, work(client, lease)
            except (LeaseLost, NotFound) as error:
                yield lease.queue, lease.id, error

    with target.connect() as client:
        show_each(target.answer, results(client), len(held), "leases are no longer held")


def show_each(
    answer: Answer, results: Iterable[tuple[Queue, str, Shown | DuetimeError]], count: int, problem: str
) -> None:
    """Prints one answer per job; one that is refused does not stop the others."""
    failures: list[DuetimeError] = []
    for queue, job_id, result in results:
        if not isinstance(result, DuetimeError):
            answer.show(*result)
            continue
        failures.append(result)
        if count > 1:
            document = {**queue_document(queue), "id": job_id, **error_document(result)}
            answer.show(document, f"{job_id} {result.code}: {result.message}")
    if failures and count == 1:
        raise failures[0]
    if failures:
        raise SomeRefused(f"{len(failures)} of {count} {problem}")


def describe_move(moved: Moved) -> str:
    """What happened to one job, id first."""
    now = SystemClock().now_ms()
    match moved.event:
        case Event.DEAD:
            return f"{moved.id} failed: {moved.reason}"
        case Event.CANCELLED if moved.reason == "running":
            return f"{moved.id} deleted while it was running"
        case _ if moved.due_at:
            # A due time in the past is delivered immediately.
            due = relative(moved.due_at, now) if moved.due_at > now else "now"
            return f"{moved.id} {EVENT_WORDS.get(moved.event, moved.event)}, due {due}"
        case _:
            return f"{moved.id} {EVENT_WORDS.get(moved.event, moved.event)}"

"""`duetime bridge`: the queues of a running Laravel, Redisson, lmstfy or php-delayqueue."""

import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from duetime.bridges.foreign import BridgeOptions, ForeignQueues, Sizes, open_foreign
from duetime.bridges.relay import Relay
from duetime.cli.options import Target, takes_options
from duetime.cli.progress import show_progress
from duetime.model.clock import duration_ms
from duetime.model.errors import DuetimeError, InvalidRequest
from duetime.model.humanise import span
from duetime.model.job import NewJob
from duetime.model.names import Queue, check_queue


class System(StrEnum):
    LARAVEL = "laravel"
    REDISSON = "redisson"
    LMSTFY = "lmstfy"
    DELAYQUEUE = "delayqueue"


@dataclass(frozen=True)
class ForeignPlace:
    """Where the other system keeps its jobs."""

    system: Annotated[System, typer.Argument(help="laravel, redisson, lmstfy or delayqueue (php-delayqueue).")]
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="URL",
            help="Its Redis (redis://...) or, for Laravel, its database (postgresql://, mysql://).",
        ),
    ]
    prefix: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The prefix of its keys: laravel_database_ (up to 12), dq_, ..."),
    ] = None
    retry_after: Annotated[
        str, typer.Option(metavar="DURATION", help="Laravel: its setting retry_after, the length of a reservation.")
    ] = "90s"
    handler: Annotated[
        str | None,
        typer.Option(metavar="CLASS@METHOD", help="Laravel: the PHP handler for jobs of ours that are no tasks."),
    ] = None

    @contextmanager
    def opened(self) -> Generator[ForeignQueues]:
        foreign = open_foreign(self.system, self.source, BridgeOptions(self.prefix, self.retry_after, self.handler))
        try:
            yield foreign
        finally:
            foreign.close()


@dataclass(frozen=True)
class Direction:
    queue: Annotated[str, typer.Option(metavar="NAME", help="The other system's queue (lmstfy: namespace/queue).")]
    to: Annotated[str | None, typer.Option(metavar="NAME", help="The queue here; the same name if not given.")] = None

    def ours(self, namespace: str) -> Queue:
        return check_queue(namespace, self.to or self.queue.rpartition("/")[2])


@takes_options
def list_queues(place: ForeignPlace, target: Target) -> None:
    """List the queues of another system, with their sizes and lateness.

    Reads only. Sizes of lmstfy and php-delayqueue are counted entry by entry, which takes a while with many jobs.

    Examples:
        duetime bridge list laravel --from redis://localhost --prefix laravel_database_
        duetime bridge list laravel --from postgresql://app@db/shop --json
        duetime bridge list redisson --from redis://localhost
    """
    with place.opened() as foreign:
        _show(foreign, target)


@takes_options
def watch(
    place: ForeignPlace,
    target: Target,
    interval: Annotated[str, typer.Option(metavar="DURATION", help="How often to look.")] = "2s",
    count: Annotated[int, typer.Option(min=0, metavar="N", help="End after N times; 0: when interrupted.")] = 0,
) -> None:
    """Show the queues of another system again and again.

    Examples:
        duetime bridge watch redisson --from redis://localhost --interval 5s
    """
    with place.opened() as foreign, interrupts() as stopped:
        times = 0
        while not stopped():
            _show(foreign, target)
            times += 1
            if times == count:
                return
            _sleep(duration_ms(interval) / 1000, stopped)


def _show(foreign: ForeignQueues, target: Target) -> None:
    found = [(name, foreign.sizes(name)) for name in foreign.names()]
    target.answer.table(
        [{"queue": name, **_document(sizes)} for name, sizes in found],
        {
            "queue": [name for name, _ in found],
            "ready ": [f"{sizes.ready:,}" for _, sizes in found],
            "delayed ": [f"{sizes.delayed:,}" for _, sizes in found],
            "reserved ": [f"{sizes.reserved:,}" for _, sizes in found],
            "set aside ": [f"{sizes.quarantined:,}" for _, sizes in found],
            "late ": [_late(sizes) for _, sizes in found],
        },
        nothing="no queues found; check --prefix",
    )


def _document(sizes: Sizes) -> dict[str, Any]:
    return {
        "ready": sizes.ready,
        "delayed": sizes.delayed,
        "reserved": sizes.reserved,
        "set_aside": sizes.quarantined,
        "oldest_due_at": sizes.oldest_due_at,
    }


def _late(sizes: Sizes) -> str:
    late_ms = 0 if sizes.oldest_due_at is None else time.time() * 1000 - sizes.oldest_due_at
    return span(late_ms) if late_ms > 0 else "-"


@takes_options
def relay(
    place: ForeignPlace,
    direction: Direction,
    target: Target,
    back: Annotated[
        bool, typer.Option("--back", help="From Duetime to the other system: jobs that are due here run there.")
    ] = False,
) -> None:
    """Move jobs continuously from another system to Duetime, or back.

    A job is removed there only after it was accepted here. A relay that is killed loses and repeats nothing: the next
    one continues with the jobs that were being moved. Delayed jobs are moved immediately and keep their due times. A
    job that Duetime refuses (its body is too large, for example) is named and stays there. Stop it with Ctrl-C.

    Examples:
        duetime bridge relay laravel --from redis://localhost --prefix laravel_database_ --queue default --to mail
        duetime bridge relay laravel --from redis://localhost --queue default --back --handler Run@fire
        duetime bridge relay redisson --from redis://localhost --queue mail
    """
    _move(place, direction, target, follow=True, back=back)


@takes_options
def drain(
    place: ForeignPlace,
    direction: Direction,
    target: Target,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what there is to move.")] = False,
) -> None:
    """Move all jobs of another system's queue to Duetime, then end.

    Reserved jobs of running workers stay there: run it again after they have ended. The exit code is 1 if something
    is left.

    Examples:
        duetime bridge drain laravel --from redis://localhost --queue default --dry-run
        duetime bridge drain lmstfy --from redis://localhost:6380 --queue shop/mail --to mail --namespace shop
        duetime bridge drain delayqueue --from redis://localhost --queue recall
    """
    if dry_run:
        with place.opened() as foreign:
            sizes = foreign.sizes(direction.queue)
        text = f"{direction.queue}: {sizes.ready:,} ready, {sizes.delayed:,} delayed, {sizes.reserved:,} reserved"
        target.answer.show({"queue": direction.queue, **_document(sizes)}, text)
        return
    left = _move(place, direction, target, follow=False)
    if left.total:
        raise typer.Exit(1)


def _move(place: ForeignPlace, direction: Direction, target: Target, *, follow: bool, back: bool = False) -> Sizes:
    if back and place.system not in (System.LARAVEL, System.REDISSON):
        raise InvalidRequest(f"jobs cannot be relayed to {place.system}: its clients work with Duetime's server")
    ours = direction.ours(target.space)
    refused: list[str] = []

    def refuse(job: NewJob, reason: str) -> None:
        refused.append(job.id)
        typer.echo(f"job {job.id} was refused and stays in {direction.queue}: {reason}", err=True)

    with (
        place.opened() as foreign,
        target.connect() as client,
        interrupts() as stopped,
        show_progress("relaying", as_json=target.json, unit="jobs") as progress,
    ):
        moving = Relay(foreign, client, report=progress.advance_to, refuse=refuse, stop=stopped)
        try:
            if back:
                moved = moving.from_duetime(ours, direction.queue, follow=follow)
            else:
                moved = moving.to_duetime(direction.queue, ours, follow=follow)
        except DuetimeError as error:
            error.message = f"{error.message}. Nothing was lost: run the same command again"
            raise
        left = foreign.sizes(direction.queue)
    names = (str(ours), direction.queue) if back else (direction.queue, str(ours))
    text = f"{moved:,} jobs moved from {names[0]} to {names[1]}"
    if not back and left.total:
        text += f"; {left.total:,} are left there, {left.reserved:,} of them reserved"
    if refused:
        text += f"; {len(refused):,} were refused"
    target.answer.show(
        {"moved": moved, "from": names[0], "to": names[1], "left": _document(left), "refused": refused}, text
    )
    return left


@contextmanager
def interrupts() -> Generator[Any]:
    """A function that answers whether TERM or INT came. The batch under way is finished first."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sleep(seconds: float, stopped: Any) -> None:
    deadline = time.monotonic() + seconds
    while not stopped() and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 0.2))

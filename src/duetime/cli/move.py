"""`duetime move`: everything from one store to another."""

import asyncio
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import typer

from duetime.cli.options import Target, takes_options
from duetime.cli.output import Answer, note, safe
from duetime.cli.progress import show_progress
from duetime.client import event_loop
from duetime.client.store_link import opened_store
from duetime.model.clock import duration_ms
from duetime.model.masking import mask
from duetime.transfer.registry_records import read_records
from duetime.transfer.store_move import MoveReport, StoreMove, clock_skew_ms, opened, survey

SKEW_MS = 1_000
NAMED = 20


@dataclass(frozen=True)
class MovePlaces:
    source: Annotated[str, typer.Option("--from", metavar="URL", help="The store to move from.")]
    target: Annotated[str, typer.Option("--to", metavar="URL", help="The store to move to.")]


@dataclass(frozen=True)
class MoveOptions:
    wait: Annotated[
        str, typer.Option(metavar="DURATION", help="How long to wait for jobs that consumers of the source still hold.")
    ] = "10m"
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what producers push to the source, until interrupted.")
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what there is to move.")] = False


@takes_options
def move(places: MovePlaces, options: MoveOptions, target: Target) -> None:
    """Move everything from one store to another: jobs, dead letters, rules, tokens, topics, users.

    Live: queues are paused at the source while their jobs go over; point consumers and producers at the new store
    before, meanwhile or afterwards. Run it again after a crash, or for what was pushed to the source since. The exit
    code is 1 if something stayed at the source.
    """
    if options.dry_run:
        event_loop.run(_survey(places, Answer(as_json=target.json)))
        return
    report = _run(places, options, as_json=target.json)
    _tell(report, Answer(as_json=target.json))
    if not report.is_whole:
        raise typer.Exit(1)


def _run(places: MovePlaces, options: MoveOptions, *, as_json: bool) -> MoveReport:
    async def run() -> MoveReport:
        stop = asyncio.Event()
        if options.follow:
            loop = asyncio.get_running_loop()
            for one in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(one, stop.set)
        with show_progress("moving", as_json=as_json, unit="jobs") as progress:
            async with opened(places.source, places.target) as (source, target):
                moving = StoreMove(
                    source,
                    target,
                    places.target,
                    wait_s=duration_ms(options.wait) / 1000,
                    told=lambda done, known: progress.advance_to(done, total=known),
                )
                return await moving.run(follow=lambda: options.follow and not stop.is_set())

    return event_loop.run(run())


async def _survey(places: MovePlaces, answer: Answer) -> None:
    """Opens nothing that would have to be made first: a file that is not there stays so."""
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(opened_store(places.source))
        counts, records = await survey(source), await read_records(source.registry)
        document: dict[str, Any] = {"records": len(records), "jobs": sum(one.total for one in counts.values())}
        text = f"{document['jobs']:,} jobs in {len(counts):,} queues and {len(records):,} records of the registry."
        if _is_there(places.target):
            target = await stack.enter_async_context(opened_store(places.target))
            skew_ms, queues = await clock_skew_ms(source, target), len(await target.queues())
            document |= {"skew_ms": skew_ms, "target_queues": queues}
            text += f" The target has {queues:,} queues; its clock is {skew_ms:+,} ms off."
        else:
            text += f" {mask(places.target)} would be made."
    for queue, one in counts.items():
        answer.tell(
            {"queue": str(queue), "ready": one.ready, "delayed": one.delayed, "leased": one.leased, "dead": one.dead},
            f"{queue}: {one.ready:,} ready, {one.delayed:,} delayed, {one.leased:,} leased, {one.dead:,} dead",
        )
    answer.tell(document, text)


def _is_there(url: str) -> bool:
    return not url.startswith("sqlite:") or Path(unquote(urlsplit(url).path)).exists()


def _tell(report: MoveReport, answer: Answer) -> None:
    for one in report.queues:
        document = {"queue": str(one.queue), "moved": one.moved, "left": one.left, "verified": one.is_verified}
        moved = ", ".join(f"{count:,} {state}" for state, count in one.moved.items())
        end = "verified" if one.is_verified else f"{one.left:,} LEFT AT THE SOURCE" if one.left else "NOT VERIFIED"
        answer.tell(document, f"{one.queue}: {moved}; {end}")
    for problem in report.problems[:NAMED]:
        note(f"duetime: not moved: {safe(problem)}")
    for name in report.other_records[:NAMED]:
        note(f"duetime: the target has another value for {safe(name)}, and keeps it")
    if abs(report.skew_ms) > SKEW_MS:
        note(f"duetime: the target's clock is {report.skew_ms:+,} ms from the source's, and so are deliveries")
    answer.tell(
        {
            "moved": report.moved,
            "left": report.left,
            "records": report.records,
            "other_records": report.other_records,
            "problems": report.problems,
            "skew_ms": report.skew_ms,
            "whole": report.is_whole,
        },
        f"{report.moved:,} jobs and {report.records:,} records moved"
        + (
            "; nothing is left at the source." if report.is_whole else f"; {report.left:,} jobs are left: run it again."
        ),
    )

"""`duetime batch ...`: many jobs that are watched and changed as one."""

from collections.abc import Callable
from typing import Annotated, Any

from msgspec.structs import asdict

from duetime.cli.options import Target, YesOption, argument, check_exists, flag
from duetime.cli.output import moment, safe
from duetime.model.clock import SystemClock
from duetime.model.errors import NotFound
from duetime.model.humanise import counted
from duetime.model.names import check_queue
from duetime.worker.app import App
from duetime.worker.batches import KEEPERS, BatchStatus, TaskBatch, list_keepers
from duetime.worker.pusher import send_work

BatchArgument = Annotated[str, argument("BATCH", "The id of the batch, which is also its queue.")]
COUNTS = ("total", "waiting", "running", "done", "failed", "cancelled", "expired")


def list_batches(target: Target) -> None:
    """List the batches of the namespace that are open or have failed jobs.

    Examples:
        duetime batch list
        duetime batch list --json
    """
    found: list[BatchStatus] = []
    with _app(target) as app:
        for batch_id in send_work(app, list_keepers(check_queue(target.space, KEEPERS))):
            try:
                found.append(app.find_batch(batch_id).status())
            except NotFound:  # it has ended in this moment, long ago enough
                continue
    now = SystemClock().now_ms()
    columns = {
        "batch": [safe(one.id) for one in found],
        "name": [safe(one.name) for one in found],
        "state": [_state(one) for one in found],
        "% ": [str(one.percent) for one in found],
        **{f"{name} ": [f"{getattr(one, name):,}" for one in found] for name in COUNTS},
        "opened": [moment(one.opened_at, now) for one in found],
    }
    target.answer.table([_document(one, target) for one in found], columns, nothing=f"no batches in {target.space}")


def show(batch: BatchArgument, target: Target) -> None:
    """Show the progress of a batch, or its result until seven days after its end.

    Examples:
        duetime batch show mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa
    """
    with _app(target) as app:
        _show(app.find_batch(batch).status(), target)


def pause(batch: BatchArgument, target: Target) -> None:
    """Start no more jobs of a batch until it is resumed; running jobs finish.

    Examples:
        duetime batch pause mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa
    """
    _change(batch, target, TaskBatch.pause)


def resume(batch: BatchArgument, target: Target) -> None:
    """Let the jobs of a batch start again.

    Examples:
        duetime batch resume mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa
    """
    _change(batch, target, TaskBatch.resume)


def _change(batch: str, target: Target, change: Callable[[TaskBatch], object]) -> None:
    with _app(target) as app:
        found = app.find_batch(batch)
        change(found)
        _show(found.status(), target)


def cancel(
    batch: BatchArgument,
    target: Target,
    yes: YesOption = False,
) -> None:
    """Delete the waiting jobs of a batch and close it; running jobs finish.

    Examples:
        duetime batch cancel mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa --yes
    """
    answer = target.answer
    with _app(target) as app:
        found = app.find_batch(batch)
        if not yes:
            answer.confirm(f"Delete {found.status().waiting:,} waiting jobs of {safe(batch)}?")
        _show(found.cancel(), target)


def shift(
    batch: BatchArgument,
    by: Annotated[str, argument("TIME", "By how much, as 90s or 1h30m.")],
    target: Target,
    earlier: Annotated[bool, flag("Earlier, not later.", "--earlier")] = False,
) -> None:
    """Shift the due time of every waiting job of a batch.

    Examples:
        duetime batch shift mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa 1h
        duetime batch shift mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa --earlier 10m
    """
    with _app(target) as app:
        moved = app.find_batch(batch).shift(f"-{by}" if earlier else by)
    text = f"{safe(batch)}: {counted(moved, 'job')} moved to {by} {'earlier' if earlier else 'later'}"
    target.answer.show({"namespace": target.space, "batch": batch, "moved": moved}, text)


def _app(target: Target) -> App:
    check_exists(target.address)
    return App(target.address, namespace=target.space, token=target.secret)


def _state(one: BatchStatus) -> str:
    return f"{one.state}, paused" if one.paused else one.state


def _document(one: BatchStatus, target: Target) -> dict[str, Any]:
    return {"namespace": target.space, **asdict(one), "percent": one.percent}


def _show(one: BatchStatus, target: Target) -> None:
    counts = ", ".join(f"{getattr(one, name):,} {name}" for name in COUNTS if getattr(one, name) or name == "total")
    text = f"{safe(one.id)} {safe(one.name)}: {_state(one)}, {one.percent} %, {counts}"
    target.answer.show(_document(one, target), text)

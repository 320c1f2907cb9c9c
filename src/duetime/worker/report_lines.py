"""What a worker writes to standard output: one line per event of a job, as JSON (Laravel's keys) or for people."""

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from duetime.worker.events import TaskEvent

if TYPE_CHECKING:
    from duetime.worker.app import App

STATUSES: Mapping[str, tuple[str, str]] = {
    "processing": ("starting", ""),
    "processed": ("success", "deleted"),
    "cancelled": ("cancelled", "deleted"),
    "released": ("released", "released"),
    "released_after_exception": ("released_after_exception", "released"),
    "failed": ("failed", "failed"),
    "timed_out": ("timed_out", ""),
    "lease_lost": ("lease_lost", ""),
}
"""Event -> status and result of its line."""
QUIET = ("released_after_exception", "failed", "timed_out", "lease_lost")
"""Events that are printed for people without --verbose."""
BAD = ("failed", "timed_out", "lease_lost", "released_after_exception")


def report(app: "App", *, as_json: bool, verbose: bool) -> None:
    """Start writing lines."""
    for name in STATUSES if as_json or verbose else QUIET:
        app.listeners.add(name, _write_json if as_json else _write_text)


def _write_json(event: TaskEvent) -> None:
    assert event.job is not None
    job, failure = event.job, event.failure
    status, result = STATUSES[event.name]
    line = {
        "level": "warning" if event.name in BAD else "info",
        "id": job.id,
        "uuid": job.uuid,
        "connection": job.namespace,
        "queue": job.queue,
        "job": job.name,
        "status": status,
        "result": result,
        "attempts": job.attempt,
        "exception": failure.kind if failure else "",
        "message": failure.message if failure else "",
        "timestamp": datetime.now(UTC).isoformat(),
        "duration": round(event.duration_ms / 1000, 6),
    }
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


def _write_text(event: TaskEvent) -> None:
    assert event.job is not None
    job, failure = event.job, event.failure
    status = STATUSES[event.name][0]
    why = f"  {failure}" if failure else ""
    took = f"  {event.duration_ms:.1f}ms" if event.duration_ms else ""
    line = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}  {job.name}  {job.queue}/{job.id}  {status}{took}{why}"
    sys.stdout.write("".join(char if char.isprintable() else " " for char in line) + "\n")
    sys.stdout.flush()

"""Events of a worker and its producers, and their listeners.

Listeners are plain callables with one argument, a TaskEvent. They run in the process of the event, on its loop: in the
worker itself, not in the processes of its pool (but for `child_starting`). So they should be quick. An error in one is
logged and changes nothing, except that `looping` may return False to skip a round. docs/tasks.md maps each name to
Laravel's.
"""

import asyncio
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct, field

from duetime.client.checks import check_callable
from duetime.model.errors import InvalidRequest
from duetime.worker.retry_rules import Decision
from duetime.worker.runs import Ended, Failure, JobInfo, Run

if TYPE_CHECKING:
    from duetime.worker.app import App

log = logging.getLogger("duetime.worker")

NAMES = (
    "queueing",
    "queued",
    "unique_skipped",
    "worker_starting",
    "child_starting",
    "looping",
    "popping",
    "popped",
    "processing",
    "processed",
    "exception_occurred",
    "released_after_exception",
    "released",
    "postponed",
    "cancelled",
    "failed",
    "timed_out",
    "lease_lost",
    "given_back",
    "attempted",
    "idle",
    "interrupted",
    "pausing",
    "resuming",
    "stopping",
)


class TaskEvent(Struct):
    """The argument of a listener. Only the fields of its event are set. `extra` of `queueing` is added to the payload.

    `delay_ms` is the wait before the next try; `duration_ms` how long the job ran; `status`, `reason`, `jobs` and
    `memory_mb` describe how a worker stops.
    """

    name: str
    job: JobInfo | None = None
    failure: Failure | None = None
    delay_ms: int = 0
    duration_ms: float = 0.0
    reason: str = ""
    status: int = 0
    jobs: int = 0
    memory_mb: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


Listener = Callable[[TaskEvent], object]
L = TypeVar("L", bound=Listener)


class Listeners:
    def __init__(self) -> None:
        self._by_name: dict[str, list[Listener]] = {}

    def add(self, name: str, listener: L) -> L:
        if name not in NAMES:
            raise InvalidRequest(f"event must be one of {', '.join(NAMES)}, got {name!r}")
        check_callable("listener", listener)
        if inspect.iscoroutinefunction(listener):
            raise InvalidRequest(f"listener must be a plain function, got the async {listener!r}")
        self._by_name.setdefault(name, []).append(listener)
        return listener

    def wanted(self, name: str) -> bool:
        """Returns whether the event has listeners."""
        return name in self._by_name

    def notify(self, event: TaskEvent) -> bool:
        """Returns False if a listener returned False."""
        agreed = True
        for listener in self._by_name.get(event.name, ()):
            try:
                agreed = listener(event) is not False and agreed
            except Exception:
                log.exception("listener_failed", extra={"event_name": event.name})
        return agreed


class JobEvents:
    """What a worker reports about its jobs; the sequences are Laravel's."""

    def __init__(self, app: "App") -> None:
        self._app = app
        self._listeners = app.listeners

    def notify(
        self, name: str, run: Run, *, failure: Failure | None = None, delay_ms: int = 0, reason: str = ""
    ) -> None:
        if self._listeners.wanted(name):
            event = TaskEvent(
                name,
                job=run.info(),
                failure=failure,
                delay_ms=delay_ms,
                duration_ms=run.duration_ms,
                reason=reason,
            )
            self._listeners.notify(event)

    def notify_worker(self, event: TaskEvent) -> bool:
        return not self._listeners.wanted(event.name) or self._listeners.notify(event)

    def on_acked(self, run: Run, decision: Decision) -> None:
        """The job was acked: the function returned, or the task cancelled its job."""
        if decision.by_task:
            self.notify("cancelled", run, failure=decision.failure)
        else:
            self.notify("processed", run)
        self.notify("attempted", run)

    def on_given_back(self, run: Run, decision: Decision) -> None:
        """The job waits as if it had not been delivered: it never began, or it was postponed."""
        if decision.by_task:
            self.notify("postponed", run, failure=decision.failure, delay_ms=decision.delay_ms)
            self.notify("attempted", run)
        else:
            self.notify("given_back", run)

    def on_retry(self, run: Run, decision: Decision, ended: Ended, delay_ms: int) -> None:
        """The job waits for its next try."""
        failure = decision.failure
        if decision.by_task:
            self.notify("processed", run)
            self.notify("released", run, failure=failure, delay_ms=delay_ms)
        else:
            self.notify("timed_out" if ended is Ended.TIMED_OUT else "exception_occurred", run, failure=failure)
            self.notify("released_after_exception", run, failure=failure, delay_ms=delay_ms)
        self.notify("attempted", run, failure=None if decision.by_task else failure)

    async def on_failed(self, run: Run, decision: Decision, ended: Ended, reason: str) -> None:
        """The job is a dead letter."""
        failure = decision.failure or Failure("duetime.Failed", reason)
        await self._call_failed_hook(run, failure)
        self.notify("failed", run, failure=failure, reason=reason)
        if decision.by_task:
            self.notify("processed", run)
        else:
            self.notify("timed_out" if ended is Ended.TIMED_OUT else "exception_occurred", run, failure=failure)
        self.notify("attempted", run, failure=failure)

    async def _call_failed_hook(self, run: Run, failure: Failure) -> None:
        task = self._app.tasks.get(run.payload.name)
        if task is None or task.failed_hook is None:
            return
        try:
            await asyncio.to_thread(task.failed_hook, run.info(), failure)
        except Exception:
            log.exception("failed_hook_failed", extra={"task": run.payload.name})


# --- one line per event of a job on standard output

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
    """Write a line for each event of a job, as JSON with Laravel's keys or for people."""
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

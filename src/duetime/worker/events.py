"""What a worker and its producers tell while they work, and who listens.

Listeners are plain callables that take one TaskEvent. They run in the process that tells, on its event loop: in the
worker itself, not in the processes of its pool (but for `child_starting`). So they should be quick. An error in one is
logged and changes nothing, except that `looping` may return False to skip a round. docs/tasks.md maps each name to
Laravel's.
"""

import inspect
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct, field

from duetime.model.errors import InvalidRequest
from duetime.worker.runs import Failure, JobInfo

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
    """Only what belongs to the event is set. `extra` of `queueing` goes into the payload.

    `delay_ms` is the wait before the next try; `duration_ms` how long the job ran; `status`, `reason`, `jobs` and
    `memory_mb` tell how a worker stops.
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
            raise InvalidRequest(f"there is no event {name!r}; there are {', '.join(NAMES)}")
        if inspect.iscoroutinefunction(listener):
            raise InvalidRequest(f"a listener is a plain function; {listener!r} is async")
        self._by_name.setdefault(name, []).append(listener)
        return listener

    def wanted(self, name: str) -> bool:
        """Whether it is worth making the event."""
        return name in self._by_name

    def tell(self, event: TaskEvent) -> bool:
        """False if a listener said False."""
        agreed = True
        for listener in self._by_name.get(event.name, ()):
            try:
                agreed = listener(event) is not False and agreed
            except Exception:
                log.exception("listener_failed", extra={"event_name": event.name})
        return agreed

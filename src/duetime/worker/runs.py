"""One execution of one job, how it can end, and the interfaces between a worker and the pool that executes jobs.

A Run is made when a job is reserved and lives in the worker until its end is known to the store. An Outcome is what
a pool reports about it; what that means for the job is decided in `retry_rules.py`. A task raises Retry, Postpone,
Cancel or Fail to choose how its job ends.
"""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct
from msgspec import field as member

from duetime.model.clock import Duration, duration_ms
from duetime.model.job import Delivery
from duetime.wire.job_output import LastLines
from duetime.wire.payload import Payload

MB = 1_048_576
GRACE_S = 1.0
"""How long a job may clean up after its time is over, before its process is ended."""


class Ended(IntEnum):
    """How the function ended. TIMED_OUT, GONE (its process died) and BACK (it never began) are set by the pool. UNKNOWN
    means that this worker has no such task.
    """

    DONE = 0
    RAISED = 1
    RETRY = 2
    CANCEL = 3
    FAIL = 4
    TIMED_OUT = 5
    GONE = 6
    BACK = 7
    POSTPONED = 8
    UNKNOWN = 9


class Failure(Struct, frozen=True, array_like=True):
    """An exception, as it can travel between processes."""

    kind: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


class Outcome(Struct, frozen=True, array_like=True, gc=False):
    """`result` is the return value of a task as JSON, if it is wanted."""

    ended: Ended
    failure: Failure | None = None
    after_ms: int | None = None
    result: bytes | None = None


DONE = Outcome(Ended.DONE)
BACK = Outcome(Ended.BACK)


class JobInfo(Struct, frozen=True, array_like=True):
    """The job of a run, for listeners and logs. `attempt` counts deliveries, `used` those
    that count against `tries`. `headers` are the attributes that the job was pushed with.
    """

    id: str
    uuid: str
    queue: str
    namespace: str
    name: str
    attempt: int
    used: int
    tries: int
    timeout_s: float
    body: bytes
    headers: Mapping[str, str] = member(default_factory=dict[str, str])
    born: int = 0


@dataclass(slots=True, eq=False)
class Run:
    """`number` names it between the processes of one worker. Times are those of `time.monotonic`, 0 if not yet."""

    number: int
    delivery: Delivery
    payload: Payload
    timeout_s: float
    reserved_at: float = field(default_factory=time.monotonic)
    started_at: float = 0.0
    ended_at: float = 0.0
    deadline: float = 0.0
    lost: bool = False
    was_announced: bool = False
    progress: int = -1
    output: LastLines | None = None
    has_new_output: bool = False
    output_at: float = 0.0
    outcome: Outcome = DONE

    def begin(self) -> None:
        """The run begins now, and so does its timeout."""
        self.started_at = time.monotonic()
        self.deadline = self.started_at + self.timeout_s if self.timeout_s else 0.0

    def take_back(self) -> None:
        """The process that should run the job has not taken it: it has not begun after all."""
        self.started_at = self.deadline = 0.0

    @property
    def duration_ms(self) -> float:
        return (self.ended_at - self.started_at) * 1000 if self.started_at and self.ended_at else 0.0

    def info(self) -> JobInfo:
        lease = self.delivery.lease
        return JobInfo(
            id=lease.id,
            uuid=self.payload.uuid,
            queue=lease.queue.name,
            namespace=lease.queue.namespace,
            name=self.payload.displayName or self.payload.name,
            attempt=lease.attempt,
            used=self.delivery.used,
            tries=self.delivery.tries,
            timeout_s=self.timeout_s,
            body=self.delivery.body,
            headers=self.delivery.attributes,
            born=lease.born,
        )


# --- what a task raises


class Retry(Exception):
    """Try again after a while. Without `after` the task's backoff decides. Uses one of the job's tries."""

    def __init__(self, message: str = "", *, after: Duration | None = None) -> None:
        self.after_ms = None if after is None else duration_ms(after)
        super().__init__(message)


class Postpone(Exception):
    """Run the job after a while, as if this run had not started. Uses none of its tries."""

    def __init__(self, message: str = "", *, after: Duration) -> None:
        self.after_ms = duration_ms(after)
        super().__init__(message)


class Cancel(Exception):
    """There is nothing left to do: the job is removed, and counts neither as done nor as failed."""


class Fail(Exception):
    """Trying again would not help: the job goes to the dead letters immediately."""


class TimedOut(BaseException):
    """The job ran longer than its timeout. It is raised inside the task so that the task can clean up; the task is then
    stopped.
    """

    def __init__(self) -> None:
        super().__init__("the job ran longer than its timeout")


TIMED_OUT = f"{TimedOut.__module__}.{TimedOut.__qualname__}"
"""Its name in a failure."""


# --- pools


class PoolHost(Protocol):
    """The worker, as a pool sees it. All calls come on the worker's event loop."""

    def began(self, run: Run) -> None:
        """The job has begun to run."""
        ...

    def ended(self, run: Run, outcome: Outcome) -> None:
        """The job is over, and its slot in the pool is free again."""
        ...

    def returned(self, run: Run) -> None:
        """The job was handed to the pool but has not begun: it may run in another slot."""
        ...

    def said(self, run: Run, word: str, value: Any) -> None:
        """The task reported its progress, logged lines or asked for more time."""
        ...

    def widened(self) -> None:
        """There is new room: a process has started."""
        ...

    def broken(self) -> None:
        """The pool can start no more jobs; running ones may still end."""
        ...


class WorkerPool(Protocol):
    """`depth`: how many jobs may be handed to one process at a time, for jobs much shorter than a round trip."""

    depth: int

    async def start(self) -> None: ...

    def resize(self, size: int) -> None:
        """Resize to `size` slots. A removed slot finishes its running job first."""
        ...

    def room(self) -> int:
        """How many jobs the pool can accept now."""
        ...

    def submit(self, run: Run) -> bool:
        """Hand over a job; False if it does not fit just now."""
        ...

    def check(self, now: float) -> None:
        """Called every few milliseconds while there is something to do: time-outs and stuck jobs."""
        ...

    def check_memory(self, limit_mb: float) -> None:
        """Called about every second: replace processes that have grown too large."""
        ...

    def warn(self) -> None:
        """Let running jobs know that the worker wants to stop; `current_job().stopping` says so."""
        ...

    async def close(self, *, force: bool) -> None:
        """Without force nothing is running any more. With it, running jobs are ended now and reported as BACK."""
        ...


def resident_mb(pid: int | None = None) -> float:
    """Resident memory of a process, by default this one; 0 if unknown: it is gone, or there is no /proc to ask."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        if pid is not None or sys.platform == "linux":
            return 0.0
        # Without /proc there is only the highest it ever was, in bytes on macOS.
        import resource  # noqa: PLC0415 - Windows has none, and imports this module

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MB
    return pages * os.sysconf("SC_PAGE_SIZE") / MB

"""One execution of one job, and how it can end.

A Run is made when a job is reserved and lives in the worker until its end is known to the store. An Outcome is what
a pool says about it; what that means for the job is decided in `retry_rules.py`.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from msgspec import Struct
from msgspec import field as member

from duetime.model.job import Delivery
from duetime.wire.payload import Payload


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
    """`result` is what a task returned, as JSON, if somebody wants it."""

    ended: Ended
    failure: Failure | None = None
    after_ms: int | None = None
    result: bytes | None = None


DONE = Outcome(Ended.DONE)
BACK = Outcome(Ended.BACK)


class JobInfo(Struct, frozen=True, array_like=True):
    """What there is to know about the job of a run, for listeners and logs. `attempt` counts deliveries, `used` those
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

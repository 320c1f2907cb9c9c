"""A simulator for capacity tests: so many consumers, one job each at a time, in the order in which jobs fall due.

No store and no waiting: an hour of the past takes a moment. It is the best that such consumers could do, because
taking and acking a job costs nothing here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace


@dataclass(frozen=True)
class SimulatedOutcome:
    """Lateness in milliseconds; `busy` is the share of the consumers' time that was work."""

    consumers: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    worst_ms: float
    busy: float


def simulate_consumers(due_ms: Sequence[float], run_ms: Sequence[float], consumers: int) -> SimulatedOutcome:
    """`due_ms` and `run_ms` belong together, in any order; at least one job."""
    free = [0.0] * consumers
    heapify(free)
    late: list[float] = []
    end = 0.0
    for due, run in sorted(zip(due_ms, run_ms, strict=True)):
        start = max(due, free[0])
        heapreplace(free, start + run)
        late.append(start - due)
        end = max(end, start + run)
    late.sort()
    span = max(end - min(due_ms), 1.0)
    return SimulatedOutcome(
        consumers,
        p50_ms=late[len(late) // 2],
        p95_ms=late[min(int(len(late) * 0.95), len(late) - 1)],
        p99_ms=late[min(int(len(late) * 0.99), len(late) - 1)],
        worst_ms=late[-1],
        busy=min(sum(run_ms) / (span * consumers), 1.0),
    )

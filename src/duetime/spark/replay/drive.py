"""Pushes arrivals to a queue at the times at which they once came, faster or slower by a factor.

Each arrival has its moment on a fixed plan, and a late push does not put off the next one, so a store that stalls meets
the load that it would meet in real life. It is measured how far behind the plan the pushes were. Runs in one process,
through the client.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from duetime.client.client import QueueClient
from duetime.model.job import STEP_JOBS, NewJob, Priority

TICK_S = 0.005
"""Arrivals within one tick go out in one call."""
MOST_SAMPLES = 100_000


@dataclass(frozen=True)
class Arrival:
    """All times are as they were in the past; the speed is applied when the job is pushed."""

    offset_ms: int
    delay_ms: int
    priority: int = Priority.NORMAL
    ttl_ms: int = 0
    tries: int = 0
    body: bytes = b""


@dataclass
class Driven:
    """What a replay did. `lags_ms`: how long after its moment a call went out; `calls_ms`: how long the calls took."""

    pushed: int = 0
    seconds: float = 0.0
    lags_ms: list[float] = field(default_factory=list[float])
    calls_ms: list[float] = field(default_factory=list[float])

    def note(self, jobs: int, lag_ms: float, call_ms: float) -> None:
        self.pushed += jobs
        if len(self.calls_ms) < MOST_SAMPLES:
            self.lags_ms.append(lag_ms)
            self.calls_ms.append(call_ms)


def percentile(values: list[float], rank: float) -> float:
    return sorted(values)[min(int(len(values) * rank), len(values) - 1)] if values else 0.0


def drive(
    arrivals: Iterable[Arrival],
    queue: QueueClient,
    *,
    speed: float,
    prefix: str,
    told: Callable[[int], None] = lambda pushed: None,
) -> Driven:
    """Push all arrivals. Ids are `<prefix>-<number>`, so that replays with different prefixes do not collide."""
    done, start = Driven(), time.monotonic()
    for number, chunk in _chunks(arrivals, speed):
        moment = start + chunk[0].offset_ms / 1000 / speed
        wait_s = moment - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        began = time.monotonic()
        queue.bulk([_job(one, speed, f"{prefix}-{number + index:09d}") for index, one in enumerate(chunk)])
        ended = time.monotonic()
        done.note(len(chunk), max(began - moment, 0) * 1000, (ended - began) * 1000)
        told(done.pushed)
    done.seconds = time.monotonic() - start
    return done


def _chunks(arrivals: Iterable[Arrival], speed: float) -> Iterator[tuple[int, list[Arrival]]]:
    """Arrivals of one tick of the replay, a call's worth at most, with the number of the first."""
    chunk: list[Arrival] = []
    number = 0
    for one in arrivals:
        if chunk and (one.offset_ms - chunk[0].offset_ms > TICK_S * 1000 * speed or len(chunk) == STEP_JOBS):
            yield number, chunk
            number += len(chunk)
            chunk = []
        chunk.append(one)
    if chunk:
        yield number, chunk


def _job(arrival: Arrival, speed: float, job_id: str) -> NewJob:
    """Delays and lives shrink with the speed, as the gaps between the arrivals do."""
    delay_ms = round(arrival.delay_ms / speed)
    ttl_ms = max(round(arrival.ttl_ms / speed), delay_ms, 1) if arrival.ttl_ms else 0
    return NewJob(
        id=job_id,
        body=arrival.body,
        delay_ms=delay_ms,
        ttl_ms=ttl_ms,
        tries=arrival.tries,
        priority=Priority(arrival.priority or Priority.NORMAL),
    )

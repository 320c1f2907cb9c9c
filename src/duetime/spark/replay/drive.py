"""Pushes arrivals to a queue at the times at which they once came, faster or slower by a factor.

Each arrival has its moment on a fixed plan, and a late push does not put off the next one, so a store that stalls meets
the load that it would meet in real life. It is measured how far behind the plan the pushes were. Runs in one process,
through the client.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duetime.client.client import QueueClient
from duetime.journal.events import REPEATED
from duetime.model.job import STEP_JOBS, Event, NewJob, Priority
from duetime.spark.schemas import KEY

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
    on_progress: Callable[[int], None] = lambda pushed: None,
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
        on_progress(done.pushed)
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


# --- the simulation
#
# A simulator for capacity tests: a number of consumers, one job each at a time, in the order in which jobs fall due.
#
# No store and no waiting: an hour of the past takes a moment. It is the best that such consumers could do, because
# taking and acking a job costs nothing here.


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


# --- arrivals of a window
#
# The arrivals of a past window in their order, which a replay is made of. A pure transform.
#
# An arrival is a job that was accepted then: when, how long before it was due, and how long it ran once it was
# delivered. The id is not part of it: a replayed job is another job.


BEGINS = (Event.ACCEPTED.value, Event.ADOPTED.value, Event.REPLACED.value)


def arrivals(events: DataFrame, jobs: DataFrame, *, start_at: int, end_at: int) -> DataFrame:
    """Per accepted job in [start_at, end_at): offset from the start, delay, options, size, run time (null: unknown).

    They are in the order of arrival. The last column is the body; Spark does not read it if the caller drops it.
    """
    # Jobs that reconcile put back have an attempt, and repeated entries have a reason; both arrived before.
    came = F.col("event").isin(*BEGINS) & ((F.col("attempt") == 0) | (F.col("event") == Event.ADOPTED.value))
    came = came & (F.col("reason") != REPEATED)
    begun = events.where(came & (F.col("ts") >= start_at) & (F.col("ts") < end_at))
    run_times = jobs.select(*KEY, "run_ms")
    return (
        begun.join(run_times, on=list(KEY), how="left")
        .select(
            (F.col("ts") - F.lit(start_at)).alias("offset_ms"),
            F.greatest(F.col("due_at") - F.col("ts"), F.lit(0)).alias("delay_ms"),
            "priority",
            F.col("ttl").alias("ttl_ms"),
            "tries",
            F.coalesce(F.length("body"), F.lit(0)).alias("size"),
            "run_ms",
            "body",
            F.col("ts").alias("_ts"),
            F.col("id").alias("_id"),
        )
        .orderBy("_ts", "_id")
        .drop("_ts", "_id")
    )


def arrivals_by_second(arrived: DataFrame) -> DataFrame:
    """How many arrive in each second of the window; for a look before the replay."""
    second = F.floor(F.col("offset_ms") / 1000).alias("second")
    return arrived.groupBy(second).agg(F.count("*").alias("jobs"), F.sum("size").alias("bytes"))

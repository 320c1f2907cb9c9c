"""How workers report that they run: by a counter of the registry with a short life, whose name describes the worker.

A worker adds to a new counter every BEAT_S, `workers/<number of the beat>/<description>`. Its value is the number of
jobs in the worker's hands, plus one. A worker that ends is forgotten when its last counter's life is over. Before that
it adds to a counter for each of the jobs that have run longest, `runs/<number of the beat>/<description>`.
"""

import time
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from duetime.stores.registry import Registry
from duetime.wire.payload import counter_name

T = TypeVar("T")

BEAT_S = 10
LIFE_MS = 25_000
PREFIX = "workers/"
RUNS_PREFIX = "runs/"
MOST_RUNS = 20
"""Jobs that a worker names in a beat."""
MAX_COUNTER_NAME = 300
"""Characters."""
HOST = 40
LONGEST = 180
"""Characters for the names of the queues in the name of a counter."""


class WorkerBeat(msgspec.Struct, array_like=True, frozen=True):
    """`pool` is how it runs jobs, `queues` a list with commas, cut where it is long, `started_at` epoch seconds."""

    host: str
    pid: int
    pool: str
    concurrency: int
    queues: str
    started_at: int


class RunBeat(msgspec.Struct, array_like=True, frozen=True):
    """A job that runs: the worker it runs in, its queue and id, its task, since when (epoch milliseconds)."""

    host: str
    pid: int
    queue: str
    id: str
    task: str
    began_at: int


class RunningJobOut(msgspec.Struct):
    queue: str
    id: str
    task: str
    began_at: int


class WorkerOut(msgspec.Struct):
    """A worker of tasks as of its last beat, at most ten seconds ago: `jobs` in its hands, and those of them that
    `running` names, the longest first. Times are epoch milliseconds.
    """

    host: str
    pid: int
    pool: str
    concurrency: int
    queues: str
    started_at: int
    jobs: int
    running: list[RunningJobOut]


class WorkersOut(msgspec.Struct):
    workers: list[WorkerOut]
    now: int


def beat_number() -> int:
    """Rises from beat to beat: two beats with one number would add up in one counter."""
    return int(time.time() * 1000)


def beat_name(beat: WorkerBeat, number: int | None = None) -> str:
    cut = msgspec.structs.replace(beat, host=beat.host[:HOST], queues=beat.queues[:LONGEST])
    return f"{PREFIX}{beat_number() if number is None else number}/{msgspec.json.encode(cut).decode()}"


def run_name(run: RunBeat, number: int) -> str:
    """Long names are cut, so that this fits into MAX_COUNTER_NAME unless they are full of quotes."""
    cut = msgspec.structs.replace(run, host=run.host[:HOST], queue=run.queue[:60], id=run.id[:64], task=run.task[-60:])
    return f"{RUNS_PREFIX}{number}/{msgspec.json.encode(cut).decode()}"


async def find_workers(registry: Registry, namespace: str) -> WorkersOut:
    prefix = counter_name(namespace, "")
    beats = await registry.counters(prefix + PREFIX)
    runs = await registry.counters(prefix + RUNS_PREFIX)
    return WorkersOut(read_workers(beats, runs, prefix), int(time.time() * 1000))


def read_workers(beats: Mapping[str, int], runs: Mapping[str, int], prefix: str) -> list[WorkerOut]:
    """The workers of these counters, with the jobs that each named in its last beat. All names begin with `prefix`."""
    running: dict[tuple[str, int], dict[int, list[RunningJobOut]]] = {}
    for number, _, run in _read(runs, prefix + RUNS_PREFIX, RunBeat):
        job = RunningJobOut(run.queue, run.id, run.task, run.began_at)
        running.setdefault((run.host, run.pid), {}).setdefault(number, []).append(job)
    found: list[WorkerOut] = []
    for number, beat, jobs in _latest(beats, prefix + PREFIX):
        named = running.get((beat.host, beat.pid), {}).get(number, [])
        named.sort(key=lambda job: job.began_at)
        place = (beat.host, beat.pid, beat.pool, beat.concurrency, beat.queues)
        found.append(WorkerOut(*place, beat.started_at * 1000, jobs, named))
    return found


def _latest(counters: Mapping[str, int], prefix: str) -> list[tuple[int, WorkerBeat, int]]:
    """The last beat of each worker, with its number and the number of its running jobs."""
    found: dict[tuple[str, int], tuple[int, WorkerBeat, int]] = {}
    for number, value, beat in _read(counters, prefix, WorkerBeat):
        if (beat.host, beat.pid) not in found or found[beat.host, beat.pid][0] < number:
            found[beat.host, beat.pid] = (number, beat, value - 1)
    return sorted(found.values(), key=lambda one: (one[1].host, one[1].pid))


def _read(counters: Mapping[str, int], prefix: str, kind: type[T]) -> Iterator[tuple[int, int, T]]:
    """The number of each beat, the counter's value, and what its name describes."""
    for name, value in counters.items():
        number, _, text = name.removeprefix(prefix).partition("/")
        try:
            yield int(number), value, msgspec.json.decode(text, type=kind)
        except (msgspec.MsgspecError, ValueError):
            continue  # a client with a token may add to a counter of any name

"""How workers say that they are there: a counter of the registry with a short life, whose name describes the worker.

A worker adds to a new counter every BEAT_S, `workers/<number of the beat>/<description>`. Its value is the number of
jobs in the worker's hands, plus one. A worker that ends is forgotten when its last counter's life is over.
"""

import time
from collections.abc import Mapping

import msgspec

BEAT_S = 10
LIFE_MS = 25_000
PREFIX = "workers/"
LONGEST = 180
"""Characters for the names of the queues: the name of a counter has at most 300."""


class WorkerBeat(msgspec.Struct, array_like=True, frozen=True):
    """`pool` is how it runs jobs, `queues` a list with commas, cut where it is long, `started_at` epoch seconds."""

    host: str
    pid: int
    pool: str
    concurrency: int
    queues: str
    started_at: int


def beat_name(beat: WorkerBeat) -> str:
    cut = msgspec.structs.replace(beat, host=beat.host[:40], queues=beat.queues[:LONGEST])
    return f"{PREFIX}{int(time.time()) // BEAT_S}/{msgspec.json.encode(cut).decode()}"


def read_beats(counters: Mapping[str, int], prefix: str) -> list[tuple[WorkerBeat, int]]:
    """The workers whose counters these are, each with the jobs in its hands at its last beat."""
    found: dict[tuple[str, int], tuple[int, WorkerBeat, int]] = {}
    for name, value in counters.items():
        number, _, text = name.removeprefix(prefix).partition("/")
        try:
            beat = msgspec.json.decode(text, type=WorkerBeat)
            seen = (int(number), beat, value - 1)
        except (msgspec.MsgspecError, ValueError):
            continue  # anybody with a token may add to a counter of any name
        if (beat.host, beat.pid) not in found or found[beat.host, beat.pid][0] < seen[0]:
            found[beat.host, beat.pid] = seen
    return [(beat, jobs) for _, beat, jobs in sorted(found.values(), key=lambda one: (one[1].host, one[1].pid))]

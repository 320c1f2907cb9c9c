"""What the journal costs: concurrent pushes with none, with fsync = interval, and with always.

    make bench ARGS=journal         or with sizes: make bench ARGS="journal --jobs 20000 --pairs 5 --producers 256"

One engine in this process on the server's event loop, 100-byte bodies, the journal on the same disk as the SQLite file.
Each mode is measured in pairs with none, one right after the other and the first one changing, and the overhead is the
median over the pairs. CPU is what all threads of this process used; on a busy machine it says more than the rates.
Goals: at most 15 % with interval, and 10 µs of CPU per job with always.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import uvloop

from bench.core_parts.setting import a_redis
from bench.report import median, spread, table
from duetime.engine import Engine
from duetime.engine.recorder import Recorder
from duetime.journal.journal import Journal
from duetime.journal.options import Fsync, JournalOptions
from duetime.journal.recorder import open_journal_recorder
from duetime.model.ids import IdMaker
from duetime.model.job import NewJob, State
from duetime.model.names import Queue
from duetime.stores.open import open_store

BODY = b"x" * 100
QUEUE = Queue("bench", "jobs")
HOUR_MS = 3_600_000

Sizes = tuple[int, int]
"""Jobs and producers."""
Figures = tuple[float, float]
"""Jobs a second, answered, and microseconds of CPU per job."""


async def pushes(url: str, folder: Path, mode: Fsync | None, sizes: Sizes) -> Figures:
    count, producers = sizes
    make = IdMaker().make
    jobs = iter([NewJob(make(), BODY, delay_ms=HOUR_MS) for _ in range(count)])

    async def produce(engine: Engine) -> None:
        for job in jobs:
            await engine.push(QUEUE, [job])

    async with AsyncExitStack() as stack:
        store = await open_store(url)
        stack.push_async_callback(store.close)
        recorders: Sequence[Recorder] = ()
        if mode is not None:
            journal = await stack.enter_async_context(Journal(JournalOptions(folder, fsync=mode)))
            recorders = await open_journal_recorder(store, journal, "default")
        engine = await stack.enter_async_context(Engine(store, recorders=recorders))
        started, cpu_started = time.perf_counter(), time.process_time()
        await asyncio.gather(*(produce(engine) for _ in range(producers)))
        took, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
        await engine.purge(QUEUE, list(State))
    return count / took, cpu_s / count * 1e6


def run(url: str, folder: Path, mode: Fsync | None, sizes: Sizes) -> Figures:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(pushes(url, folder, mode, sizes))


def compare(measure: Callable[[Fsync | None], Figures], mode: Fsync, pairs: int) -> list[object]:
    """One row: the rates, the overhead as the median over pairs, how far the pairs lie apart, and CPU per job."""
    plain: list[Figures] = []
    journaled: list[Figures] = []
    for pair in range(pairs + 1):
        order = [None, mode] if pair % 2 else [mode, None]
        figures = {one: measure(one) for one in order}
        if pair:  # the first one warms up
            plain.append(figures[None])
            journaled.append(figures[mode])
    overhead = median(1 - ours[0] / theirs[0] for ours, theirs in zip(journaled, plain, strict=True))
    cpu = median(ours[1] - theirs[1] for ours, theirs in zip(journaled, plain, strict=True))
    rates = [rate for rate, _ in journaled]
    return [
        mode.value,
        median(rate for rate, _ in plain),
        median(rates),
        f"{overhead:.1%}",
        spread(rates),
        median(us for _, us in plain),
        f"{cpu:+.1f}",
    ]


@contextmanager
def stores(folder: Path, wanted: list[str]) -> Iterator[dict[str, str]]:
    urls: dict[str, str] = {}
    if "sqlite" in wanted:
        urls["sqlite"] = f"sqlite://{folder}/jobs.db"
    if "redis" in wanted:
        with a_redis() as server:
            yield {**urls, "redis": server.url}
    else:
        yield urls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--producers", type=int, default=256)
    parser.add_argument("--stores", default="redis,sqlite")
    arguments = parser.parse_args()
    sizes = (arguments.jobs, arguments.producers)
    with (
        tempfile.TemporaryDirectory(prefix="duetime-bench-") as name,
        stores(Path(name), arguments.stores.split(",")) as urls,
    ):
        for kind, url in urls.items():
            rows = [
                compare(lambda one, url=url: run(url, Path(name) / "journal", one, sizes), mode, arguments.pairs)
                for mode in (Fsync.INTERVAL, Fsync.ALWAYS)
            ]
            print(f"{kind}: {arguments.producers} producers, {arguments.jobs:,} jobs, {arguments.pairs} pairs")
            head = ["journal", "without, jobs/s", "with, jobs/s", "overhead", "spread", "CPU µs per job", "journal's"]
            print(table(head, rows), end="\n\n")


if __name__ == "__main__":
    main()

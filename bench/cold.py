"""A tiered pool of Redis and PostgreSQL: memory and disk per job, what a verb costs, and the rate of promotion.

make bench ARGS=cold                           200,000 jobs that are due in 30 to 60 days
make bench ARGS="cold --jobs 10000000 --promote 0.1"    full size: some 6 GB on disk
TMPDIR=/dev/shm make bench ARGS=cold           the same without the disk's time

Redis has no persistence. PostgreSQL commits durably, with shared_buffers of 1 GB, max_wal_size of 16 GB and
wal_compression. For the promotion the same pool is opened with a longer horizon: of 60 days, so that every job is
within it, or of fewer, for the share of the jobs that `--promote` names.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from urllib.parse import quote

import psycopg
import uvloop

from bench.core_parts.setting import DAY_MS, QUEUE, STEP, a_redis, meter, new_jobs, used_memory
from bench.report import number, table
from duetime.model.job import NewJob, State, chunks
from duetime.stores.base import Push, Store
from duetime.stores.open import open_store
from duetime.stores.tiered.store import TieredStore
from tests.plugins.database_server import servers
from tests.plugins.postgres_server import PostgresServer

SAMPLE = 100
SETTINGS = dict.fromkeys(("fsync", "synchronous_commit", "full_page_writes", "autovacuum"), "on") | {
    "shared_buffers": "1GB",
    "max_wal_size": "16GB",
    "wal_compression": "on",
}


async def load(store: Store, jobs: list[NewJob]) -> None:
    """Four producers, each with pushes of 500 jobs."""
    steps = iter(list(chunks(jobs, STEP)))

    async def producer() -> None:
        for some in steps:
            [answer] = await store.push(QUEUE, [Push(some, made_ids=True)])
            assert not isinstance(answer, Exception), answer

    await asyncio.gather(*(producer() for _ in range(4)))


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await call()
    return time.perf_counter() - started


async def verbs(store: Store, ids: list[str]) -> list[list[str]]:
    """Seconds of one call, the median of SAMPLE calls each."""
    found: list[list[str]] = []

    async def measure(name: str, call: Callable[[str], Awaitable[object]]) -> None:
        times = sorted([await timed(lambda one=one: call(one)) for one in ids[:SAMPLE]])
        found.append([name, f"{times[len(times) // 2] * 1000:.1f}"])

    await measure("get", lambda one: store.get(QUEUE, [one]))
    await measure("counts", lambda one: store.counts([QUEUE]))
    await measure("list 100", lambda one: store.list_jobs(QUEUE, State.DELAYED))
    await measure("reschedule, from cold to cold", lambda one: store.reschedule(QUEUE, [one], delay_ms=50 * DAY_MS))
    await measure("reschedule, from cold to hot", lambda one: store.reschedule(QUEUE, [one], delay_ms=DAY_MS))
    await measure("cancel", lambda one: store.cancel(QUEUE, [one]))
    return found


async def run(count: int, share: float, hot: str, cold: str, used: Callable[[], int], disk: Callable[[], int]) -> None:
    url = f"tiered:bench?hot={quote(hot)}&cold={quote(cold)}&horizon="
    store = await open_store(f"{url}2d")
    await store.push(QUEUE, [Push([NewJob("first", b"")])])
    empty, elapsed = used(), 0.0
    ids: list[str] = []
    for some in chunks(new_jobs(count, delay_ms=30 * DAY_MS, spread_ms=30 * DAY_MS), 50_000):
        jobs = list(some)
        ids = ids or [job.id for job in jobs[:: max(len(jobs) // SAMPLE, 1)]]
        elapsed += await timed(lambda jobs=jobs: load(store, jobs))
    print(
        table(
            ["jobs in cold", "pushed/s", "Redis, bytes more per job", "PostgreSQL, bytes per job"],
            [[number(count), number(count / elapsed), f"{(used() - empty) / count:.2f}", number(disk() / count)]],
        )
    )
    print(table(["verb", "ms"], await verbs(store, ids)), flush=True)
    await store.close()
    wide = await open_store(f"{url}{30 * 24 + round(30 * 24 * share)}h")
    assert isinstance(wide, TieredStore)
    hot_store = wide._tiers.hot
    left, there = (await wide.counts([QUEUE]))[0].total, (await hot_store.counts([QUEUE]))[0].total
    before, cpu = used(), time.process_time()
    elapsed = await timed(lambda: _promote_all(wide))
    promoted = (await hot_store.counts([QUEUE]))[0].total - there
    assert left == (await wide.counts([QUEUE]))[0].total, "a job is missing"
    assert promoted >= 0.9 * share * count, "jobs within the horizon were left in cold"
    print(
        table(
            ["promoted", "jobs/s", "CPU of the promoter, us per job", "Redis, bytes more per job"],
            [
                [
                    number(promoted),
                    number(promoted / elapsed),
                    f"{(time.process_time() - cpu) / promoted * 1e6:.1f}",
                    number((used() - before) / promoted),
                ]
            ],
        )
    )
    await wide.close()


async def _promote_all(store: TieredStore) -> None:
    while await store.promoter.run_once():
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--promote", type=float, default=1.0, metavar="SHARE", help="of the jobs, the earliest first")
    given = parser.parse_args()
    count = given.jobs
    print(f"jobs     {count:,} of 100 bytes, due in 30 to 60 days\nhorizon  2d\n")
    with a_redis() as redis, servers(PostgresServer, "postgres") as made:
        postgres = made.start(**SETTINGS)
        client = meter(redis)

        def disk() -> int:
            with psycopg.connect(postgres.url, autocommit=True) as connection:
                row = connection.execute(
                    "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n "
                    "ON n.oid = c.relnamespace WHERE n.nspname = 'duetime' AND c.relkind = 'r'"
                ).fetchone()
            return int(row[0]) if row else 0

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(count, given.promote, redis.url, postgres.url, lambda: used_memory(client), disk))

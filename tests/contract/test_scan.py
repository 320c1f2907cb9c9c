"""The pipeline's scan of a store: ranges of due time and id that together hold every job once, on every store."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest

from duetime.model.clock import SystemClock
from duetime.model.errors import DuetimeError
from duetime.model.job import NewJob, Priority
from duetime.model.names import Queue
from duetime.spark.audit import scan
from duetime.spark.load.options import LoadOptions
from duetime.spark.source import listing
from duetime.stores.base import Ask, Push, Store
from duetime.stores.open import open_store

BIG, SMALL, EMPTY = Queue("crm", "big"), Queue("crm", "small"), Queue("shop", "empty")
MOST = 40
HOUR_MS = 3_600_000
PRIORITIES = list(Priority)


async def push(store: Store, queue: Queue, jobs: list[NewJob]) -> None:
    for first in range(0, len(jobs), 500):
        for answer in await store.push(queue, [Push(jobs[first : first + 500])]):
            assert not isinstance(answer, DuetimeError), answer


async def fill(store: Store) -> Counter[tuple[str, str, str]]:
    """Many jobs of one queue, most of them due in the same millisecond, in every state; and a small queue."""
    now = SystemClock().now_ms()
    past, soon = now - HOUR_MS, now + 24 * HOUR_MS

    def some(name: str, count: int, due_at: int, step: int = 0) -> list[NewJob]:
        return [
            NewJob(f"{name}{index:06d}", b"", due_at=due_at + step * index, priority=PRIORITIES[index % 3])
            for index in range(count)
        ]

    held = [*some("at-once-", 150, soon), *some("\N{SNOWMAN}:", 30, soon), *some("spread-", 120, soon, 60_000)]
    ready = [*some("ready-", 120, past), *some("older-", 50, past - HOUR_MS, 1000)]
    await push(store, BIG, some("dead-", 7, past))
    for delivery in (await store.reserve(BIG, [Ask(7, 60_000)])).deliveries[0]:
        await store.kill(delivery.lease)
    await push(store, BIG, some("leased-", 9, past))
    await store.reserve(BIG, [Ask(9, 600_000)])
    await push(store, BIG, [*held, *ready])
    await push(store, SMALL, some("small-", 5, soon))
    await push(store, EMPTY, some("gone-", 1, soon))
    await store.cancel(EMPTY, ["gone-000000"])
    expected = Counter((BIG.name, job.id, "delayed") for job in held)
    expected.update((BIG.name, job.id, "ready") for job in ready)
    expected.update((BIG.name, f"dead-{index:06d}", "dead") for index in range(7))
    expected.update((BIG.name, f"leased-{index:06d}", "leased") for index in range(9))
    expected.update((SMALL.name, f"small-{index:06d}", "delayed") for index in range(5))
    return expected


@pytest.mark.store_only
@pytest.mark.parametrize("store_kind", ["sqlite", "redis", "postgres", "mysql", "group"])
async def test_one_queue_is_read_in_ranges_each_job_once(
    store_kind: str, empty_store_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (scan, listing):
        monkeypatch.setattr(module, "SMALL", MOST)
    members = [f"{name}={quote(f'sqlite://{tmp_path}/{name}.db', safe='')}" for name in "ab"]
    url = f"group:test?{'&'.join(members)}" if store_kind == "group" else empty_store_url()
    store = await open_store(url)
    expected = await fill(store)
    queues = await store.queues()
    counts = dict(zip(queues, await store.counts(queues), strict=True))
    shares = await scan.cut_queues(LoadOptions(url), counts, tasks=10)

    found = Counter[tuple[str, str, str]]()
    sizes: list[int] = []
    for share in shares:
        batch = pa.RecordBatch.from_pylist([dict(zip(scan.SHARES.names, share, strict=True))])
        pages = await asyncio.to_thread(lambda batch=batch: list(scan.ScanTask(LoadOptions(url))(iter([batch]))))
        rows = [row for page in pages for row in page.to_pylist()]
        found.update((row["queue"], row["id"], row["state"]) for row in rows)
        sizes.append(len(rows))
    await store.close()
    assert found == expected
    if store_kind != "group":  # a group lists member by member, so a queue cannot be entered in the middle
        assert len(shares) >= 10
        assert max(sizes) <= 3 * MOST, sizes

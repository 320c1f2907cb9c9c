"""How many waiting jobs were tried before, counted over all queues of a pool."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from duetime.console import sums
from duetime.console.queue_snapshots import QueueSnapshots
from duetime.console.saved_views import KIND, SavedView, saved_views
from duetime.console.sums import Retrying, RetryingCounts
from duetime.console.visit import Templates
from duetime.engine.pools import Pools
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.open import open_store
from duetime.stores.registry import Record


@pytest.fixture
async def pools() -> AsyncIterator[Pools]:
    async with Pools({"default": "memory:"}, open_store=open_store) as opened:
        yield opened


async def retry(pools: Pools, queue: Queue, jobs: int, *, untried: int = 0) -> None:
    engine = pools.engine("default")
    await engine.push(queue, [NewJob(f"{number}", b"x") for number in range(jobs)])
    for place, delivery in enumerate(await engine.reserve([queue], limit=jobs)):
        await engine.release(delivery.lease, delay_ms=place % 2 * 3_600_000)
    if untried:
        await engine.push(queue, [NewJob(f"new-{number}", b"x") for number in range(untried)])


async def counted(pools: Pools, namespaces: tuple[str, ...] = ("a", "b")) -> Retrying | None:
    counts = RetryingCounts(pools, QueueSnapshots(pools))
    found = await counts.read(lambda _, namespace: namespace in namespaces, within_s=30)
    await counts.close()
    return found


async def test_waiting_jobs_that_were_tried_before_are_counted_by_namespace(pools: Pools) -> None:
    await retry(pools, Queue("a", "mail"), 5, untried=70)
    await retry(pools, Queue("b", "mail"), 3)
    await pools.engine("default").push(Queue("a", "calm"), [NewJob("1", b"x")])
    assert await counted(pools) == Retrying(8, is_whole=True)
    assert await counted(pools, ("b",)) == Retrying(3, is_whole=True)


async def test_a_count_that_was_cut_short_is_marked(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "MOST_RETRYING", 50)
    await retry(pools, Queue("a", "small"), 2)
    await retry(pools, Queue("b", "large"), 60, untried=60)
    assert await counted(pools, ("a",)) == Retrying(2, is_whole=True)
    everything = await counted(pools)
    assert everything is not None
    assert not everything.is_whole
    assert everything.jobs >= 2


# --- templates are compiled when a page first needs them


async def test_a_template_that_cannot_be_read_for_a_moment_fails_no_later_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> str:
        raise OSError(24, "Too many open files")

    templates = Templates()
    with monkeypatch.context() as busy:
        busy.setattr(Path, "read_text", fail)
        with pytest.raises(OSError, match="Too many open files"):
            await templates.load("error.html")

    assert (await templates.load("error.html")).name == "error.html"


# --- saved filters of the jobs list


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b'{"pool": "default"}'])
def test_a_view_that_cannot_be_read_hides_no_other_and_no_page(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    view = SavedView("default", "shop", "mail", "late", {"since": "-1h"})
    records = [Record(KIND, "broken", value, 1), Record(KIND, view.key, msgspec.json.encode(view), 2)]
    copy = SimpleNamespace(list_records=lambda kind: records)
    visit: Any = SimpleNamespace(parts=SimpleNamespace(registry_copy=copy), sees=lambda pool, namespace: True)

    assert saved_views(visit) == [view]
    assert [record.message for record in caplog.records] == ["view_unreadable"]

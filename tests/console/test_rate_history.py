"""The charts of the last hour and day: what servers counted, kept in the registry."""

import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

import duetime
from duetime.console.live import LiveFigures
from duetime.console.pages.history_charts import cut_peaks
from duetime.console.pages.queues import much_different
from duetime.console.queue_history import KIND as QUEUES_KIND
from duetime.console.queue_history import TASKS_KIND, coarser
from duetime.console.rate_history import KIND, MeterGain, RateHistory, rate_points
from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.metrics.meters import Meters
from duetime.metrics.scraper import Scraper
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.server.process import PoolRecorders
from duetime.server.supervision.siblings import Alone
from duetime.stores.open import open_store
from tests.console.conftest import Visitor
from tests.plugins.serving import Served
from tests.plugins.until import until

MAIL = Queue("default", "mail")


@asynccontextmanager
async def figures(url: str, *, server: str) -> AsyncIterator[tuple[Pools, LiveFigures, RateHistory]]:
    """What one server process has, with samples in quick succession."""
    meters, siblings = Meters(), Alone()
    pools = Pools({"default": url}, open_store=open_store, watch=PoolRecorders(meters).watch)
    Scraper(pools, siblings, meters)
    async with pools, RegistryCopy(lambda: pools.registry) as copy:
        history = RateHistory(lambda: pools.registry, copy, server)
        async with LiveFigures(pools, siblings, history, sample_s=0.05, keep_s=0.2) as live:
            yield pools, live, history


def accepted(history: RateHistory, server: str) -> float:
    return sum(gain.counts["accepted"] for gain in history.read(0).get(server, []))


async def test_rates_outlive_the_server_that_counted_them(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    async with figures(url, server="a") as (pools, live, history):
        await until(lambda: live.meters.history("hour"))  # there is a sample to compare with
        await pools.engine("default").push(MAIL, [NewJob(id=str(number), body=b"") for number in range(7)])
        await until(lambda: accepted(history, "a") == 7, deadline_s=120)
        assert max(point.rates["accepted"] for point in await live.meters.history("day")) > 0

    async with figures(url, server="b") as (_, live, history):
        assert accepted(history, "a") == 7
        for span in ("hour", "day"):
            assert max(point.rates["accepted"] for point in await live.meters.history(span)) > 0


async def test_what_is_older_than_a_day_is_deleted(tmp_path: Path) -> None:
    async with figures(f"sqlite://{tmp_path}/jobs.db", server="a") as (pools, _, history):
        now = int(time.time())
        old, young = [MeterGain(now - hours * 3600, 60, {"accepted": 1}, []) for hours in (30, 20)]
        await history.write(old)
        await history.write(young)

        async def is_deleted() -> bool:
            await history.write(MeterGain(now, 60, {"accepted": 0}, []))
            return f"{old.at // 3600:07d}/a" not in await keys()

        async def keys() -> list[str]:
            return [record.key for record in await pools.registry.list_records(KIND)]

        await until(is_deleted, deadline_s=120)
        assert f"{young.at // 3600:07d}/a" in await keys()


def test_points_add_up_servers_and_divide_what_covers_several() -> None:
    minute = MeterGain(600, 60, {"accepted": 120}, [(0.1, 6), (1.0, 6)])
    points = rate_points({"a": [minute], "b": [MeterGain(600, 10, {"accepted": 5}, [])]}, since=0, width_s=10)
    assert [point.at for point in points] == [550, 560, 570, 580, 590, 600]
    assert [point.rates["accepted"] for point in points] == pytest.approx([2, 2, 2, 2, 2, 2.5])
    assert [point.p50 for point in points] == pytest.approx([0.1] * 6)
    assert all(0.9 < (point.p99 or 0) < 1.0 for point in points)  # between the edges 0.5 and 1
    [whole] = rate_points({"a": [minute]}, since=0, width_s=240)
    assert (whole.at, whole.rates["accepted"], whole.p50) == (720, 2, pytest.approx(0.1))
    assert rate_points({"a": [minute]}, since=600, width_s=10) == []


LABELS = ("default", *MAIL)


async def test_what_a_queue_did_outlives_the_server(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    async with figures(url, server="a") as (pools, live, _):
        engine = pools.engine("default")
        await until(lambda: live.meters.history("hour"))  # there is a sample to compare with
        await engine.push(MAIL, [NewJob(id=str(number), body=b"") for number in range(7)])
        for delivery in await engine.reserve([MAIL], limit=2, ttr_ms=60_000):
            await engine.ack([delivery.lease])

        async def is_kept() -> bool:
            return bool(await pools.registry.list_records("console-queues"))

        await until(is_kept, deadline_s=120)
        assert (await live.meters.queues.points(LABELS, "hour"))[-1].backlog == 5
        assert await live.meters.queues.points((*LABELS[:2], "idle"), "hour") == []
        assert live.meters.queues.backlog_before(LABELS) in (0, 5, 7)
        assert live.meters.queues.backlog_before((*LABELS[:2], "idle")) == 0

    async with figures(url, server="b") as (_, live, _):
        for span in ("hour", "day", "week"):
            found = await live.meters.queues.points(LABELS, span)
            assert max(point.rates.get("accepted", 0) for point in found) > 0
            assert any(point.p99 is not None and point.run_p99 is not None for point in found)
            assert next(point.backlog for point in reversed(found) if point.backlog is not None) in (0, 5)


async def test_what_a_task_did_outlives_the_server(tmp_path: Path) -> None:
    url, labels = f"sqlite://{tmp_path}/jobs.db", ("default", "default", "shop.send")
    async with figures(url, server="a") as (pools, live, _):
        engine = pools.engine("default")
        await until(lambda: live.meters.history("hour"))  # there is a sample to compare with
        await engine.push(MAIL, [NewJob(str(number), b'{"job":"shop.send"}') for number in range(3)])
        done, failed = await engine.reserve([MAIL], limit=2, ttr_ms=60_000)
        await engine.ack([done.lease])
        await engine.release(failed.lease, delay_ms=60_000, error="no")

        async def is_kept() -> bool:
            return bool(await pools.registry.list_records(TASKS_KIND))

        await until(is_kept, deadline_s=120)

    async with figures(url, server="b") as (_, live, _):
        for span in ("hour", "day", "week"):
            assert (await live.meters.tasks.sums(span))[labels].counts == {"finished": 1, "failed": 1}
            found = await live.meters.tasks.points(labels, span)
            assert any(point.run_p50 is not None for point in found)


def test_an_hour_of_a_queue_is_kept_as_one_gain() -> None:
    cover = [MeterGain(at, 600, {}, (), backlog=0) for at in (600, 1200, 1800)]
    busy = [MeterGain(1200, 600, {"accepted": 60}, [(0.1, 60)], [(0.5, 60)], 3)]
    [kept] = msgspec.json.decode(
        coarser(msgspec.json.encode({"": cover, "default/default/mail": busy})), type=dict[str, list[MeterGain]]
    )["default/default/mail"]
    # The queue was idle for two of the three steps, which count for its rate.
    assert (kept.at, kept.seconds, kept.counts, kept.backlog) == (1800, 1800, {"accepted": 60}, 0)
    assert (list(kept.lateness), list(kept.run)) == ([(0.1, 60)], [(0.5, 60)])


async def test_the_history_of_a_queue_is_drawn_and_its_highest_peaks_are_cut_off(
    boss: Visitor, client: duetime.Client, console_server: Served
) -> None:
    name = f"h{uuid.uuid4().hex[:8]}"
    client.queue(name).push("x")
    now = time.time() - 30
    store = await open_store(f"sqlite://{console_server.log.parent}/jobs.db")
    history = f'{{"default/default/{name}":[[{now},600,{{"finished":1234,"failed":7}},[],[[0.5,1241]]]]}}'
    await store.registry.put(QUEUES_KIND, f"{int(now // 3600):07d}/other", history.encode())
    await store.close()

    def page() -> str:
        return boss.get("queue", pool="default", namespace="default", queue=name, history="week").text

    await until(lambda: page().count("data-chart=") == 4, every_s=0.1)
    assert cut_peaks([[1.0] * 100, [2.0] * 10, [1_000.0]]) == {"top": 4.0, "peak": 1_000.0}
    assert cut_peaks([[1.0] * 100, [4.0]]) == cut_peaks([[1.0, 900.0]]) == cut_peaks([]) == {"top": 0, "peak": 0}


def test_a_backlog_that_grows_or_shrinks_is_told_from_one_that_wavers() -> None:
    assert [much_different(before, 100) for before in (None, 0, 79, 81, 100, 119, 126)] == [
        *(None, 0, 79),
        *(None, None, None),
        126,
    ]
    assert [much_different(before, 0) for before in (0, 5, 6)] == [None, None, 6]

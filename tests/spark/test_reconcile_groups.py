"""reconcile and task groups: after a store lost everything, the callback of a group runs once, when all is done."""

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import duetime
from duetime import group
from duetime.client import calls, connect
from duetime.model.clock import SystemClock
from duetime.model.errors import DuetimeError
from duetime.model.job import DAY_MS, Delivery, Event, NewJob
from duetime.model.names import Queue
from duetime.spark.audit.run import ComparedStore
from duetime.spark.audit.transform import SCAN, Scanned
from duetime.spark.lake.lake import Lake
from duetime.spark.lifecycle.transform import lifecycle
from duetime.spark.reconcile import joins
from duetime.spark.reconcile.run import run_reconcile
from duetime.spark.schemas import frame
from duetime.stores.finishes import Finish, Finished, Join, JoinCount, SeenJoin
from duetime.stores.open import open_store
from duetime.worker.daemon import work
from duetime.worker.options import PoolKind, WorkerOptions
from tests.plugins.redis_server import RedisServer
from tests.spark.frames import events, settled
from tests.spark.history import HOUR_MS, NAMESPACE, Node, Story

MAIL = Queue(NAMESPACE, "mail")
CALLBACK = "g~>then"
LIFE_MS = 31 * DAY_MS


def counting(url: str) -> list[JoinCount]:
    async def look() -> list[JoinCount]:
        store = await open_store(url)
        found = list(await store.joins(MAIL))
        await store.close()
        return found

    return asyncio.run(look())


def run_worker(url: str, journal: Path, ran: list[str], *, push: bool = False, **options: Any) -> None:
    """A worker of a program that has just started; it may push a group first."""
    with duetime.App(url, journal=str(journal)) as app:

        @app.task
        async def part(key: str) -> None:
            ran.append(key)

        @app.task(queue="reports")
        async def callback() -> None:
            ran.append("callback")

        if push:
            group(*[part.step(str(number)) for number in range(4)]).then(callback.step()).delay()
        queues = ("default", "reports")
        assert work(app, WorkerOptions(queues, PoolKind.ASYNCIO, 1, **options)) == 0


def test_the_callback_runs_once_after_the_store_was_wiped_twice(spark: SparkSession, tmp_path: Path) -> None:
    store, journal, ran = tmp_path / "store", tmp_path / "journal", list[str]()
    url, lake = f"sqlite://{store}/jobs.db", Lake(spark, str(tmp_path / "lake"))
    store.mkdir()
    run_worker(url, journal, ran, push=True, max_jobs=2)

    for left in (2, 1):
        assert len(ran) == 4 - left
        shutil.rmtree(store)
        store.mkdir()
        assert run_reconcile(lake, str(journal), ComparedStore(url, wait_s=0)).counts == {"pushed": left}
        run_worker(url, journal, ran, max_jobs=1)
    run_worker(url, journal, ran, stop_when_empty=True)
    assert ran == ["0", "1", "2", "3", "callback"]

    # Another run of it changes nothing.
    assert run_reconcile(lake, str(journal), ComparedStore(url, wait_s=0)).lost == 0
    run_worker(url, journal, ran, stop_when_empty=True)
    assert len(ran) == 5


def finish(client: duetime.Client, deliveries: Sequence[Delivery], of: int) -> list[Finished | DuetimeError | None]:
    join = Join("g~>join", of, [NewJob(CALLBACK, b"all")], LIFE_MS)
    return list(client.send(calls.finish(MAIL, [Finish(one.lease, join=join) for one in deliveries])))


def test_tasks_that_were_running_when_the_store_was_wiped_let_the_callback_run(
    spark: SparkSession, tmp_path: Path, start_redis: Callable[..., RedisServer]
) -> None:
    redis, journal = start_redis(), tmp_path / "journal"
    lake, compared = Lake(spark, str(tmp_path / "lake")), ComparedStore(redis.url)
    with connect(redis.url, namespace=NAMESPACE, journal=str(journal)) as client:
        client.queue("mail").bulk([NewJob(f"g~>{number}", b"") for number in range(3)])
        running = client.reserve(["mail"], limit=3)
        finish(client, running[:1], of=3)
        redis.kill()
        redis.start()
        assert finish(client, running[1:], of=3) == [None, None]

        # Nobody is left to finish last, so one of them is delivered again.
        assert run_reconcile(lake, str(journal), compared).counts == {"pushed": 1}
        [again] = client.reserve(["mail"], limit=3)
        assert again.lease.id in {one.lease.id for one in running[1:]}
        [last] = finish(client, [again], of=3)
        assert isinstance(last, Finished)
        assert [moved.id for moved in last.then] == [CALLBACK]
        [callback] = client.reserve(["mail"], limit=3)
        client.send(calls.ack(MAIL, [callback]))
        assert client.reserve(["mail"], limit=3) == []
    assert counting(redis.url) == []


@pytest.mark.parametrize("kind", ["sqlite", "http without journal"])
def test_counts_are_raised_in_a_store_and_through_a_server(
    spark: SparkSession, tmp_path: Path, kind: str, address_of: Callable[[str], str]
) -> None:
    url, journal, yesterday = address_of(kind), tmp_path / "hosts" / "journal", SystemClock().now_ms() - 48 * HOUR_MS
    node = Node(journal, "node-a")
    for number in range(2):
        seen = SeenJoin("g~>join", 3, CALLBACK, LIFE_MS, seen=number + 1)
        story = Story(node.write, f"g~>{number}", yesterday, yesterday).accepted().delivered()
        story.ended(Event.ACKED, join=seen)
    Story(node.write, "g~>2", yesterday, yesterday).accepted().delivered()
    node.close(yesterday + 1000)

    done = run_reconcile(Lake(spark, str(tmp_path / "lake")), str(journal), ComparedStore(url, wait_s=0))
    assert done.counts == {"pushed": 1}
    with connect(url, namespace=NAMESPACE) as client:
        [last] = finish(client, client.reserve(["mail"], limit=3), of=3)
    assert isinstance(last, Finished)
    assert (last.joined, [moved.id for moved in last.then]) == (3, [CALLBACK])


# --- small frames

NOW = 1_800_000_000_000
Told = Mapping[str, Any]


def acked(
    job_id: str, ago: int, *, of: int = 3, seen: int | None = None, life_ms: int = LIFE_MS, **fields: Any
) -> Told:
    """The entry of a finish; without `seen` it found the job gone."""
    ended = {"event": "acked", "ts": NOW - ago, "id": job_id, "attempt": 1, "reason": "" if seen else "repeated"}
    return {**ended, "join": (of, life_ms, seen), **fields}


def told(event: str, job_id: str, *, ts: int = 1, attempt: int = 0) -> Told:
    return {"event": event, "ts": ts, "id": job_id, "attempt": attempt}


ONE, TWO = acked("a", 9, seen=1), acked("b", 9, seen=2)
B, C = told("accepted", "b"), told("accepted", "c")
ALONE = acked("a", 9, of=1)
SHORT = 1000

JOINS: Mapping[str, tuple[Sequence[Told], tuple[Any, ...] | None]] = {
    "each job counts once": ([acked("a", 300, seen=1), acked("a", 200), acked("b", 100, seen=2)], (2, 100, None)),
    "another pool": ([ONE, {**TWO, "pool": "another"}], (1, 9, None)),
    "a plain ack": ([ONE, told("acked", "b", ts=NOW - 5, attempt=1)], (1, 9, None)),
    "whole": ([ONE, TWO, acked("c", 9, seen=3)], None),
    # The process that finished the last one died before it told, and perhaps its consumer, too.
    "whole, callback accepted": ([ONE, TWO, told("accepted", "then")], None),
    "whole, callback delivered": ([ONE, TWO, C, acked("c", 5), told("delivered", "then", attempt=1)], None),
    "found gone": ([ONE, B, acked("b", 5)], (2, 5, None)),
    "cancelled": ([ONE, B, told("cancelled", "b", ts=NOW - 7, attempt=1), acked("b", 5)], (1, 9, None)),
    "put back": ([ONE, B, acked("b", 5), told("accepted", "b", ts=NOW - 4, attempt=2)], (1, 9, None)),
    "held": ([ONE, acked("held", 99, seen=2)], (1, 9, None)),
    "held, acked after the scan met it": ([ONE, acked("held", 5, seen=2)], (2, 5, None)),
    "all done, some found gone": ([ONE, B, acked("b", 8), C, acked("c", 7)], (2, 7, "c")),
    "all done, of one": ([told("accepted", "a"), ALONE], (0, 9, "a")),
    "all done, counted by two stores": ([acked(name, 9, seen=1) for name in "abc"], None),
    "more than all": ([*[acked(name, 9, seen=1) for name in "abc"], told("accepted", "d"), acked("d", 9)], None),
    "ended": ([acked("a", SHORT, seen=1, life_ms=SHORT)], None),
    "began anew": ([acked("a", 1600, seen=1, life_ms=SHORT), acked("b", 600, seen=1, life_ms=SHORT)], (1, 600, None)),
    "went on": ([acked("a", 1599, seen=1, life_ms=SHORT), acked("b", 600, seen=2, life_ms=SHORT)], (2, 600, None)),
}
"""Entries of a join, and what comes of it: the count, how long ago the last finish was, the job that is put back."""


def row_of(name: str, entry: Told) -> Told:
    """The ids of a join begin with its name."""
    row = {**entry, "id": f"{name}~>{entry['id']}", "born": 1}
    if "join" in entry:
        of, life_ms, seen = entry["join"]
        row["join"] = (name, of, f"{name}~>then", life_ms, seen)
    return row


@pytest.fixture(scope="module")
def counts(spark: SparkSession) -> dict[str, tuple[Any, ...]]:
    """By the name of the join."""
    rows = [row_of(name, entry) for name, (entries, _) in JOINS.items() for entry in entries]
    held = frame(spark, [("n", "q", row["id"], 1, "ready") for row in rows if row["id"].endswith("~>held")], SCAN)
    scanned, entries = Scanned(held, NOW - 10, NOW, "default"), events(spark, *rows)
    jobs = settled(lifecycle(entries))
    finished = joins.under_way(joins.finishes(entries, scanned)).transform(joins.without_callback, jobs)
    counted = joins.counts(joins.done(finished, jobs, scanned), scanned).collect()
    return {row["name"]: (row["count"], row["left_ms"], row["again"] and row["again"]["id"]) for row in counted}


@pytest.mark.parametrize("name", JOINS)
def test_a_count_is_what_is_done_for_good(counts: dict[str, tuple[Any, ...]], name: str) -> None:
    entries, expected = JOINS[name]
    if expected is None:
        assert name not in counts
        return
    count, ago, again = expected
    life_ms = next(entry["join"][1] for entry in entries if "join" in entry)
    assert counts[name] == (count, life_ms - ago, again and f"{name}~>{again}")

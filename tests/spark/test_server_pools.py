"""audit and reconcile through a server of two pools: they are about the pool that the token names, and no other."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duetime.client import connect
from duetime.model.clock import SystemClock
from duetime.model.job import NewJob
from duetime.model.names import DEFAULT_POOL, Queue
from duetime.spark.audit.run import ComparedStore, run_audit
from duetime.spark.lake.lake import Lake
from duetime.spark.reconcile.run import run_reconcile
from duetime.spark.store_view import StoreView
from duetime.stores.base import Push
from duetime.stores.open import open_store
from tests.plugins.served import ServedProcess, StartServer
from tests.spark.conftest import jobs_in

FAST = "fast:any"
"""A server with --dev takes any secret; the part before the colon is the pool."""
QUEUE = Queue("crm", "recall")


class TwoPools:
    """A server with the pools `default` and `fast`, each on a file of its own, and one journal for both."""

    def __init__(self, folder: Path, start_server: StartServer) -> None:
        self.default, self.fast = (f"sqlite://{folder / name}.db" for name in ("default", "fast"))
        self.journal = folder / "journal"
        self._settings, self._start_server = folder / "two.toml", start_server
        self._settings.write_text(f'store = "{self.default}"\n[pool.fast]\nstore = "{self.fast}"\n')

    def start(self) -> ServedProcess:
        return self._start_server("--config", str(self._settings), DUETIME_JOURNAL=str(self.journal))


@pytest.fixture
def pools(tmp_path: Path, start_server: StartServer) -> TwoPools:
    return TwoPools(tmp_path, start_server)


def push_unseen(url: str, job: NewJob) -> None:
    """Straight into the store, as by a process that dies before it writes the journal."""

    async def work() -> None:
        store = await open_store(url)
        await store.push(QUEUE, [Push([job])])
        await store.close()

    asyncio.run(work())


def ids_in(url: str) -> list[str]:
    return [job.id for job in jobs_in(url, *QUEUE)]


def accept(server: ServedProcess, token: str | None, job: NewJob) -> None:
    with connect(server.api, namespace=QUEUE.namespace, token=token) as client:
        client.queue(QUEUE.name).bulk([job])


def test_a_living_job_of_another_pool_is_not_lost(spark: SparkSession, tmp_path: Path, pools: TwoPools) -> None:
    server, lake, journal = pools.start(), Lake(spark, str(tmp_path / "lake")), str(pools.journal)
    accept(server, FAST, NewJob("in-fast", b"body"))
    accept(server, None, NewJob("in-default", b"body"))
    audited = run_audit(lake, journal, ComparedStore(server.api))
    assert (audited.verdict, audited.found) == ("Sound", {})
    assert run_reconcile(lake, journal, ComparedStore(server.api)).counts == {}
    assert run_reconcile(lake, journal, ComparedStore(server.api, token=FAST)).counts == {}
    assert (ids_in(pools.default), ids_in(pools.fast)) == (["in-default"], ["in-fast"])


def test_a_job_that_was_adopted_through_a_server_stays_acked(
    spark: SparkSession, tmp_path: Path, pools: TwoPools
) -> None:
    """Its adoption and its ack are about the same pool. What is older than the journal is not adopted."""
    push_unseen(pools.fast, NewJob("from-before", b"body"))
    server = pools.start()
    push_unseen(pools.fast, NewJob("unanswered", b"body"))
    lake, compared = Lake(spark, str(tmp_path / "lake")), ComparedStore(server.api, token=FAST)
    assert run_reconcile(lake, str(pools.journal), compared).counts == {"adopted": 1}

    with connect(server.api, namespace=QUEUE.namespace, token=FAST) as client:
        deliveries = client.queue(QUEUE.name).reserve(limit=10)
        client.queue(QUEUE.name).ack(deliveries)
    assert sorted(one.lease.id for one in deliveries) == ["from-before", "unanswered"]
    done = run_reconcile(lake, str(pools.journal), compared)
    assert (done.lost, done.counts) == (0, {})
    assert ids_in(pools.fast) == []


def test_a_server_tells_the_pool_of_the_token_and_since_when_it_journals(pools: TwoPools) -> None:
    began = SystemClock().now_ms()
    server = pools.start()
    told: dict[str, int] = {}
    for token in (None, FAST):
        with closing(StoreView(server.api, token)) as view:
            told[view.journaling().pool] = view.journaling().since
    assert set(told) == {DEFAULT_POOL, "fast"}
    assert all(began <= since <= SystemClock().now_ms() for since in told.values())

"""Many hosts, one store: what each of them acked is not delivered again, and nothing is lost.

One host's journal is where the reconciles read it, one ships its segments late, one is killed for good; the store loses
everything in between. As long as a host's entries are missing, each reconcile stops with its name.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duetime.client import Client, connect
from duetime.journal.housekeeping import Shipper, close_dead_nodes
from duetime.journal.options import JournalOptions
from duetime.journal.registration import registered
from duetime.model.job import NewJob
from duetime.spark.audit.journal import JournalIncomplete
from duetime.spark.audit.run import ComparedStore
from duetime.spark.lake.lake import Lake
from duetime.spark.reconcile.run import Reconciled, run_reconcile
from duetime.stores.open import open_store
from tests.plugins.redis_server import RedisServer
from tests.plugins.served import ServedProcess, StartServer
from tests.plugins.until import until

QUEUE = "orders"
DEADLINE_S = 600
LIVE_ROUNDS = 30
"""Bounded, because on a slow machine each entry more makes the reconciles slower."""


def accept(client: Client, ids: range) -> list[str]:
    return [moved.id for moved in client.queue(QUEUE).bulk(NewJob(f"order-{number}", b"{}") for number in ids)]


def finish(client: Client, at_most: int) -> list[str]:
    """Deliver and ack; the ids of the jobs, each as often as it was delivered."""
    done: list[str] = []
    while len(done) < at_most:
        deliveries = client.queue(QUEUE).reserve(limit=min(500, at_most - len(done)))
        if not deliveries:
            break
        client.queue(QUEUE).ack(deliveries)
        done += [delivery.lease.id for delivery in deliveries]
    return done


async def all_are_known(url: str, instances: set[str]) -> None:
    """Return when the living nodes have told a store that was wiped which nodes there are."""
    store = await open_store(url)

    async def known() -> bool:
        return {node.rpartition("-")[0] for node in await registered(store)} >= instances

    try:
        await until(known, every_s=0.1, deadline_s=DEADLINE_S)
    finally:
        await store.close()


def stopped_by(lake: Lake, journal: Path, url: str) -> set[str]:
    """The hosts that a reconcile names when it stops."""
    with pytest.raises(JournalIncomplete) as stopped:
        run_reconcile(lake, str(journal), ComparedStore(url, wait_s=0))
    return {node.rpartition("-")[0] for node in stopped.value.fields["nodes"]}


def test_what_any_host_acked_is_not_delivered_again(
    spark: SparkSession, tmp_path: Path, start_redis: Callable[..., RedisServer], start_server: StartServer, scale: int
) -> None:
    count = 200 if scale == 1 else 5_000 * scale
    redis, shared = start_redis(), tmp_path / "shared"
    lake = Lake(spark, str(tmp_path / "lake"))
    servers: dict[str, ServedProcess] = {}
    with ExitStack() as clients:

        def serve(instance: str, journal: Path, **settings: str) -> Client:
            environment = {"DUETIME_INSTANCE": instance, "DUETIME_JOURNAL": str(journal), **settings}
            servers[instance] = start_server("--store", redis.url, **environment)
            return clients.enter_context(connect(servers[instance].api))

        killed = serve("killed", tmp_path / "killed", DUETIME_JOURNAL_SHIP_TO=str(shared))
        slow = serve("slow", tmp_path / "slow", DUETIME_JOURNAL_SHIP_TO=str(shared))
        # The host that starts last knows the others at once, and tells a store that was wiped about them.
        quick = serve("quick", shared)
        accepted = accept(quick, range(count // 2))
        acked = [id for client in (quick, slow, killed) for id in finish(client, count // 20)]
        servers["killed"].clean_up()
        redis.kill()
        redis.start()
        asyncio.run(all_are_known(redis.url, {"quick", "slow", "killed"}))
        accepted += accept(slow, range(count // 2, count))

        assert stopped_by(lake, shared, redis.url) >= {"slow", "killed"}
        assert servers["slow"].stop()[0] == 0
        # The disk of a host that is gone for good is read elsewhere.
        found = JournalOptions(tmp_path / "killed", ship_to=str(shared))
        assert len(close_dead_nodes(found.folder)) == 1
        Shipper(found, "").run_once()

        def reconcile() -> Reconciled:
            return run_reconcile(lake, str(shared), ComparedStore(redis.url, wait_s=DEADLINE_S))

        with ThreadPoolExecutor(2) as pool:
            runs = [pool.submit(reconcile) for _ in range(2)]
            for _ in range(LIVE_ROUNDS):
                accepted += accept(quick, range(len(accepted), len(accepted) + 5))
                acked += finish(quick, 5)
                if not wait(runs, timeout=0.5).not_done:
                    break
        assert all(run.result().is_repaired for run in runs)
        assert sum(run.result().counts.get("pushed", 0) for run in runs) == count // 2 - 3 * (count // 20)
        acked += finish(quick, len(accepted))
        assert sorted(acked) == sorted(accepted)

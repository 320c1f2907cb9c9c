"""Answers get lost, workers are killed, then the store is wiped: audit and reconcile lose nothing that was answered."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from pyspark.sql import SparkSession

from duetime.spark.audit.run import ComparedStore, read_findings, run_audit
from duetime.spark.lake.lake import Lake
from duetime.spark.reconcile.run import run_reconcile
from duetime.stores.base import get_all
from duetime.stores.redis.store import RedisStore
from tests.faults.answered_load import QUEUE, AnsweredLoad, Key, cut_replies, loaded
from tests.faults.losing_proxy import LosingProxy
from tests.plugins.redis_server import RedisServer
from tests.plugins.served import StartServer
from tests.plugins.until import until

JOBS = 60


async def work_under_faults(
    redis_server: RedisServer, start_server: StartServer, journal: Path, jobs: int
) -> AnsweredLoad:
    """Replies of Redis are cut, and one of two workers is killed."""
    async with LosingProxy(redis_server.port) as proxy:
        server = await asyncio.to_thread(
            start_server, "--workers", "2", DUETIME_STORE=f"{proxy.url}?timeout=2", DUETIME_JOURNAL=str(journal)
        )
        async with loaded(server, redis_server.url, jobs) as load:
            await until(lambda: len(load.pushed) > jobs // 4, deadline_s=200)
            os.kill(server.workers()[0], signal.SIGKILL)
            await cut_replies(proxy, load, jobs)
    return load


async def held(url: str, ids: set[str]) -> dict[Key, bytes]:
    store = await RedisStore.open(url)
    found = await get_all(store, QUEUE, sorted(ids))
    await store.close()
    return {(job.id, job.born): job.body for job in found if job}


@pytest.mark.store_kind("redis")
@pytest.mark.timeout(900)
def test_a_wiped_store_loses_nothing_that_was_answered(
    spark: SparkSession, start_redis: Callable[..., RedisServer], start_server: StartServer, tmp_path: Path, scale: int
) -> None:
    redis_server, journal = start_redis(), tmp_path / "journal"
    load = asyncio.run(work_under_faults(redis_server, start_server, journal, JOBS * scale))
    lake, compared = Lake(spark, str(tmp_path / "lake")), ComparedStore(redis_server.url)
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()

    done = run_reconcile(lake, str(journal), compared)
    assert done.is_repaired
    found = asyncio.run(held(redis_server.url, {job_id for job_id, _ in load.pushed}))
    # An ack by id may have finished the job that was pushed again under it: of these ids nothing is known.
    certain = {key: body for key, body in load.pushed.items() if key[0] not in load.acked_by_id}
    back = {key: body for key, body in found.items() if key[0] not in load.acked_by_id}
    assert back == {key: body for key, body in certain.items() if key not in load.acked}

    audited = run_audit(lake, str(journal), compared)
    assert [one for one in read_findings(lake, audited) if one["kind"] != "unanswered"] == []
    assert audited.total("lost") == 0

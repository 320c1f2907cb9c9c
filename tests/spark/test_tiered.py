"""The pipelines on a tiered pool: each row goes to its tier, and journal, audit and reconcile see one pool."""

import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import redis
from pyspark.sql import SparkSession

from duetime.client import connect
from duetime.model.job import DAY_MS
from duetime.spark import schedule
from duetime.spark.audit.run import ComparedStore, run_audit
from duetime.spark.lake.lake import Lake
from duetime.spark.reconcile.run import run_reconcile
from tests.plugins.redis_server import RedisServer
from tests.spark.conftest import jobs_in


def test_rows_go_to_their_tiers_and_a_wiped_hot_tier_is_filled_again(
    spark: SparkSession, tmp_path: Path, start_redis: Callable[..., RedisServer]
) -> None:
    hot, cold, journal = start_redis().url, f"sqlite://{tmp_path / 'cold.db'}", str(tmp_path / "journal")
    url = f"tiered:pool?hot={quote(hot)}&cold={quote(cold)}&horizon=2d"
    soon = time.time_ns() // 1_000_000 + DAY_MS
    rows = spark.range(0, 600, 1, 2).selectExpr(
        "concat('recall-', id) AS id", f"{soon}L + id + if(id % 3 = 0, 30L * {DAY_MS}, 0L) AS due_at", "'x' AS body"
    )
    lake = Lake(spark, str(tmp_path / "lake"))
    compared = ComparedStore(url)

    def in_tiers() -> list[int]:
        return [len(jobs_in(tier, "default", "recall")) for tier in (hot, cold)]

    def audited() -> tuple[bool, dict[str, int], int]:
        found = run_audit(lake, journal, compared)
        return found.is_sound, found.found, found.total("waiting")

    done = schedule(rows, url=url, queue="recall", batch="b1", lake=lake.folder, journal=journal)
    assert (done.accepted, done.kept, in_tiers()) == (600, 0, [400, 200])
    assert audited() == (True, {}, 600)

    with connect(url, journal=journal) as client:  # a job of cold, rescheduled, is promoted: still one job of the pool
        client.queue("recall").reschedule("recall-3", due_at=soon)
    with redis.Redis.from_url(hot) as direct:
        direct.flushall()
    assert audited() == (False, {"lost": 401}, 199)

    assert run_reconcile(lake, journal, compared).counts == {"pushed": 401}
    assert in_tiers() == [401, 199]
    assert audited() == (True, {}, 600)

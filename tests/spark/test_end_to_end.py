"""The promise, end to end: a store that loses everything loses no accepted job.

Jobs are accepted over HTTP by a real server with a journal, on a Redis without persistence that is killed and starts
empty in the middle. audit names exactly what is lost; after reconcile every job is delivered, and audit finds nothing.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from duetime.cli.program import app
from duetime.client import Client, connect
from duetime.model.errors import LeaseLost
from duetime.model.job import NewJob
from tests.plugins.redis_server import RedisServer
from tests.plugins.served import StartServer

QUEUE = "orders"


def pipeline(spark: SparkSession, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """The command in this process, on the session that is open; exit code and documents."""
    ran = CliRunner().invoke(app, ["pipeline", *arguments, "--json"])
    if ran.exception and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return ran.exit_code, [json.loads(line) for line in ran.stdout.splitlines()]


def accept(client: Client, ids: range) -> set[str]:
    jobs = [NewJob(f"order-{number}", b'{"order": %d}' % number, tries=3) for number in ids]
    return {moved.id for moved in client.queue(QUEUE).bulk(jobs)}


def finish(client: Client, at_most: int | None = None) -> set[str]:
    """Deliver and ack, everything or so many."""
    done: set[str] = set()
    while at_most is None or len(done) < at_most:
        deliveries = client.queue(QUEUE).reserve(limit=500 if at_most is None else min(500, at_most - len(done)))
        if not deliveries:
            break
        client.queue(QUEUE).ack(deliveries)
        done |= {delivery.lease.id for delivery in deliveries}
    return done


@pytest.mark.timeout(900)
def test_a_store_that_loses_everything_loses_no_job(
    spark: SparkSession, tmp_path: Path, start_redis: Callable[..., RedisServer], start_server: StartServer, scale: int
) -> None:
    count = 600 if scale == 1 else 5000 * scale
    redis = start_redis()
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    server = start_server("--store", redis.url, "--journal", str(journal))
    common = ("--journal", str(journal), "--lake", str(lake), "--grace", "0s")
    with connect(server.api) as client:
        first = accept(client, range(count // 2))
        acked = finish(client, count // 10)
        held = client.queue(QUEUE).reserve(limit=50)
        redis.kill()
        redis.start()
        second = accept(client, range(count // 2, count))
        lost = first - acked

        code, told = pipeline(spark, "audit", *common, "--url", server.api)
        assert code == 1
        findings = [one["finding"] for one in told if "finding" in one]
        assert {one["kind"] for one in findings} == {"lost"}
        assert {one["id"] for one in findings} == lost
        assert len(findings) == len(lost)
        assert told[-1]["law"]["accepted"] == count

        code, [done] = pipeline(spark, "reconcile", *common, "--url", redis.url)
        assert (code, done["counts"]) == (0, {"pushed": len(lost)})

        # A lease from before the loss is worth nothing.
        assert all(isinstance(answer, LeaseLost) for answer in client.queue(QUEUE).ack(held))
        assert finish(client) == lost | second

        code, told = pipeline(spark, "audit", *common, "--url", redis.url)
        assert (code, told[-1]["sound"], told[-1]["law"]["acked"]) == (0, True, count)
    assert server.stop()[0] == 0

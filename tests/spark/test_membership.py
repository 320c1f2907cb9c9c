"""The recall use case: a table that is kept in step for days, with kills and a wiped store."""

from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from pyspark.sql import SparkSession

from bench.membership import QUEUE, Pipelines, Story, consuming, keep_in_step
from duetime.spark.load.batch import Batch
from tests.plugins.redis_server import RedisServer
from tests.spark.conftest import jobs_in


class KilledHere(Pipelines):
    """Its kills leave what a killed process leaves, without a session of their own."""

    def killed_sync(self) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Batch, "finish", die)
            with pytest.raises(KeyboardInterrupt):
                self.sync()


def die(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_every_member_is_reminded_once_when_the_table_says(
    spark: SparkSession, tmp_path: Path, start_redis: Callable[..., RedisServer], scale: int
) -> None:
    server, story = start_redis(), Story(1000 * scale, 4, 20_000)
    pipelines = KilledHere(spark, tmp_path, server.url)
    with (
        redis.Redis.from_url(server.url) as direct,
        consuming(story, server.url, pipelines.journal) as lock,
    ):
        keep_in_step(story, pipelines, direct.flushall, lock, print)

    story.verify({job.id: job.due_at for job in jobs_in(server.url, "default", QUEUE)})
    assert len(story.delivered) > story.members * 0.05
    audited = pipelines.audit()
    assert (audited.is_sound, audited.found) == (True, {})

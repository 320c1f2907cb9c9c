"""A standalone cluster of real processes: an executor is killed in the middle of a load that is consumed meanwhile."""

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from duetime.client import calls, connect
from duetime.model.job import Moved
from duetime.model.names import Queue
from duetime.spark.session import find_java
from tests.plugins.redis_server import RedisServer
from tests.spark.cluster import Cluster

pytestmark = pytest.mark.timeout(900)
QUEUE = Queue("default", "load")
RATE = 4_000
"""Jobs a second: slower than they are consumed, so that the load is under way when a quarter of it was delivered."""


def answer(cluster: Cluster, driver: subprocess.Popen[str]) -> dict[str, int]:
    assert driver.stdout is not None
    line = driver.stdout.readline()
    assert line, cluster.complaint()
    return json.loads(line)


def test_a_killed_executor_loses_nothing_and_doubles_nothing(
    tmp_path: Path, start_redis: Callable[..., RedisServer], scale: int
) -> None:
    rows = 20_000 * scale
    url, lake = start_redis().url, str(tmp_path / "lake")
    loading = {"url": url, "queue": QUEUE.name, "batch": "load", "lake": lake, "max_jobs_per_second": RATE}
    delivered: Counter[str] = Counter()
    acked: Counter[str] = Counter()
    killed: int | None = None

    java_home = find_java().resolve().parent.parent
    with Cluster(tmp_path, java_home, workers=2) as cluster, connect(url) as client:
        driver = cluster.driver(partitions=4, rows=rows, schedule=loading)

        def consume(wait: str) -> int:
            found = client.reserve([QUEUE.name], limit=500, wait=wait)
            delivered.update(one.lease.id for one in found)
            moved = client.send(calls.ack(QUEUE, found)) if found else []
            acked.update(one.id for one in moved if isinstance(one, Moved))
            return len(found)

        # When a quarter of the load has been delivered and acked, an executor dies.
        while killed is None:
            assert driver.poll() is None, cluster.complaint()
            consume("1s")
            if sum(delivered.values()) >= rows // 4:
                assert sum(delivered.values()) < rows, "the load was over before anything was killed"
                killed = cluster.kill_an_executor()
        while not (Path(lake) / "batches" / "load" / "_manifest").exists():
            assert driver.poll() is None, cluster.complaint()
            consume("1s")
        first = answer(cluster, driver)
        while consume("0s"):
            pass

        # The same load again: from its manifest, and, as if that had never been written, with other partitions.
        assert driver.stdin is not None
        driver.stdin.write("3\n")
        driver.stdin.flush()
        same = answer(cluster, driver)
        (Path(lake) / "batches" / "load" / "_manifest").unlink()
        driver.stdin.write("7\n")
        driver.stdin.close()
        again = answer(cluster, driver)
        assert consume("0s") == 0
        assert driver.wait(240) == 0

    assert (first["rows"], first["accepted"]) == (rows, rows)
    # Steps of the task that was killed had been pushed, and were not pushed again.
    assert first["repeated"] > 0
    assert same == first
    assert (again["accepted"], again["repeated"]) == (rows, rows)
    assert delivered == acked == Counter({f"job-{index:07}": 1 for index in range(rows)})

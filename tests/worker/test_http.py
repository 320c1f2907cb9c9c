"""A worker that talks to a server instead of a store."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import duetime
from duetime.wire.payload import RESTARTS
from duetime.worker.shared_counters import count
from tests.plugins.serving import serving
from tests.plugins.until import until
from tests.worker.conftest import Start


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with serving(tmp_path, "--dev") as served:
        yield served.api


async def test_a_worker_on_a_server_works_as_on_a_store(start: Start, server: str) -> None:
    with duetime.connect(server) as client:
        queue = client.queue("default")
        worker = start("-c", "2", "--pool", "processes", at=server)
        await worker.until_noted("worker_starting")
        for key in range(20):
            queue.push({"job": "tests.worker.sample.plain", "data": {"key": str(key)}})
        boom = queue.push({"job": "tests.worker.sample.boom", "maxTries": 2}).id
        extended = queue.push({"job": "tests.worker.sample.extended"}).id

        await worker.until_noted("ran", 21)
        await worker.until_noted("failed")
        await worker.until_noted("processed", 21)
        await until(lambda: progress(client, extended) == 40)
        assert queue.get(boom).error.endswith("ValueError: no\n")
        client.send(count("default", RESTARTS, 1))
        assert worker.end() == (0, "restart_signal")


def progress(client: Any, job_id: str) -> int:
    return client.send(count("default", f"progress/default/{job_id}"))

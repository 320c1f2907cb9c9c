"""A worker that waits says why: the store, the queue's name, a pause; and what the first Ctrl-C does."""

import signal
from typing import Any

import pytest

from tests.plugins.until import until
from tests.worker.conftest import Start, Started


def says(worker: Started, word: str) -> bool:
    return word in worker.err.read_text()


@pytest.mark.parametrize("url", ["sqlite", "redis"], indirect=True)
async def test_a_worker_names_a_queue_that_gets_no_pushes(start: Start) -> None:
    worker = start("--queue", "maill")
    await until(lambda: says(worker, "queues_unused"))
    assert "maill" in worker.err.read_text()
    worker.signal(signal.SIGINT)
    await until(lambda: says(worker, "worker_stopping"))
    assert "a second Ctrl-C" in worker.err.read_text()
    assert worker.end() == (0, "interrupted")


@pytest.mark.parametrize("url", ["sqlite", "redis"], indirect=True)
async def test_a_paused_queue_is_named(start: Start, client: Any, sample: Any) -> None:
    sample.plain.delay("a")
    client.queue("default").pause()
    worker = start("--queue", "default")
    await until(lambda: says(worker, "queue_paused"))
    assert not says(worker, "queues_unused")
    client.queue("default").resume()
    await worker.until_noted("ran")
    worker.signal(signal.SIGINT)
    assert worker.end() == (0, "interrupted")


@pytest.mark.parametrize("url", ["memory:"])
async def test_a_memory_store_is_named(start: Start, url: str) -> None:
    worker = start("--once", "--sleep", "50ms")
    assert worker.end() == (0, "empty")
    assert says(worker, "memory_store")

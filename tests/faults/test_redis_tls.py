"""The Redis store over TLS, with and without a client certificate."""

import gc
import warnings
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest
import redis

from duetime.client import connect
from duetime.model.errors import InvalidSettings, StoreUnavailable
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Wake
from duetime.stores.redis.store import RedisStore

pytestmark = pytest.mark.store_kind("redis")

QUEUE = Queue("shop", "mail")


async def use(url: str) -> None:
    store = await RedisStore.open(url)
    try:
        async with aclosing(store.wakeups()) as wakes:
            assert await anext(wakes) == Wake()
            for number in range(20):
                await store.push(QUEUE, [Push([NewJob(f"{number}", b"x" * 100_000)])])
            assert (await anext(wakes)).queue == QUEUE
        [deliveries] = (await store.reserve(QUEUE, [Ask(20, 1000)])).deliveries
        assert len(deliveries) == 20
    finally:
        await store.close()


async def test_tls(tls_port: Callable[..., int], certificate: Path) -> None:
    await use(f"rediss://127.0.0.1:{tls_port('no')}/0?ca={certificate}")


async def test_tls_with_a_client_certificate(tls_port: Callable[..., int], certificate: Path) -> None:
    port = tls_port("yes")
    key = certificate.with_name("key.pem")

    await use(f"rediss://localhost:{port}/0?ca={certificate}&cert={certificate}&key={key}")
    with pytest.raises(StoreUnavailable):
        await RedisStore.open(f"rediss://localhost:{port}/0?ca={certificate}")


def test_a_program_leaves_no_connection_open(tls_port: Callable[..., int], certificate: Path) -> None:
    """Both sides of TLS take leave, which takes longer than a client's loop may live."""
    url = f"rediss://127.0.0.1:{tls_port('no')}/0?ca={certificate}"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(5):
            with connect(url) as client:
                client.queue("mail").push("x")
                client.reserve(["mail"])
                client.reserve(["mail"], wait="10ms")
        gc.collect()

    assert [str(one.message) for one in seen] == []


async def test_a_server_that_nobody_vouches_for(tls_port: Callable[..., int]) -> None:
    with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await RedisStore.open(f"rediss://127.0.0.1:{tls_port('no')}/0")


async def test_a_certificate_that_is_not_there() -> None:
    with pytest.raises(InvalidSettings, match="cannot read a certificate"):
        await RedisStore.open("rediss://127.0.0.1:1/0?ca=/no/such/file")


def test_a_connection_that_was_closed_while_idle_is_no_lost_answer(
    tls_port: Callable[..., int], certificate: Path
) -> None:
    """TLS sends data of its own on an idle connection, so something to read does not mean that it has ended."""
    url = f"rediss://127.0.0.1:{tls_port('no')}/0"
    with (
        redis.Redis.from_url(url, ssl_ca_certs=str(certificate)) as other,
        connect(f"{url}?ca={certificate}") as client,
    ):
        queue = client.queue("mail")
        for _ in range(3):
            queue.push("x")
            job = queue.pop()
            assert job is not None
            job.ack()
            other.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert queue.totals().running.acked == 3

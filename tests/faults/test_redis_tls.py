"""The Redis store over TLS, with and without a client certificate."""

import shutil
import subprocess
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from duetime.errors import InvalidSettings, StoreUnavailable
from duetime.job import NewJob
from duetime.names import Queue
from duetime.stores.base import Ask, Push, Wake
from duetime.stores.redis.store import RedisStore
from tests.plugins.ci import missing_service
from tests.plugins.ports import find_free_port
from tests.plugins.redis_server import RedisServer

pytestmark = pytest.mark.store_kind("redis")

QUEUE = Queue("shop", "mail")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost that signs itself, with its key beside it."""
    program = shutil.which("openssl")
    if program is None:
        missing_service("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run(
        [*command, "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return folder / "cert.pem"


@pytest.fixture
def tls_port(start_redis: Callable[..., RedisServer], certificate: Path) -> Callable[..., int]:
    def start(clients: str) -> int:
        port = find_free_port()
        start_redis(
            tls_port=port,
            tls_cert_file=str(certificate),
            tls_key_file=str(certificate.with_name("key.pem")),
            tls_ca_cert_file=str(certificate),
            tls_auth_clients=clients,
        )
        return port

    return start


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


async def test_a_server_that_nobody_vouches_for(tls_port: Callable[..., int]) -> None:
    with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await RedisStore.open(f"rediss://127.0.0.1:{tls_port('no')}/0")


async def test_a_certificate_that_is_not_there() -> None:
    with pytest.raises(InvalidSettings, match="cannot be read"):
        await RedisStore.open("rediss://127.0.0.1:1/0?ca=/no/such/file")

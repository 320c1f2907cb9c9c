"""Store URLs of the Redis store, and whom its Sentinels are asked for."""

import asyncio
from typing import Any

import pytest

from duetime.model.errors import InvalidSettings
from duetime.model.names import Queue
from duetime.stores.redis import connect as redis_connect
from duetime.stores.redis import keys
from duetime.stores.redis.connect import Address, Sentinel, connect, parse_address
from duetime.stores.redis.pipe import pack


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://", Address("redis", (("localhost", 6379),))),
        ("redis://host", Address("redis", (("host", 6379),))),
        ("redis://host:1/3", Address("redis", (("host", 1),), db=3)),
        ("redis://[::1]:7/", Address("redis", (("::1", 7),))),
        ("redis://[::1]", Address("redis", (("::1", 6379),))),
        ("redis://:p%40ss@host", Address("redis", (("host", 6379),), password="p@ss")),
        ("rediss://me:pw@host", Address("rediss", (("host", 6379),), username="me", password="pw")),
        (
            "redis+sentinel://:pw@a,b:2/main/4?timeout=1",
            Address(
                "redis+sentinel",
                (("a", 26379), ("b", 2)),
                password="pw",
                service="main",
                db=4,
                options=(("timeout", "1"),),
            ),
        ),
        ("redis+cluster://a:1,b:2", Address("redis+cluster", (("a", 1), ("b", 2)))),
    ],
)
def test_urls(url: str, address: Address) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "redis://host:port",
        "redis://host/name",
        "redis://host/0/1",
        "redis://host?color=red",
        "redis://host?timeout=soon",
        "redis://host?connections=2",
        "redis+sentinel://host",
        "redis+cluster://host/1",
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(InvalidSettings):
        connect(url)


@pytest.mark.parametrize("password", ["op/en", "op?en", "op#en", "1/en", "op?en=1", "o@p/en"])
def test_a_password_that_is_not_encoded_is_not_shown(password: str) -> None:
    with pytest.raises(InvalidSettings, match="percent-encoded") as raised:
        connect(f"redis://user:{password}@host:6379/0")

    assert "op" not in raised.value.message
    assert "en@" not in raised.value.message


def test_a_file_may_have_any_name() -> None:
    assert parse_address("rediss://host?ca=/etc/me@home.pem").option("ca") == "/etc/me@home.pem"


def test_tls_is_an_option_where_the_scheme_cannot_say_it() -> None:
    assert parse_address("rediss://host").is_tls
    assert parse_address("redis+cluster://host?tls=1").is_tls
    assert not parse_address("redis://host").is_tls


def test_the_partition_of_a_queue_never_changes() -> None:
    assert keys.prefix(Queue("shop", "mail")) == "dt:{60}:shop/mail"
    assert keys.companion("dt:{60}:shop/mail") == "dt:{60}:queues" == keys.AGENDAS[60]
    partitions = {keys.prefix(Queue("shop", f"queue-{number}"))[:7] for number in range(2000)}
    assert len(partitions) == keys.PARTITIONS


def test_commands_are_packed_as_redis_reads_them() -> None:
    long = b"x" * 5000
    assert (
        pack(("GET", "é", 12, b"\r\n", b""))
        == b"*5\r\n$3\r\nGET\r\n$2\r\n\xc3\xa9\r\n$2\r\n12\r\n$2\r\n\r\n\r\n$0\r\n\r\n"
    )
    assert pack((long,)) == b"*1\r\n$5000\r\n" + long + b"\r\n"


class FakeNode:
    """A Redis, or a Sentinel that names one until it `is_silent`; then it keeps every question waiting."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.is_silent = False
        self.waiting = 0

    async def run(self, packed: bytes, answers: int = 1) -> list[Any]:
        if self.is_silent:
            self.waiting += 1
            await asyncio.Event().wait()
        return [[b"primary", b"6379"]]

    async def close(self) -> None: ...


class FakeMaker:
    def __init__(self) -> None:
        self.made: list[FakeNode] = []

    def make(self, host: str, port: int) -> FakeNode:
        self.made.append(FakeNode(host, port))
        return self.made[-1]


async def test_sentinels_that_go_silent_hold_up_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call that asked waited for all Sentinels, and for the calls that had asked before it."""
    monkeypatch.setattr(redis_connect, "FOLLOW_S", 0.0)
    asker: Any = FakeMaker()
    maker: Any = FakeMaker()
    topology = Sentinel(parse_address("redis+sentinel://a,b/main"), maker, asker)
    primary = await topology.any_node()
    for sentinel in asker.made:
        sentinel.is_silent = True

    async with asyncio.timeout(10):
        for _ in range(5):
            await asyncio.sleep(redis_connect.RENEW_PAUSE_S)  # an answer is not asked for again before that
            assert await topology.any_node() is primary
        await topology.close()

    assert sum(sentinel.waiting for sentinel in asker.made) == 1

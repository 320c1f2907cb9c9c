"""Store URLs of the Redis store."""

import pytest

from duetime.model.errors import InvalidSettings
from duetime.model.names import Queue
from duetime.stores.redis import keys
from duetime.stores.redis.connect import Address, connect, parse_address
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

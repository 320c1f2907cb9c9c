"""Whom a trusted proxy speaks for."""

import pytest

from duetime.http.proxies import read_proxies
from duetime.model.errors import InvalidSettings

PEER = ("10.0.0.1", 5)


@pytest.mark.parametrize(
    ("values", "client"),
    [
        ([], "10.0.0.1"),
        ([b"203.0.113.9"], "203.0.113.9"),
        ([b"203.0.113.9:4711"], "203.0.113.9"),
        ([b"[2001:db8::1]:80"], "2001:db8::1"),
        ([b"::ffff:203.0.113.9"], "203.0.113.9"),
        ([b"6.6.6.6, 203.0.113.9, 10.9.9.9"], "203.0.113.9"),
        ([b"6.6.6.6, 203.0.113.9", b"10.9.9.9"], "203.0.113.9"),
        ([b"10.1.1.1, 10.2.2.2"], "10.1.1.1"),
        ([b"203.0.113.9, unknown, 10.2.2.2"], "10.2.2.2"),
        ([b"unknown"], "10.0.0.1"),
        ([b"6.6.6.6," * 1000 + b"203.0.113.9"], "203.0.113.9"),
    ],
)
def test_the_first_address_from_the_end_that_is_no_proxy(values: list[bytes], client: str) -> None:
    proxies = read_proxies("10.0.0.0/8")
    assert proxies is not None
    assert proxies.trusts(PEER)
    found = proxies.client_of([(b"host", b"x"), *((b"x-forwarded-for", value) for value in values)], PEER)
    assert found is not None
    assert found[0] == client


def test_the_scheme_that_the_client_used() -> None:
    proxies = read_proxies("10.0.0.0/8")
    assert proxies is not None
    assert proxies.scheme_of([(b"host", b"x")]) == "http"
    assert proxies.scheme_of([(b"x-forwarded-proto", b"https")]) == "https"
    assert proxies.scheme_of([(b"x-forwarded-proto", b"gopher")]) == "http"


def test_trusted_proxies() -> None:
    assert read_proxies(" ") is None
    proxies = read_proxies("127.0.0.1, ::1 unix")
    assert proxies is not None
    assert [proxies.trusts(peer) for peer in (("127.0.0.1", 1), ("::1", 1), None)] == [True] * 3
    assert not proxies.trusts(("127.0.0.2", 1))
    with pytest.raises(InvalidSettings, match="trusted_proxies"):
        read_proxies("proxy.example")

"""What a mysql:// address says, and which ones are refused."""

import ssl

import pytest

from duetime.model.errors import InvalidSettings
from duetime.stores.mysql.connection import MysqlAddress


def test_a_url_has_user_host_and_table_prefix() -> None:
    address = MysqlAddress.parse("mysql://me:p%40ss%C3%A9@db:3307/app?prefix=b_&connections=3")
    options = address.options
    assert (options["host"], options["port"], options["user"]) == ("db", 3307, "me")
    assert options["password"].decode() == "p@ssé"
    assert (address.database, address.prefix, address.connections) == ("app", "b_", 3)


@pytest.mark.parametrize(
    ("query", "mode", "checks_name"),
    [
        ("ssl_mode=required", ssl.CERT_NONE, False),
        ("ssl-mode=REQUIRED", ssl.CERT_NONE, False),
        ("ssl_mode=verify_ca", ssl.CERT_REQUIRED, False),
        ("ssl_mode=verify_identity", ssl.CERT_REQUIRED, True),
    ],
)
def test_tls_modes(query: str, mode: ssl.VerifyMode, checks_name: bool) -> None:
    context = MysqlAddress.parse(f"mysql://db/app?{query}").options["ssl"]
    assert (context.verify_mode, context.check_hostname) == (mode, checks_name)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://db/app?prefix=a-b",
        "mysql://db/app?prefix=x%60",
        "mysql://db/app?connections=none",
        "mysql://db/app?no_such_option=1",
        "mysql://db/app?ssl_mode=perhaps",
        "mysql://db/app?ssl_ca=/no/such/file",
        "mysql://db:port/app",
        "mysql://db",
    ],
)
def test_an_address_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(InvalidSettings):
        MysqlAddress.parse(url)

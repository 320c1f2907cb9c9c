"""Settings: precedence, what is refused and how, what is never shown."""

from datetime import timedelta
from typing import Any

import pytest

from duetime.model.errors import InvalidSettings
from duetime.model.job import MAX_BODY
from duetime.model.settings import (
    FIELDS,
    SettingKind,
    Settings,
    is_loopback,
    load,
    mask,
    parse_file,
    row,
    shown,
    variable,
)
from tests.plugins.passwords import hashed

HASH = hashed("pa:ss")


def settled(file: str = "", /, *, environment: dict[str, str] | None = None, **flags: Any) -> Settings:
    return load(flags=flags, environment=environment or {}, file=parse_file(file))


# --- precedence


def test_the_defaults_are_those_of_the_table() -> None:
    settings = settled()
    assert settings.store == "sqlite:duetime-data/jobs.db"
    assert (settings.host, settings.port) == ("127.0.0.1", 7777)
    assert (settings.admin_host, settings.admin_port) == ("127.0.0.1", 7778)
    assert settings.max_body == MAX_BODY
    assert settings.lmstfy_ttl == timedelta(seconds=86_400)
    assert settings.lmstfy_ttr == timedelta(seconds=120)
    assert (settings.lmstfy_tries, settings.lmstfy_delay, settings.lmstfy_timeout) == (1, timedelta(0), timedelta(0))
    assert settings.pools == {"default": settings.store}
    assert settings.registry_store == ""
    assert {settings.sources[name] for name in FIELDS} == {"default"}


def test_flag_beats_environment_beats_file_beats_default() -> None:
    file = "port = 1"
    environment = {"DUETIME_PORT": "2"}
    assert settled().port == 7777
    assert settled(file).port == 1
    assert settled(file, environment=environment).port == 2
    assert settled(file, environment=environment, port=3).port == 3
    assert settled(file, environment=environment, port=None).port == 2


def test_each_value_remembers_where_it_came_from() -> None:
    settings = settled("log_level = 'debug'", environment={"DUETIME_ADMIN_PORT": "8"}, port=9)
    assert settings.sources["port"] == "--port"
    assert settings.sources["admin_port"] == "DUETIME_ADMIN_PORT"
    assert settings.sources["log_level"] == "log_level in duetime.toml"
    assert settings.sources["store"] == "default"


def test_a_value_in_the_file_may_equal_the_default_and_is_still_from_the_file() -> None:
    assert settled("port = 7777").sources["port"] == "port in duetime.toml"


# --- what people write


@pytest.mark.parametrize(
    ("text", "seconds"), [("'30s'", 30), ("90", 90), ("1.5", 1.5), ("'1h30m'", 5400), ("'250ms'", 0.25)]
)
def test_durations(text: str, seconds: float) -> None:
    assert settled(f"drain_timeout = {text}").drain_timeout == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "size"), [("'1MiB'", 1_048_576), ("'64 kib'", 65_536), ("'2MB'", 2_000_000), ("4096", 4096), ("'10b'", 10)]
)
def test_sizes(text: str, size: int) -> None:
    assert settled(f"max_body = {text}").max_body == size


@pytest.mark.parametrize(("text", "on"), [("1", True), ("yes", True), ("TRUE", True), ("off", False), ("", False)])
def test_switches_in_the_environment(text: str, on: bool) -> None:
    assert settled(environment={"DUETIME_DEV": text}).dev is on


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("port = 'x'", "port in duetime.toml must be a port (0 to 65535), got 'x'"),
        ("port = 65536", "port in duetime.toml must be a port (0 to 65535), got 65536"),
        ("tcp_port = 70000", "tcp_port in duetime.toml must be a port (0 to 65535), got 70000"),
        ("ouqiang_port = 70000", "ouqiang_port in duetime.toml must be a port (0 to 65535), got 70000"),
        ("port = true", "port in duetime.toml must be a port (0 to 65535), got True"),
        ("lmstfy_tries = -1", "lmstfy_tries in duetime.toml must be a whole number of at least 0, got -1"),
        ("max_body = '1 MiX'", "max_body in duetime.toml must be a size (1048576, '64KiB', '1MiB'), got '1 MiX'"),
        (
            "drain_timeout = 'soon'",
            "drain_timeout in duetime.toml must be a duration (90, '30s', '5m', '1h30m'), got 'soon'",
        ),
        ("dev = 'maybe'", "dev in duetime.toml must be true or false, got 'maybe'"),
        ("host = 5", "host in duetime.toml must be a text, got 5"),
        ("log_format = 'xml'", "log_format in duetime.toml must be one of console, json, got 'xml'"),
    ],
)
def test_a_wrong_value_names_its_place_and_what_would_be_right(file: str, message: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        settled(file)
    assert refused.value.message == message


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(InvalidSettings, match=r"DUETIME_PORT must be a port"):
        settled(environment={"DUETIME_PORT": "x"})


def test_a_file_that_is_not_toml_is_named_with_the_line() -> None:
    with pytest.raises(InvalidSettings, match=r"other\.toml must be valid TOML: .*line 2"):
        parse_file("port = 1\nport 2", "other.toml")


# --- what is unknown


@pytest.mark.parametrize(
    ("key", "nearest"), [("prot", "port"), ("admin-port", "admin_port"), ("stroe", "store"), ("pools", "pool")]
)
def test_an_unknown_key_names_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(
        InvalidSettings, match=f"unknown setting '{key}' in duetime.toml; the nearest known is '{nearest}'"
    ):
        settled(f"{key} = 1")


def test_an_unknown_variable_names_the_nearest() -> None:
    with pytest.raises(
        InvalidSettings, match="unknown environment variable DUETIME_PROT; the nearest known is DUETIME_PORT"
    ):
        settled(environment={"DUETIME_PROT": "1"})


def test_variables_of_other_commands_and_of_the_tests_are_not_settings() -> None:
    others = {"DUETIME_URL": "x", "DUETIME_TOKEN": "x", "DUETIME_CONFIG": "x", "DUETIME_TEST_SCALE": "1", "PATH": "x"}
    assert settled(environment=others) == settled()


# --- pools and the registry


def test_pools_are_tables_and_the_default_comes_from_store() -> None:
    settings = settled("store = 'memory:'\n[pool.big]\nstore = 'redis://big'\n[registry]\nstore = 'redis://big/1'")
    assert settings.pools == {"default": "memory:", "big": "redis://big"}
    assert settings.registry_store == "redis://big/1"
    assert settings.sources["pool.big"] == "[pool.big] in duetime.toml"
    assert settings.sources["pool.default"] == "store in duetime.toml"


def test_a_pool_may_be_a_group_of_stores() -> None:
    settings = settled("[pool.wide]\nstores = { a = 'redis://:pw@one/0?x=1&y=2', b = 'memory:' }\ndrain = ['b']")
    assert settings.pools["wide"] == "group:wide?a=redis://:pw@one/0%3Fx%3D1%26y%3D2&b=memory:&drain=b"
    assert "pw" not in mask(settings.pools["wide"])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("stores = {}", "must have stores ="),
        ("stores = 'redis://a'", "must have stores ="),
        ("stores = { a = 'memory:' }\ndrain = 'a'", "drain must be a list"),
        ("stores = { a = 'memory:' }\ndrain = ['z']", "'z' cannot be the name of a store"),
        ("stores = { 'a b' = 'memory:' }", "'a b' cannot be the name of a store"),
        ("stores = { drain = 'memory:' }", "'drain' cannot be the name of a store"),
        ("stores = { a = 'memory:' }\nstore = 'memory:'", "unknown setting 'store'"),
    ],
)
def test_a_group_that_makes_no_sense_is_refused(table: str, message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        settled(f"[pool.wide]\n{table}")


def test_a_pool_may_have_two_tiers() -> None:
    settings = settled(
        "[pool.deep]\nhot = 'redis://:pw@one/0'\ncold = 'postgresql://two/jobs?schema=x'\nhorizon = '2d'"
    )
    assert settings.pools["deep"] == (
        "tiered:deep?hot=redis://:pw@one/0&cold=postgresql://two/jobs%3Fschema%3Dx&horizon=2d&spill=false"
    )
    assert "pw" not in mask(settings.pools["deep"])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("hot = 'memory:'", "must have cold = URL"),
        ("hot = 'memory:'\ncold = 1", "must have cold = URL"),
        ("hot = 'memory:'\ncold = 'memory:'\nhorizon = 2", "horizon must be a duration"),
        ("hot = 'memory:'\ncold = 'memory:'\nspill = 'yes'", "spill must be true or false"),
        ("hot = 'memory:'\ncold = 'memory:'\nstore = 'memory:'", "unknown setting 'store'"),
    ],
)
def test_tiers_that_make_no_sense_are_refused(table: str, message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        settled(f"[pool.deep]\n{table}")


def test_the_default_pool_may_be_written_as_a_table_and_a_flag_beats_it() -> None:
    file = "[pool.default]\nstore = 'memory:'"
    assert settled(file).store == settled(file).pools["default"] == "memory:"
    assert settled(file).sources["store"] == "[pool.default] in duetime.toml"
    assert settled(file, store="redis://r").pools == {"default": "redis://r"}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("store = 'memory:'\n[pool.default]\nstore = 'memory:'", "cannot be used together; remove one of them"),
        (
            "[pool.a]\nurl = 'memory:'",
            r"unknown setting 'url' in \[pool.a\] in duetime.toml; the nearest known is 'store'",
        ),
        ("[pool.a]", r"\[pool.a\] in duetime.toml must have store = URL"),
        ("[pool.'a b']\nstore = 'memory:'", "pool name must contain only ASCII letters"),
        ("pool = 'memory:'", "must be a table"),
        ("[pool]\na = 'memory:'", "must be a table"),
        ("[registry]\nstore = 5", r"\[registry\] in duetime.toml must have store = URL"),
    ],
)
def test_wrong_pools_are_refused(file: str, message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        settled(file)


# --- who can reach it


def test_dev_listens_on_loopback() -> None:
    assert settled(dev=True).host == "127.0.0.1"
    assert settled("host = '::1'", dev=True).host == "::1"
    with pytest.raises(InvalidSettings, match="must listen on loopback"):
        settled("host = '0.0.0.0'", dev=True)


def test_the_admin_port_stays_on_loopback() -> None:
    assert settled("admin_host = 'localhost'").admin_host == "localhost"
    with pytest.raises(InvalidSettings, match="must be loopback while there are no"):
        settled("admin_host = '0.0.0.0'")
    assert settled(f"admin_host = '0.0.0.0'\n[accounts]\nann = '{HASH}'").admin_host == "0.0.0.0"


def test_accounts() -> None:
    settings = settled(f"admin_protect_all = true\n[accounts]\nann = '{HASH}'")
    assert settings.accounts == {"ann": HASH}
    assert HASH not in repr(settings)
    for text, message in [
        ("accounts = 'ann'", "must be a table"),
        ("[accounts]\nann = ''", "duetime user hash"),
        ("[accounts]\nann = 5", "duetime user hash"),
        ("[accounts]\nann = 'the pass'", "duetime user hash"),
        ("[accounts]\nann = '$argon2id$the pass'", "duetime user hash"),
        ("[accounts]\n'a:b' = 'pass'", "or contain a colon"),
        ("admin_protect_all = true", "admin_protect_all needs \\[accounts\\]"),
    ]:
        with pytest.raises(InvalidSettings, match=message) as caught:
            settled(text)
        assert "pass'" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a.b", False)],
)
def test_loopback(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local


# --- what is shown


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://user:secret@host:6379/0", "redis://user:***@host:6379/0"),
        ("redis://:secret@host", "redis://:***@host"),
        ("redis://:se/cr@et@host", "redis://:***@host"),
        (
            "redis+sentinel://:s@a,b/name?sentinel_password=t&db=1",
            "redis+sentinel://:***@a,b/name?sentinel_password=***&db=1",
        ),
        ("mysql://user@host/db", "mysql://user@host/db"),
        ("sqlite:///var/lib/jobs.db", "sqlite:///var/lib/jobs.db"),
        ("cannot reach 'redis://u:p@h': refused", "cannot reach 'redis://u:***@h': refused"),
        ("slack://T1JJ3T3L2/A1BRTD4JD/hush/#ops", "slack://***"),
        ("no answer from 'tgram://123:hush/99' today", "no answer from 'tgram://***' today"),
        ("https://h/x?to=discord://1/hush", "https://h/x?to=discord://***"),
        ("https://h/x?api_key=a&sig=b&pwd=c&design=d", "https://h/x?api_key=***&sig=***&pwd=***&design=d"),
        ("https://h/x?%74oken=a", "https://h/x?%74oken=***"),
        ("group:w?a=redis://h/0%3Fpassword%3Dhush%26db%3D1", "group:w?a=redis://h/0%3Fpassword%3D***%26db%3D1"),
    ],
)
def test_passwords_in_urls_are_masked(url: str, masked: str) -> None:
    assert mask(url) == masked


def test_values_are_shown_as_people_write_them() -> None:
    settings = settled("store = 'redis://:secret@h'\nmax_body = 1500\ndrain_timeout = 1.5")
    assert shown(settings, "store") == "redis://:***@h"
    assert shown(settings, "max_body") == "1500"
    assert shown(settings, "drain_timeout") == "1500ms"
    assert shown(settled(), "max_body") == "1MiB"
    assert shown(settled(), "lmstfy_ttl") == "1d"
    assert shown(settled(), "lmstfy_delay") == "0s"
    assert shown(settled(), "dev") == "false"
    assert shown(settled(), "port") == "7777"


@pytest.mark.parametrize("name", FIELDS)
def test_every_row_can_be_shown_and_read_back(name: str) -> None:
    text = shown(settled(), name)
    read = load(flags={}, environment={variable(name): text}, file={})
    assert getattr(read, name) == getattr(settled(), name)


def test_secrets_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row("journal"), "secret", True)
    assert shown(settled("journal = 'hush'"), "journal") == "***"
    monkeypatch.setattr(row("journal"), "kind", SettingKind.NUMBER)
    with pytest.raises(InvalidSettings) as refused:
        settled("journal = 'hush'")
    assert "hush" not in refused.value.message


@pytest.mark.parametrize("protocol", ["tcp", "ouqiang"])
def test_a_protocol_without_a_token_stays_on_loopback(protocol: str) -> None:
    with pytest.raises(InvalidSettings, match=f"{protocol}_host must be loopback"):
        settled(f"{protocol}_enabled = true\n{protocol}_host = '0.0.0.0'")
    settings = settled(f"{protocol}_enabled = true\n{protocol}_host = '0.0.0.0'\n{protocol}_token = 'secret'")
    assert shown(settings, f"{protocol}_token") != "secret"
    settled(f"{protocol}_host = '0.0.0.0'")

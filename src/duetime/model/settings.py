"""The settings of a server: one table that describes them, and how each gets its value.

Each field of `Settings` is a row: its type, default, help, and whether it is secret or has a flag. A new setting is a
new field; the environment variable (`DUETIME_<NAME>`), the key in `duetime.toml` and `duetime config` follow from it.
A flag wins over the environment, the environment over the file, the file over the default. An unknown key or variable
is an error that names the nearest known one. Pure functions: the caller reads the file and the environment and passes
them in.

    settings = load(flags={"port": 8080}, environment=os.environ, file=parse_file(text))
"""

# ruff: noqa: RUF009  # a row's default is immutable: text, a number, a timedelta
import re
import tomllib
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any

from duetime.model.clock import duration_ms
from duetime.model.errors import InvalidSettings, InvalidTime
from duetime.model.masking import MASK, mask
from duetime.model.names import DEFAULT_NAMESPACE, DEFAULT_POOL
from duetime.model.settings_file import read_accounts, read_pools, read_registry

PREFIX = "DUETIME_"
FILE = "duetime.toml"
CONFIG_VARIABLE = "DUETIME_CONFIG"
"""The variable with the path of the settings file, if that is not `duetime.toml` in the current folder."""
OTHER_VARIABLES = (
    "DUETIME_CONFIG",
    "DUETIME_URL",
    "DUETIME_ADMIN_URL",
    "DUETIME_NAMESPACE",
    "DUETIME_TOKEN",
    "DUETIME_MAIL_PASSWORD",
    "DUETIME_SKIP_SERVICES",
)
"""Variables that other parts of Duetime read; they are no settings of the server. DUETIME_TEST_* are allowed, too."""

DEFAULT_STORE = "sqlite:duetime-data/jobs.db"

_SIZE = re.compile(r"(\d+)\s*([KMG]i?B|B|)", re.IGNORECASE | re.ASCII)
_SIZE_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


class SettingKind(StrEnum):
    """The type of a setting; the value is its word in messages and docs."""

    TEXT = "text"
    NUMBER = "number"
    SWITCH = "true or false"
    PORT = "port"
    DURATION = "duration"
    SIZE = "size"


def _read_text(given: object) -> str:
    if not isinstance(given, str):
        raise ValueError
    return given


def _read_number(given: object) -> int:
    number = int(given) if isinstance(given, str) else given
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError
    return number


def _read_switch(given: object) -> bool:
    if isinstance(given, bool):
        return given
    if isinstance(given, str):
        word = given.strip().lower()
        if word in ("1", "true", "yes", "on"):
            return True
        if word in ("0", "false", "no", "off", ""):
            return False
    raise ValueError


def _read_port(given: object) -> int:
    port = _read_number(given)
    if not 0 <= port <= 65_535:
        raise ValueError
    return port


def _read_duration(given: object) -> timedelta:
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise ValueError
    return timedelta(milliseconds=duration_ms(given))


def read_size(given: object) -> int:
    """Bytes, from a number or `64KiB`. Raises ValueError."""
    match = _SIZE.fullmatch(str(given).strip()) if isinstance(given, int | str) else None
    if match is None or isinstance(given, bool):
        raise ValueError
    return int(match[1]) * _SIZE_UNITS[match[2].lower()]


_READERS = {
    SettingKind.TEXT: _read_text,
    SettingKind.NUMBER: _read_number,
    SettingKind.SWITCH: _read_switch,
    SettingKind.PORT: _read_port,
    SettingKind.DURATION: _read_duration,
    SettingKind.SIZE: read_size,
}
_HINTS = {
    SettingKind.PORT: " (0 to 65535)",
    SettingKind.DURATION: " (90, '30s', '5m', '1h30m')",
    SettingKind.SIZE: " (1048576, '64KiB', '1MiB')",
}


class SettingRow:
    """One row of the table. The setting's name is the name of the field that holds the row."""

    def __init__(self, kind: SettingKind, about: str, *, choices: tuple[str, ...], secret: bool, flag: str) -> None:
        self.kind = kind
        self.about = about
        self.choices = choices
        self.secret = secret
        self.flag = flag


def _row(
    default: object,
    kind: SettingKind,
    about: str,
    *,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    flag: str = "",
) -> Any:
    """A field of `Settings`. The default is written as in the settings file."""
    return field(
        default=_READERS[kind](default),
        metadata={"row": SettingRow(kind, about, choices=choices, secret=secret, flag=flag)},
    )


@dataclass(frozen=True)
class Settings:
    """The effective values. Durations are timedeltas, sizes are bytes.

    `sources` says where each came from: "default", "--port", "DUETIME_PORT", "port in duetime.toml".
    """

    store: str = _row(
        DEFAULT_STORE, SettingKind.TEXT, "where jobs are kept: the URL of the pool `default`", flag="--store"
    )
    host: str = _row(
        "127.0.0.1", SettingKind.TEXT, "address of the API; 0.0.0.0 opens it to other machines", flag="--host"
    )
    port: int = _row(7777, SettingKind.PORT, "port of the API; 0 picks a free one", flag="--port")
    admin_host: str = _row("127.0.0.1", SettingKind.TEXT, "address of the admin API; loopback only without [accounts]")
    admin_port: int = _row(7778, SettingKind.PORT, "port of the admin API; 0 picks a free one", flag="--admin-port")
    unix_socket: str = _row("", SettingKind.TEXT, "path of a Unix socket that serves the API too; none if empty")
    admin_unix_socket: str = _row(
        "", SettingKind.TEXT, "path of a Unix socket that serves the admin API too; none if empty"
    )
    unix_socket_mode: str = _row("0660", SettingKind.TEXT, "permissions of both Unix sockets, in octal")
    trusted_proxies: str = _row(
        "",
        SettingKind.TEXT,
        "whose X-Forwarded-For and -Proto are believed: 127.0.0.1, 10.0.0.0/8, `unix` for the Unix sockets",
    )
    instance: str = _row("", SettingKind.TEXT, "name of this server in the journal; the host's name if empty")
    journal: str = _row(
        "",
        SettingKind.TEXT,
        "folder of the journal, `off` for none; if empty `journal` beside the SQLite file",
        flag="--journal",
    )
    journal_fsync: str = _row(
        "always",
        SettingKind.TEXT,
        "journal: when entries are on the disk for good",
        choices=("always", "interval", "off"),
    )
    journal_interval: timedelta = _row("1s", SettingKind.DURATION, "journal: how often, with journal_fsync = interval")
    journal_segment_size: int = _row("64MiB", SettingKind.SIZE, "journal: a segment is sealed at this size ...")
    journal_segment_age: timedelta = _row("60s", SettingKind.DURATION, "journal: ... or at this age")
    journal_retention: timedelta = _row("90d", SettingKind.DURATION, "journal: older segments are deleted; 0: never")
    journal_max_size: int = _row(0, SettingKind.SIZE, "journal: beyond this the oldest segments are deleted; 0: never")
    journal_reserve: int = _row("64MiB", SettingKind.SIZE, "journal: pushes are refused while less is free on its disk")
    journal_ship_to: str = _row(
        "", SettingKind.TEXT, "journal: where sealed segments are copied to: a path, s3://... (fsspec)"
    )
    lake: str = _row(
        "", SettingKind.TEXT, "folder of the pipelines' lake, whose batches, audits and reports the console shows"
    )
    dev: bool = _row(
        False, SettingKind.SWITCH, "for trying out: loopback only, any or no token is let in", flag="--dev"
    )
    max_body: int = _row("1MiB", SettingKind.SIZE, "the largest body of a job")
    drain_timeout: timedelta = _row("30s", SettingKind.DURATION, "how long a stop may take")
    workers: int = _row(1, SettingKind.NUMBER, "processes that serve side by side; 0 is one per core", flag="--workers")
    pid_file: str = _row(
        "", SettingKind.TEXT, "where the server writes its process id while it runs", flag="--pid-file"
    )
    max_connections: int = _row(16_384, SettingKind.NUMBER, "HTTP: open connections per listener of a process")
    max_buffered: int = _row(
        "128MiB", SettingKind.SIZE, "HTTP: bytes of requests and unread answers a process may hold"
    )
    max_header_size: int = _row("32KiB", SettingKind.SIZE, "HTTP: request line and headers of one request")
    max_headers: int = _row(100, SettingKind.NUMBER, "HTTP: headers of one request")
    header_timeout: timedelta = _row("10s", SettingKind.DURATION, "HTTP: how long the headers of a request may take")
    body_timeout: timedelta = _row(
        "10s", SettingKind.DURATION, "HTTP: how long a body may take if it is slower than body_rate"
    )
    body_rate: int = _row("1KiB", SettingKind.SIZE, "HTTP: bytes a second a long body must come at")
    idle_timeout: timedelta = _row(
        "75s", SettingKind.DURATION, "HTTP: how long a connection may stay without a request"
    )
    write_timeout: timedelta = _row("30s", SettingKind.DURATION, "HTTP: how long a client may not read its answer")
    lmstfy_ttl: timedelta = _row("1d", SettingKind.DURATION, "lmstfy API: ttl where a request names none")
    lmstfy_tries: int = _row(1, SettingKind.NUMBER, "lmstfy API: tries where a request names none")
    lmstfy_ttr: timedelta = _row("120s", SettingKind.DURATION, "lmstfy API: ttr where a request names none")
    lmstfy_delay: timedelta = _row("0s", SettingKind.DURATION, "lmstfy API: delay where a request names none")
    lmstfy_timeout: timedelta = _row("0s", SettingKind.DURATION, "lmstfy API: long poll where a request names none")
    lmstfy_public_sizes: bool = _row(True, SettingKind.SWITCH, "lmstfy API: /size and /deadletter/size need no token")
    admin_protect_all: bool = _row(
        False, SettingKind.SWITCH, "admin API: ask for an account also where lmstfy does not (/metrics, /info ...)"
    )
    tcp_door: bool = _row(False, SettingKind.SWITCH, "php-delayqueue's TCP protocol: whether it is served")
    tcp_host: str = _row("127.0.0.1", SettingKind.TEXT, "TCP door: its address; loopback only without a token")
    tcp_port: int = _row(6789, SettingKind.PORT, "TCP door: its port; 0 picks a free one")
    tcp_pool: str = _row(DEFAULT_POOL, SettingKind.TEXT, "TCP door: the pool of its topics")
    tcp_namespace: str = _row(DEFAULT_NAMESPACE, SettingKind.TEXT, "TCP door: the namespace of its topics")
    tcp_token: str = _row("", SettingKind.TEXT, "TCP door: what requests must carry as `token`", secret=True)
    tcp_certificate: str = _row("", SettingKind.TEXT, "TCP door: PEM file of the certificate and key, for TLS")
    tcp_update_fails: bool = _row(
        False, SettingKind.SWITCH, "TCP door: an add that updates a job answers code 0, as once"
    )
    php_admin_token: str = _row(
        "",
        SettingKind.TEXT,
        "php-delayqueue's /add.php and /check.php on the admin port: what requests must carry; not served if empty",
        secret=True,
    )
    ouqiang_door: bool = _row(False, SettingKind.SWITCH, "ouqiang/delay-queue's HTTP protocol: whether it is served")
    ouqiang_host: str = _row("127.0.0.1", SettingKind.TEXT, "ouqiang door: its address; loopback only without a token")
    ouqiang_port: int = _row(9277, SettingKind.PORT, "ouqiang door: its port; 0 picks a free one")
    ouqiang_pool: str = _row(DEFAULT_POOL, SettingKind.TEXT, "ouqiang door: the pool of its jobs")
    ouqiang_namespace: str = _row(
        "ouqiang", SettingKind.TEXT, "ouqiang door: the namespace of its jobs, a queue per topic"
    )
    ouqiang_token: str = _row("", SettingKind.TEXT, "ouqiang door: what requests must carry", secret=True)
    ouqiang_tries: int = _row(
        0, SettingKind.NUMBER, "ouqiang door: pops of a job before it is a dead letter; 0: for ever"
    )
    callback_allow: str = _row(
        "", SettingKind.TEXT, "networks beside the public ones that callbacks may go to: 127.0.0.0/8, 10.1.0.0/16"
    )
    callback_in_flight: int = _row(500, SettingKind.NUMBER, "callbacks at a time in a process; 0: this one makes none")
    callback_per_host: int = _row(100, SettingKind.NUMBER, "callbacks at a time from a process to one host and port")
    callback_lease: timedelta = _row(
        "15s", SettingKind.DURATION, "how long a job is held while it is called back; renewed"
    )
    topic_log: str = _row("", SettingKind.TEXT, "folder of daily request, notify, err and notice logs; none if empty")
    topic_timezone: str = _row(
        "", SettingKind.TEXT, "time zone of fix_time, notify_time and daily logs; the server's if empty"
    )
    alert_memory: int = _row(
        90, SettingKind.NUMBER, "percent of a pool's room in use at which an alert is sent; 0: never"
    )
    alert_dead: int = _row(
        10, SettingKind.NUMBER, "new dead letters of a queue in 5 minutes that cause an alert; 0: never"
    )
    alert_lateness: timedelta = _row("10m", SettingKind.DURATION, "how late a queue may be before an alert; 0: never")
    alert_callbacks: int = _row(
        10, SettingKind.NUMBER, "failed callbacks of a topic in a row that cause an alert; 0: never"
    )
    alert_repeat: timedelta = _row("1h", SettingKind.DURATION, "after which a problem that lasts is told again")
    alert_mail_domains: str = _row(
        "", SettingKind.TEXT, "domains that topics may send alert mail to: example.com, example.org; none if empty"
    )
    access_log: bool = _row(
        False, SettingKind.SWITCH, "a log line per request; POST /accesslog on the admin API switches it"
    )
    log_level: str = _row(
        "info", SettingKind.TEXT, "the least level that is logged", choices=("debug", "info", "warning", "error")
    )
    log_format: str = _row("console", SettingKind.TEXT, "how log lines look", choices=("console", "json"))
    log_file: str = _row("", SettingKind.TEXT, "where log lines go; standard error if empty. USR1 reopens it")
    access_log_file: str = _row("", SettingKind.TEXT, "where the access log goes; with the other lines if empty")
    metrics_queues: int = _row(
        1_000, SettingKind.NUMBER, "metrics: queues shown by name; the rest are counted as `other`"
    )
    otel_endpoint: str = _row("", SettingKind.TEXT, "URL of an OTLP/HTTP collector that gets traces; none if empty")

    pools: Mapping[str, str] = field(default_factory=dict[str, str])
    """Every pool with the URL of its store, `default` included."""
    registry_store: str = ""
    """The store of the registry; empty: the default pool's."""
    accounts: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """The users of the admin API with the hashes of their passwords."""
    sources: Mapping[str, str] = field(default_factory=dict[str, str])


FIELDS: Mapping[str, Field[Any]] = MappingProxyType(
    {one.name: one for one in fields(Settings) if "row" in one.metadata}
)
"""The fields of `Settings` that are settings, by name."""


def row(name: str) -> SettingRow:
    return FIELDS[name].metadata["row"]


_KUBERNETES = re.compile(
    r"DUETIME(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_[A-Z]+(_(PROTO|PORT|ADDR))?)"
)


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def load(
    *,
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    file: Mapping[str, Any],
    file_name: str = FILE,
) -> Settings:
    """The effective settings; None among the flags means that the flag was not given. Raises InvalidSettings."""
    environment = _without_kubernetes(environment)
    _check_variables(environment)
    _check_keys(file, file_name)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, one in FIELDS.items():
        given, source = _find(name, flags, environment, file, file_name)
        sources[name] = source
        values[name] = one.default if source == "default" else _read(name, given, source)
    pools, pool_sources = read_pools(values["store"], sources["store"], file, file_name)
    values["store"] = pools[DEFAULT_POOL]
    settings = Settings(
        **values,
        pools=pools,
        registry_store=read_registry(file, file_name),
        accounts=read_accounts(file, file_name),
        sources=sources | pool_sources,
    )
    _check_exposure(settings)
    return settings


def parse_file(text: str, name: str = FILE) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings(f"{name} is not TOML: {error}") from None


# --- where a value comes from


def _find(
    name: str, flags: Mapping[str, object], environment: Mapping[str, str], file: Mapping[str, Any], file_name: str
) -> tuple[object, str]:
    if flags.get(name) is not None:
        return flags[name], row(name).flag
    if variable(name) in environment:
        return environment[variable(name)], variable(name)
    if name in file:
        return file[name], f"{name} in {file_name}"
    return None, "default"


def _without_kubernetes(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Leaves out the variables that Kubernetes sets in every container beside a Service called duetime, or one whose
    name begins so. They describe the Service, and DUETIME_PORT is a URL there.
    """
    return {name: value for name, value in environment.items() if not _is_of_kubernetes(name, value)}


def _is_of_kubernetes(name: str, value: str) -> bool:
    return _KUBERNETES.fullmatch(name) is not None or (
        name.endswith("_PORT") and value.startswith(("tcp://", "udp://", "sctp://"))
    )


def _check_variables(environment: Mapping[str, str]) -> None:
    known = [variable(name) for name in FIELDS]
    for name in sorted(environment):
        ours = name.startswith(PREFIX) and not name.startswith("DUETIME_TEST_")
        if ours and name not in known and name not in OTHER_VARIABLES:
            raise InvalidSettings(f"unknown environment variable {name}; the nearest known is {nearest(name, known)}")


def _check_keys(file: Mapping[str, Any], file_name: str) -> None:
    known = [*FIELDS, "pool", "registry", "accounts"]
    for name in file:
        if name not in known:
            raise InvalidSettings(
                f"unknown setting {name!r} in {file_name}; the nearest known is {nearest(name, known)!r}"
            )


def nearest(name: str, known: list[str]) -> str:
    return get_close_matches(name, known, n=1, cutoff=0)[0]


# --- reading a value


def _read(name: str, given: object, source: str) -> Any:
    one = row(name)
    try:
        value = _READERS[one.kind](given)
    except (ValueError, InvalidTime):
        given = MASK if one.secret else mask(repr(given))
        raise InvalidSettings(f"{source}: {given} is not a {one.kind}{_HINTS.get(one.kind, '')}") from None
    if one.choices and value not in one.choices:
        raise InvalidSettings(f"{source}: {value!r} is none of {', '.join(one.choices)}")
    return value


# --- which ports other machines can reach


def _check_exposure(settings: Settings) -> None:
    """Refuse settings that would let other machines reach a port that asks for no password."""
    if settings.dev and not is_loopback(settings.host):
        raise InvalidSettings(
            f"--dev accepts any token and must listen on loopback, got host {settings.host}; leave out one of them"
        )
    if not is_loopback(settings.admin_host) and not settings.accounts:
        raise InvalidSettings(
            "the admin API stays on loopback until an admin account is configured: there are no [accounts], and "
            f"admin_host is {settings.admin_host}"
        )
    for door in ("tcp", "ouqiang"):
        host: str = getattr(settings, f"{door}_host")
        if getattr(settings, f"{door}_door") and not is_loopback(host) and not getattr(settings, f"{door}_token"):
            raise InvalidSettings(f"the {door} door stays on loopback until it has a {door}_token; its host is {host}")
    if settings.admin_protect_all and not settings.accounts:
        raise InvalidSettings("admin_protect_all locks everybody out: there are no [accounts]")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# --- showing a value


def shown(settings: Settings, name: str) -> str:
    """A value as people write it, with secrets and passwords masked."""
    value = getattr(settings, name)
    if row(name).secret:
        return MASK if value else ""
    match value:
        case bool():
            return "true" if value else "false"
        case timedelta():
            return show_duration(value)
        case int() if row(name).kind is SettingKind.SIZE:
            return show_size(value)
        case _:
            return mask(str(value))


def show_duration(value: timedelta) -> str:
    """`1d`, `2m`, `1500ms`: one unit, the largest that needs no fraction."""
    ms = value // timedelta(milliseconds=1)
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms >= size and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms" if ms else "0s"


def show_size(size: int) -> str:
    for unit in ("GiB", "MiB", "KiB"):
        bytes_each = _SIZE_UNITS[unit.lower()]
        if size >= bytes_each and size % bytes_each == 0:
            return f"{size // bytes_each}{unit}"
    return str(size)

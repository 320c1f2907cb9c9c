"""The settings of a server: one table that describes them, and how each gets its value.

Each field of `Settings` is a setting with type, default, help, and optionally a flag. To add a setting, add a field:
the environment variable (`DUETIME_<NAME>`), the key in `duetime.toml` and `duetime config` follow from it. A flag
overrides the environment, the environment overrides the file. An unknown key or variable is an error that names the
nearest known one. Pure functions: the caller reads the file and the environment.

    settings = load(flags={"port": 8080}, environment=os.environ, file=parse_file(text))
"""

# ruff: noqa: RUF009  # a row's default is immutable: text, a number, a timedelta
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from duetime.model.clock import duration_ms
from duetime.model.errors import InvalidSettings, InvalidTime
from duetime.model.humanise import exact_duration, exact_size
from duetime.model.masking import MASK, mask
from duetime.model.names import DEFAULT_NAMESPACE, DEFAULT_POOL
from duetime.model.priority_shares import read_shares

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
"""Variables that other parts of Duetime read. DUETIME_TEST_* are allowed, too."""

DEFAULT_STORE = "sqlite:duetime-data/jobs.db"

_SIZE = re.compile(r"(\d+)\s*([KMG]i?B|B|)", re.IGNORECASE | re.ASCII)
_SIZE_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_HASH = re.compile(r"\$argon2(id|i|d)\$v=\d+\$m=\d+,t=\d+,p=\d+\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+", re.ASCII)
_POOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}", re.ASCII)


class SettingKind(StrEnum):
    """The type of a setting; the value is its name in messages and docs."""

    TEXT = "text"
    NUMBER = "whole number"
    SWITCH = "true or false"
    PORT = "port"
    DURATION = "duration"
    SIZE = "size"


TEXT, NUMBER, SWITCH, PORT, DURATION, SIZE = SettingKind


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
    TEXT: _read_text,
    NUMBER: _read_number,
    SWITCH: _read_switch,
    PORT: _read_port,
    DURATION: _read_duration,
    SIZE: read_size,
}
_HINTS = {
    NUMBER: " of at least 0",
    PORT: " (0 to 65535)",
    DURATION: " (90, '30s', '5m', '1h30m')",
    SIZE: " (1048576, '64KiB', '1MiB')",
}


class SettingRow:
    """What the table says about one setting."""

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

    store: str = _row(DEFAULT_STORE, TEXT, "URL of the store of the pool `default`", flag="--store")
    host: str = _row("127.0.0.1", TEXT, "address of the API; 0.0.0.0 accepts other machines", flag="--host")
    port: int = _row(7777, PORT, "port of the API; 0 picks a free one", flag="--port")
    admin_host: str = _row("127.0.0.1", TEXT, "address of the admin API; loopback only without [accounts]")
    admin_port: int = _row(7778, PORT, "port of the admin API; 0 picks a free one", flag="--admin-port")
    unix_socket: str = _row("", TEXT, "path of a Unix socket for the API; none if empty")
    admin_unix_socket: str = _row("", TEXT, "path of a Unix socket for the admin API; none if empty")
    unix_socket_mode: str = _row("0660", TEXT, "permissions of both Unix sockets, in octal")
    trusted_proxies: str = _row(
        "", TEXT, "proxies whose X-Forwarded-For and -Proto are trusted: 127.0.0.1, 10.0.0.0/8, `unix` for Unix sockets"
    )
    instance: str = _row("", TEXT, "name of this server in the journal; the host name if empty")
    journal: str = _row(
        "", TEXT, "folder of the journal, `off` for none; if empty, `journal` next to the SQLite file", flag="--journal"
    )
    journal_fsync: str = _row(
        "always", TEXT, "journal: when entries are synced to disk", choices=("always", "interval", "off")
    )
    journal_interval: timedelta = _row("1s", DURATION, "journal: time between syncs with journal_fsync = interval")
    journal_segment_size: int = _row("64MiB", SIZE, "journal: a segment is sealed at this size ...")
    journal_segment_age: timedelta = _row("60s", DURATION, "journal: ... or at this age")
    journal_retention: timedelta = _row("90d", DURATION, "journal: older segments are deleted; 0: never")
    journal_max_size: int = _row(0, SIZE, "journal: beyond this the oldest segments are deleted; 0: never")
    journal_reserve: int = _row("64MiB", SIZE, "journal: refuse pushes while its disk has less free space")
    journal_ship_to: str = _row(
        "", TEXT, "journal: destination for copies of sealed segments: a path, s3://... (fsspec)"
    )
    lake: str = _row("", TEXT, "folder of the pipelines' lake; the console shows its batches, audits and reports")
    dev: bool = _row(False, SWITCH, "development mode: loopback only, any token or none is accepted", flag="--dev")
    max_body: int = _row("1MiB", SIZE, "largest body of a job")
    priority_shares: str = _row(
        "5:3:2", TEXT, "shares of high, normal and low priority; for one namespace, too: `5:3:2, shop=8:1:1`"
    )
    drain_timeout: timedelta = _row("30s", DURATION, "longest time for a graceful stop")
    workers: int = _row(1, NUMBER, "number of server processes; 0: one per core", flag="--workers")
    pid_file: str = _row("", TEXT, "file for the process id of the server", flag="--pid-file")
    max_connections: int = _row(16_384, NUMBER, "HTTP: open connections per listener of a process")
    max_buffered: int = _row("128MiB", SIZE, "HTTP: bytes of requests and unread responses in a process")
    max_header_size: int = _row("32KiB", SIZE, "HTTP: request line and headers of one request")
    max_headers: int = _row(100, NUMBER, "HTTP: headers of one request")
    header_timeout: timedelta = _row("10s", DURATION, "HTTP: longest time for the headers of a request")
    body_timeout: timedelta = _row("10s", DURATION, "HTTP: longest time for a body slower than body_rate")
    body_rate: int = _row("1KiB", SIZE, "HTTP: least bytes a second of a long body")
    idle_timeout: timedelta = _row("75s", DURATION, "HTTP: longest time without a request on a connection")
    write_timeout: timedelta = _row(
        "30s", DURATION, "HTTP: longest time in which a client reads nothing of its response"
    )
    lmstfy_ttl: timedelta = _row("1d", DURATION, "lmstfy API: ttl if a request has none")
    lmstfy_tries: int = _row(1, NUMBER, "lmstfy API: tries if a request has none")
    lmstfy_ttr: timedelta = _row("120s", DURATION, "lmstfy API: ttr if a request has none")
    lmstfy_delay: timedelta = _row("0s", DURATION, "lmstfy API: delay if a request has none")
    lmstfy_timeout: timedelta = _row("0s", DURATION, "lmstfy API: long poll if a request has none")
    lmstfy_public_sizes: bool = _row(True, SWITCH, "lmstfy API: /size and /deadletter/size need no token")
    admin_protect_all: bool = _row(
        False, SWITCH, "admin API: require an account also where lmstfy does not (/metrics, /info ...)"
    )
    tcp_enabled: bool = _row(False, SWITCH, "serve php-delayqueue's TCP protocol")
    tcp_host: str = _row("127.0.0.1", TEXT, "TCP protocol: address; loopback only without a token")
    tcp_port: int = _row(6789, PORT, "TCP protocol: port; 0 picks a free one")
    tcp_pool: str = _row(DEFAULT_POOL, TEXT, "TCP protocol: pool of its topics")
    tcp_namespace: str = _row(DEFAULT_NAMESPACE, TEXT, "TCP protocol: namespace of its topics")
    tcp_token: str = _row("", TEXT, "TCP protocol: the `token` that requests must have", secret=True)
    tcp_certificate: str = _row("", TEXT, "TCP protocol: PEM file with certificate and key, for TLS")
    tcp_update_fails: bool = _row(
        False, SWITCH, "TCP protocol: an add that updates a job returns code 0, as in old versions"
    )
    php_admin_token: str = _row(
        "",
        TEXT,
        "token for php-delayqueue's /add.php and /check.php on the admin port; not served if empty",
        secret=True,
    )
    ouqiang_enabled: bool = _row(False, SWITCH, "serve ouqiang/delay-queue's HTTP protocol")
    ouqiang_host: str = _row("127.0.0.1", TEXT, "ouqiang protocol: address; loopback only without a token")
    ouqiang_port: int = _row(9277, PORT, "ouqiang protocol: port; 0 picks a free one")
    ouqiang_pool: str = _row(DEFAULT_POOL, TEXT, "ouqiang protocol: pool of its jobs")
    ouqiang_namespace: str = _row("ouqiang", TEXT, "ouqiang protocol: namespace of its jobs, a queue per topic")
    ouqiang_token: str = _row("", TEXT, "ouqiang protocol: the token that requests must have", secret=True)
    ouqiang_tries: int = _row(0, NUMBER, "ouqiang protocol: pops of a job before it is a dead letter; 0: unlimited")
    callback_allow: str = _row("", TEXT, "private networks that callbacks may reach: 127.0.0.0/8, 10.1.0.0/16")
    callback_in_flight: int = _row(500, NUMBER, "concurrent callbacks of a process; 0: none")
    callback_per_host: int = _row(100, NUMBER, "concurrent callbacks of a process to one host and port")
    callback_lease: timedelta = _row("15s", DURATION, "lease of a job during its callback; renewed")
    topic_log: str = _row("", TEXT, "folder of daily request, notify, err and notice logs; none if empty")
    topic_timezone: str = _row("", TEXT, "time zone of fix_time, notify_time and daily logs; the server's if empty")
    alert_memory: int = _row(90, NUMBER, "alert when this percentage of a pool's capacity is in use; 0: never")
    alert_dead: int = _row(10, NUMBER, "alert at this many new dead letters of a queue in 5 minutes; 0: never")
    alert_lateness: timedelta = _row("10m", DURATION, "alert when a queue is this late; 0: never")
    alert_callbacks: int = _row(10, NUMBER, "alert at this many failed callbacks of a topic in a row; 0: never")
    alert_repeat: timedelta = _row("1h", DURATION, "time until the alert of a lasting problem is repeated")
    alert_mail_domains: str = _row(
        "", TEXT, "domains that topics may send alert mail to: example.com, example.org; none if empty"
    )
    bridges: str = _row(
        "", TEXT, "other systems whose sizes are shown: laravel+redis://host?prefix=..., redisson+redis://host ..."
    )
    language: str = _row(
        "en",
        TEXT,
        "en or zh: language of alerts, and of the console for browsers that prefer neither",
        choices=("en", "zh"),
    )
    access_log: bool = _row(False, SWITCH, "log each request; POST /accesslog on the admin API switches this")
    log_level: str = _row("info", TEXT, "least level that is logged", choices=("debug", "info", "warning", "error"))
    log_format: str = _row("console", TEXT, "format of log lines", choices=("console", "json"))
    log_file: str = _row("", TEXT, "log file; standard error if empty. USR1 reopens it")
    access_log_file: str = _row("", TEXT, "file of the access log; if empty, the other log lines' file")
    metrics_queues: int = _row(
        1_000, NUMBER, "metrics: number of queues shown by name; the others are summed as `other`"
    )
    otel_endpoint: str = _row("", TEXT, "URL of an OTLP/HTTP collector for traces and metrics; none if empty")

    pools: Mapping[str, str] = field(default_factory=dict[str, str])
    """Every pool with the URL of its store, `default` included."""
    registry_store: str = ""
    """The store of the registry; empty: the default pool's."""
    accounts: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """The users of the admin API with the hashes of their passwords."""
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    console_only: bool = False
    """Set by `duetime console`: no API, courier, watchdog or schedules, and a journal only for pools that journal."""


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
    """Returns the effective settings. A flag of None was not given. Raises InvalidSettings."""
    # Kubernetes sets such variables in every container next to a Service called duetime: DUETIME_PORT is a URL there.
    environment = {
        name: value
        for name, value in environment.items()
        if not _KUBERNETES.fullmatch(name)
        and not (name.endswith("_PORT") and value.startswith(("tcp://", "udp://", "sctp://")))
    }
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
    read_shares(settings.priority_shares)
    return settings


def parse_file(text: str, name: str = FILE) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings(f"{name} must be valid TOML: {error}") from None
    except RecursionError:
        raise InvalidSettings(f"{name} must not have values nested hundreds of levels deep") from None


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
        article = "" if one.kind is SWITCH else "a "
        hint = _HINTS.get(one.kind, "")
        raise InvalidSettings(f"{source} must be {article}{one.kind}{hint}, got {given}") from None
    if one.choices and value not in one.choices:
        raise InvalidSettings(f"{source} must be one of {', '.join(one.choices)}, got {value!r}")
    return value


# --- which ports other machines can reach


def _check_exposure(settings: Settings) -> None:
    """Refuses settings that would expose a port without a password to other machines."""
    if settings.dev and not is_loopback(settings.host):
        raise InvalidSettings(
            f"--dev accepts any token and must listen on loopback, got host {settings.host}; leave out one of them"
        )
    if not is_loopback(settings.admin_host) and not settings.accounts:
        raise InvalidSettings(
            f"admin_host must be loopback while there are no [accounts], got {settings.admin_host}; "
            "add an account (`duetime user hash`) or use 127.0.0.1"
        )
    for name in ("tcp", "ouqiang"):
        host: str = getattr(settings, f"{name}_host")
        if getattr(settings, f"{name}_enabled") and not is_loopback(host) and not getattr(settings, f"{name}_token"):
            raise InvalidSettings(f"{name}_host must be loopback while {name}_token is empty, got {host}")
    if settings.admin_protect_all and not settings.accounts:
        raise InvalidSettings("admin_protect_all needs [accounts]: without them nobody could sign in")


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
            return exact_duration(value // timedelta(milliseconds=1))
        case int() if row(name).kind is SettingKind.SIZE:
            return exact_size(value)
        case _:
            return mask(str(value))


# --- the tables of the settings file: pools, the registry's store, accounts


def read_pools(
    store: str, source: str, file: Mapping[str, Any], file_name: str
) -> tuple[dict[str, str], dict[str, str]]:
    """All pools with their URLs, and the source of each URL for `Settings.sources`."""
    pools, sources = {DEFAULT_POOL: store}, {f"pool.{DEFAULT_POOL}": source}
    for name, table in _table(file.get("pool", {}), f"[pool] in {file_name}").items():
        where = f"[pool.{name}] in {file_name}"
        if not _POOL_NAME.fullmatch(name):
            raise InvalidSettings(
                f"pool name must contain only ASCII letters, digits, '-' and '_', got {name!r} in {file_name}"
            )
        url = _pool_url(name, table, where)
        if name == DEFAULT_POOL:
            if "store" in file:
                raise InvalidSettings(
                    f"store and [pool.default] in {file_name} cannot be used together; remove one of them"
                )
            if source != "default":  # a flag or variable is stronger than the file
                continue
        pools[name], sources[f"pool.{name}"] = url, where
    if pools[DEFAULT_POOL] != store:
        sources["store"] = sources[f"pool.{DEFAULT_POOL}"]
    return pools, sources


def read_registry(file: Mapping[str, Any], file_name: str) -> str:
    return _store_of(file["registry"], f"[registry] in {file_name}") if "registry" in file else ""


def read_accounts(file: Mapping[str, Any], file_name: str) -> dict[str, str]:
    where = f"[accounts] in {file_name}"
    given = _table(file.get("accounts", {}), where)
    for user, password in given.items():
        if not user or ":" in user:
            raise InvalidSettings(f"{where}: user name must not be empty or contain a colon, got {user!r}")
        if not isinstance(password, str) or not _HASH.fullmatch(password):
            raise InvalidSettings(
                f"{where}: value of {user} must be a password hash; create one with `duetime user hash`"
            )
    return {user: str(password) for user, password in given.items()}


def _pool_url(name: str, table: object, where: str) -> str:
    """The URL of a store, of a group (`stores` by name, and `drain`, the stores that accept no new jobs), or of a
    tiered pool (`hot`, `cold`, `horizon`, `spill`, `promote_per_s`).
    """
    given = _table(table, where)
    if "hot" in given or "cold" in given:
        return _tiered_url(name, given, where)
    if "stores" not in given:
        return _store_of(table, where)
    if unknown := sorted(set(given) - {"stores", "drain"}):
        raise InvalidSettings(f"unknown setting {unknown[0]!r} in {where}; a group has stores and drain")
    stores, drain = given["stores"], given.get("drain", [])
    if not isinstance(stores, dict) or not stores or not isinstance(drain, list):
        raise InvalidSettings(
            f'{where} must have stores = {{ a = "URL", b = "URL" }}, and drain must be a list of their names'
        )
    members = {str(member): str(url) for member, url in _table(stores, where).items()}  # pyright: ignore[reportUnknownArgumentType]
    leaving = [str(member) for member in drain]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    for member in [*members, *leaving]:
        if not _POOL_NAME.fullmatch(member) or member == "drain" or member not in members:
            raise InvalidSettings(f"{where}: {member!r} cannot be the name of a store in this group")
    return group_url(name, members, leaving)


def _tiered_url(name: str, given: Mapping[str, object], where: str) -> str:
    if unknown := sorted(set(given) - {"hot", "cold", "horizon", "spill", "promote_per_s"}):
        raise InvalidSettings(
            f"unknown setting {unknown[0]!r} in {where}; a tiered pool has hot, cold, horizon, spill and promote_per_s"
        )
    for tier in ("hot", "cold"):
        if not isinstance(given.get(tier), str) or not given[tier]:
            raise InvalidSettings(f"{where} must have {tier} = URL")
    if not isinstance(given.get("horizon", ""), str) or not isinstance(given.get("spill", False), bool):
        raise InvalidSettings(f'{where}: horizon must be a duration such as "2d", and spill must be true or false')
    parts = {**given, "spill": "true" if given.get("spill") else "false"}
    options = [f"{key}={quote(str(value), safe=':/@')}" for key, value in parts.items()]
    return f"tiered:{name}?{'&'.join(options)}"


def group_url(name: str, members: Mapping[str, str], drain: Sequence[str] = ()) -> str:
    """The URL of a group of stores. Leaves slashes, colons and @ unquoted so that `mask` finds passwords."""
    parts = [f"{member}={quote(url, safe=':/@')}" for member, url in members.items()]
    return f"group:{name}?{'&'.join([*parts, *(f'drain={member}' for member in drain)])}"


def group_members(url: str) -> list[tuple[str, str, bool]]:
    """The stores of a group's URL: name, URL, and whether the store drains. Empty for any other URL."""
    if not url.startswith("group:"):
        return []
    given = parse_qsl(url.partition("?")[2])
    leaving = {value for name, value in given if name == "drain"}
    return [(name, value, name in leaving) for name, value in given if name != "drain"]


def pool_parts(url: str) -> dict[str, str]:
    """The URLs of the stores of a group or a tiered pool, by name. Empty for any other URL."""
    if not url.startswith("tiered:"):
        return {name: address for name, address, _ in group_members(url)}
    return {name: value for name, value in parse_qsl(url.partition("?")[2]) if name in ("hot", "cold")}


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite store. None for the URL of anything else, or of no file."""
    path = unquote(urlsplit(url).path) if url.startswith("sqlite:") else ""
    if not path.strip("/"):
        return None
    # POSIX distinguishes two leading slashes from one; people who write a URL do not.
    return Path("/" + path.lstrip("/") if path.startswith("/") else path).absolute()


def _store_of(table: object, where: str) -> str:
    """Returns the value of `store`, the only key of the table."""
    given = _table(table, where)
    if unknown := sorted(set(given) - {"store"}):
        raise InvalidSettings(f"unknown setting {unknown[0]!r} in {where}; the nearest known is 'store'")
    url = given.get("store")
    if not isinstance(url, str) or not url:
        raise InvalidSettings(f"{where} must have store = URL")
    return url


def _table(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidSettings(
            f"{where} must be a table; write [pool.NAME] or [registry] with store = URL, or [accounts] with name = HASH"
        )
    return value  # pyright: ignore[reportUnknownVariableType]  # TOML's keys are text

"""`open_store(url)` opens the store that a URL names.

This is the only module that imports concrete stores. Drivers are optional: each is imported inside its branch, and the
error for a missing one names the extra that installs it.

    memory:                                          this process only
    sqlite:///var/lib/duetime/jobs.db                one file, several processes
    redis://[user:password@]host:6379/0              also rediss://, redis+sentinel://, redis+cluster://
    postgresql://[user:password@]host/database       ?schema=duetime&prefix=&connections=8 and libpq's own options
    mysql://[user:password@]host/database            or mariadb://; ?prefix=duetime_&connections=8&ssl_ca=&unix_socket=
    group:NAME?a=URL&b=URL&drain=b                   several stores as one; their URLs are percent-encoded
    tiered:NAME?hot=URL&cold=URL&horizon=2d          a fast store for jobs that are due soon, a disk for the others
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TypedDict
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from duetime.model.clock import Clock, duration_ms
from duetime.model.errors import InvalidSettings, InvalidTime
from duetime.model.settings import read_size
from duetime.stores.base import Store
from duetime.stores.bulk import Bulk, PlainBulk
from duetime.stores.sql.queries import Migration

MIN_HORIZON_MS = 60_000

SCHEMES = (
    "memory",
    "sqlite",
    "redis",
    "rediss",
    "redis+sentinel",
    "redis+cluster",
    "postgresql",
    "postgres",
    "mysql",
    "mariadb",
    "group",
    "tiered",
)


async def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """Connect, create or upgrade what is missing, and return the store. A `clock` replaces the store's own."""
    match scheme := _scheme(url):
        case "memory":
            from duetime.stores.memory.store import MemoryStore

            return MemoryStore(clock)
        case "sqlite":
            try:
                from duetime.stores.sqlite.store import SqliteStore
            except ModuleNotFoundError as missing:
                raise InvalidSettings.lacks("sqlite:", "server", missing) from None
            path, synchronous, reserve = _sqlite_parts(url)
            return await SqliteStore.open(path, clock=clock, synchronous=synchronous, reserve=reserve)
        case "redis" | "rediss" | "redis+sentinel" | "redis+cluster":
            try:
                from duetime.stores.redis.store import RedisStore
            except ModuleNotFoundError as missing:
                raise InvalidSettings.lacks(f"{scheme}://", "redis", missing) from None
            return await RedisStore.open(url, clock=clock)
        case "postgresql" | "postgres":
            try:
                from duetime.stores.postgres.store import PostgresStore
            except ModuleNotFoundError as missing:
                raise InvalidSettings.lacks(f"{scheme}://", "postgres", missing) from None
            return await PostgresStore.open(url, clock=clock)
        case "mysql" | "mariadb":
            try:
                from duetime.stores.mysql.store import MysqlStore
            except ModuleNotFoundError as missing:
                raise InvalidSettings.lacks(f"{scheme}://", "mysql", missing) from None
            return await MysqlStore.open(url, clock=clock)
        case "group" | "tiered":
            return await _open_several(url, clock)
        case _:
            raise _unknown(url)


def check_url(url: str) -> None:
    """Raises InvalidSettings if no store can have this URL. Imports and opens nothing."""
    if _scheme(url) not in SCHEMES:
        raise _unknown(url)


def _scheme(url: str) -> str:
    """Empty if the URL has none. Raises InvalidSettings if its host cannot be read."""
    try:
        urlsplit(url)
    except ValueError as error:
        raise InvalidSettings(f"store URL cannot be read: {error}") from None
    scheme, colon, _ = url.partition(":")
    return scheme if colon else ""


async def _open_several(url: str, clock: Clock | None) -> Store:
    if url.startswith("group:"):
        from duetime.stores.group.store import GroupStore

        name, members, drain = _group_parts(url)
        opening = {member: partial(open_store, own, clock=clock) for member, own in members.items()}
        return await GroupStore.open(name, opening, drain)
    from duetime.stores.tiered.store import TieredStore

    name, hot, cold, options = _tiered_parts(url)
    tiers = [partial(open_store, own, clock=clock) for own in (hot, cold)]
    return await TieredStore.open(name, *tiers, clock=clock, **options)


def _unknown(url: str) -> InvalidSettings:
    scheme, colon, rest = url.partition(":")
    if not colon and scheme in SCHEMES:
        example = {"memory": "memory:", "sqlite": "sqlite:jobs.db"}.get(scheme, f"{scheme}://...")
        return InvalidSettings(f"store URL must have a colon after its scheme, got {url!r}: write {example}")
    port = rest.partition("/")[0]
    if port.isascii() and port.isdigit():
        return InvalidSettings(f"{scheme}:{port} has no scheme: did you mean http://{scheme}:{port}?")
    return InvalidSettings(f"store URL must start with one of {', '.join(SCHEMES)}, got {scheme!r}")


async def open_bulk(url: str) -> Bulk:
    """Connect as `open_store` does, for loading jobs by columns."""
    store = await open_store(url)
    try:
        return bulk_of(store, url)
    except InvalidSettings:
        await store.close()
        raise


def bulk_of(store: Store, url: str) -> Bulk:
    """The loader of an open store. Closing one closes the other."""
    if url.startswith("redis"):
        try:
            from duetime.stores.redis.bulk import RedisBulk
            from duetime.stores.redis.store import RedisStore
        except ModuleNotFoundError as missing:
            raise InvalidSettings.lacks("loading by columns", "spark", missing) from None
        if isinstance(store, RedisStore):
            return RedisBulk(store)
    return PlainBulk(store)


def pending_migrations(url: str) -> Sequence[Migration]:
    """What opening the store would do to its tables; nothing for a store that has none. Blocks."""
    match _scheme(url):
        case "postgresql" | "postgres":
            from duetime.stores.postgres.connection import PostgresAddress, pending

            return pending(PostgresAddress.parse(url))
        case "mysql" | "mariadb":
            from duetime.stores.mysql.connection import MysqlAddress, pending

            return pending(MysqlAddress.parse(url))
        case "sqlite":
            from duetime.stores.sqlite.connection import pending

            path, _, _ = _sqlite_parts(url)
            return pending(path)
        case _:
            return []


def migrate_store(url: str) -> None:
    """Make or upgrade the tables, as opening the store does. Blocks."""

    async def migrate() -> None:
        await (await open_store(url)).close()

    asyncio.run(migrate())


def _sqlite_parts(url: str) -> tuple[str, str, int | None]:
    """Path, synchronous and reserve of a SQLite URL.

    The path is absolute after three slashes. `?synchronous=` is SQLite's own setting, FULL by default. `?reserve=` is
    the number of bytes that pushes leave free on the disk.
    """
    parts = urlsplit(url)
    if parts.netloc:
        raise InvalidSettings(f"a SQLite URL must have three slashes before an absolute path, got {url!r}")
    if not parts.path.strip("/"):
        raise InvalidSettings(f"a SQLite URL must name a file (sqlite:///path/to/jobs.db), got {url!r}")
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if unknown := set(options) - {"synchronous", "reserve"}:
        raise InvalidSettings(f"unknown options in {url!r}: {', '.join(sorted(unknown))}")
    try:
        reserve = read_size(options["reserve"]) if "reserve" in options else None
    except ValueError:
        raise InvalidSettings(f"reserve must be a size such as 0 or 64MiB, got {options['reserve']!r}") from None
    return unquote(parts.path), options.get("synchronous", "FULL"), reserve


def _group_parts(url: str) -> tuple[str, dict[str, str], list[str]]:
    """The inverse of `settings_file.group_url`."""
    name, _, query = url.removeprefix("group:").partition("?")
    members: dict[str, str] = {}
    drain: list[str] = []
    for key, value in parse_qsl(query):
        if key == "drain":
            drain.append(value)
        elif key in members:
            raise InvalidSettings(f"group {name}: member {key} is named twice")
        elif value.startswith(("group:", "tiered:")):
            raise InvalidSettings(f"group {name}: member {key} must be a single store, got {value.partition(':')[0]}:")
        else:
            members[key] = value
    if unknown := sorted(set(drain) - members.keys()):
        raise InvalidSettings(f"group {name}: drain must name members, got {unknown[0]}")
    if not name or not members:
        raise InvalidSettings("a group URL must have a name and members: group:NAME?a=redis://one&b=redis://two")
    return name, members, drain


class _TieredOptions(TypedDict):
    horizon_ms: int
    spill: bool
    promote_per_s: int


def _tiered_parts(url: str) -> tuple[str, str, str, _TieredOptions]:
    """Name, hot, cold and options: what `model/settings.py` makes of the table of a pool."""
    name, _, query = url.removeprefix("tiered:").partition("?")
    given = dict(parse_qsl(query))
    if not name or not {"hot", "cold"} <= given.keys() <= {"hot", "cold", "horizon", "spill", "promote_per_s"}:
        raise InvalidSettings(
            "a tiered URL must have a name and two stores: tiered:NAME?hot=redis://one&cold=postgresql://two&horizon=2d"
        )
    for tier in ("hot", "cold"):
        if given[tier].startswith("tiered:"):
            raise InvalidSettings(f"tiered pool {name}: {tier} must not be a tiered pool itself")
    if given.get("spill", "false") not in ("true", "false"):
        raise InvalidSettings(f"tiered pool {name}: spill must be true or false, got {given['spill']!r}")
    try:
        horizon_ms = duration_ms(given.get("horizon", "2d"))
    except InvalidTime as error:
        raise InvalidSettings(f"tiered pool {name}: horizon: {error.message}") from None
    if horizon_ms < MIN_HORIZON_MS:
        raise InvalidSettings(f"tiered pool {name}: horizon must be at least 1m, got {given['horizon']}")
    per_s = given.get("promote_per_s", "0")
    if not (per_s.isascii() and per_s.isdigit() and len(per_s) < 10):
        raise InvalidSettings(f"tiered pool {name}: promote_per_s must be a number of jobs, got {per_s!r}")
    options: _TieredOptions = {
        "horizon_ms": horizon_ms,
        "spill": given.get("spill") == "true",
        "promote_per_s": int(per_s),
    }
    return name, given["hot"], given["cold"], options

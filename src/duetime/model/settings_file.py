"""Reads the tables of the settings file: pools, the registry's store, accounts.

The other keys of the file are settings in `settings.py`. Each function takes the parsed file and its name for error
messages, and raises InvalidSettings.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote

from duetime.model.errors import InvalidSettings
from duetime.model.names import DEFAULT_POOL

_HASH = re.compile(r"\$argon2(id|i|d)\$v=\d+\$m=\d+,t=\d+,p=\d+\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+", re.ASCII)
_POOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}", re.ASCII)


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
    """The URL of a store, or of a group: `stores` by name, and `drain`, the stores that accept no new jobs."""
    given = _table(table, where)
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

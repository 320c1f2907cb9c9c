"""The registry in Redis: records by kind, one version over all of them, and counters."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from struct import Struct
from typing import Any

from duetime.model.clock import Clock
from duetime.model.errors import StoreDamaged, StoreUnavailable, VersionConflict
from duetime.stores.redis import keys
from duetime.stores.redis.link import Link
from duetime.stores.redis.pipe import Argument
from duetime.stores.redis.scripts import Scripts, checked, read_time
from duetime.stores.registry import MAX_TOMBSTONES, Changes, Counter, Record

PAGE = 500
SWEEP = 20
"""How many counters past their life an increment deletes at most."""

_VERSION = Struct(">Q")
_GLOB = re.compile(r"[*?\[\]\\]")


class RedisRegistry:
    """Keeps the contract of `stores.registry.Registry`."""

    def __init__(self, link: Link, scripts: Scripts, clock: Clock | None) -> None:
        self._link, self._scripts, self._clock = link, scripts, clock

    async def get(self, kind: str, key: str) -> Record | None:
        value = await self._read("HGET", f"{keys.REGISTRY}:records:{kind}", key)
        return _record(kind, key, value) if value is not None else None

    async def put(self, kind: str, key: str, value: bytes, *, if_version: int | None = None) -> Record:
        expected = "" if if_version is None else if_version
        done, version = await self._scripts.run("registry_put", keys.REGISTRY, kind, key, value, expected)
        if not done:
            raise VersionConflict.of(kind, key, version, if_version)
        return Record(kind, key, value, version)

    async def delete(self, kind: str, key: str, *, if_version: int | None = None) -> bool:
        expected = "" if if_version is None else if_version
        done, version = await self._scripts.run("registry_delete", keys.REGISTRY, kind, key, expected, MAX_TOMBSTONES)
        if not done:
            raise VersionConflict.of(kind, key, version, if_version)
        return version > 0

    async def list_records(self, kind: str) -> Sequence[Record]:
        flat = await self._read("HGETALL", f"{keys.REGISTRY}:records:{kind}")
        found = [_record(kind, flat[i].decode(), flat[i + 1]) for i in range(0, len(flat), 2)]
        return sorted(found, key=lambda record: record.key)

    async def changes(self, since: int = 0) -> Changes:
        records: dict[tuple[str, str], Record] = {}
        deleted: dict[tuple[str, str], int] = {}
        known_forgotten = 0
        while True:
            answer = await self._scripts.run("registry_changes", keys.REGISTRY, since, PAGE, again=True)
            version, forgotten, *flat = answer
            if since < forgotten and forgotten != known_forgotten:
                # Deletions after `since` are forgotten, perhaps between two pages: only all records show what is gone.
                since, known_forgotten = 0, forgotten
                records.clear()
                deleted.clear()
                continue
            for i in range(0, len(flat), 3):
                kind, _, key = flat[i].decode().partition("\0")
                since, value = flat[i + 1], flat[i + 2]
                records.pop((kind, key), None)
                deleted.pop((kind, key), None)
                if value is None:
                    deleted[kind, key] = since
                else:
                    records[kind, key] = _record(kind, key, value)
            if len(flat) < 3 * PAGE:
                is_complete = known_forgotten > 0
                return Changes(version, list(records.values()), [] if is_complete else list(deleted), is_complete)

    async def watch(self) -> AsyncIterator[int]:
        async for message in self._link.subscribe(keys.REGISTRY_CHANGED):
            try:
                yield int(message or await self._read("GET", f"{keys.REGISTRY}:version") or 0)
            except StoreUnavailable:
                continue  # the subscription is lost with the connection, and begins anew
            except ValueError:
                continue  # a message of another program

    async def increment(self, name: str, by: int = 1, *, life_ms: int = 0) -> Counter:
        now = "" if self._clock is None else self._clock.now_ms()
        value, left_ms = await self._scripts.run(
            "registry_increment", keys.REGISTRY, now, name, by, life_ms, SWEEP, again=by == 0
        )
        return Counter(value, left_ms)

    async def counters(self, prefix: str = "") -> Mapping[str, int]:
        """Redis passes over all counters, in steps, and sends only those with the prefix."""
        now = read_time(await self._read("TIME"), self._clock)
        pattern, cursor = _GLOB.sub(r"\\\g<0>", prefix) + "*", b"0"
        found: dict[str, int] = {}
        while True:
            scan = ("HSCAN", f"{keys.REGISTRY}:counters", cursor, "MATCH", pattern, "COUNT", PAGE)
            cursor, flat = await self._read(*scan)
            names = flat[::2]
            ends = await self._read("ZMSCORE", f"{keys.REGISTRY}:lives", *names) if names else ()
            for name, value, end in zip(names, flat[1::2], ends, strict=True):
                if end is None or int(end) > now:
                    found[name.decode()] = int(value)
            if cursor == b"0":
                return found

    async def _read(self, *command: Argument) -> Any:
        return checked([await self._link.call(keys.REGISTRY, command, again=True)])[0]


def _record(kind: str, key: str, value: bytes) -> Record:
    if len(value) < _VERSION.size:
        raise StoreDamaged(f"the record {key!r} of the kind {kind!r} has no version")
    return Record(kind, key, value[_VERSION.size :], _VERSION.unpack_from(value)[0])

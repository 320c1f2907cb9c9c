"""The registry of the reference store, in one process's memory."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from duetime.model.clock import Clock
from duetime.model.errors import VersionConflict
from duetime.stores.registry import MAX_TOMBSTONES, Changes, Counter, Record


class MemoryRegistry:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._version = 0
        self._records: dict[tuple[str, str], Record] = {}
        self._deleted: dict[tuple[str, str], int] = {}
        self._forgotten = 0
        self._counters: dict[str, tuple[int, int]] = {}
        self._changed = asyncio.Event()

    async def get(self, kind: str, key: str) -> Record | None:
        return self._records.get((kind, key))

    async def put(self, kind: str, key: str, value: bytes, *, if_version: int | None = None) -> Record:
        self._require(kind, key, if_version)
        record = Record(kind, key, value, self._bump())
        self._records[kind, key] = record
        self._deleted.pop((kind, key), None)
        return record

    async def delete(self, kind: str, key: str, *, if_version: int | None = None) -> bool:
        self._require(kind, key, if_version)
        if self._records.pop((kind, key), None) is None:
            return False
        self._deleted[kind, key] = self._bump()
        if len(self._deleted) > MAX_TOMBSTONES:
            self._forgotten = self._deleted.pop(next(iter(self._deleted)))
        return True

    def _require(self, kind: str, key: str, if_version: int | None) -> None:
        record = self._records.get((kind, key))
        present = record.version if record else 0
        if if_version not in (None, present):
            raise VersionConflict.of(kind, key, present, if_version)

    def _bump(self) -> int:
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()
        return self._version

    async def list_records(self, kind: str) -> Sequence[Record]:
        return [record for (found, _), record in sorted(self._records.items()) if found == kind]

    async def changes(self, since: int = 0) -> Changes:
        if since < self._forgotten:
            return Changes(self._version, sorted(self._records.values(), key=lambda r: r.version), [], is_complete=True)
        records = sorted((r for r in self._records.values() if r.version > since), key=lambda r: r.version)
        deleted = sorted((version, name) for name, version in self._deleted.items() if version > since)
        return Changes(self._version, records, [name for _, name in deleted])

    async def watch(self) -> AsyncIterator[int]:
        while True:
            changed, version = self._changed, self._version
            yield version
            await changed.wait()

    async def increment(self, name: str, by: int = 1, *, life_ms: int = 0) -> Counter:
        now = self._clock.now_ms()
        value, until = self._counters.get(name, (0, 0))
        live = name in self._counters and (until == 0 or until > now)
        if not live:
            value, until = 0, now + life_ms if life_ms else 0
            if by == 0:
                return Counter(0)
        self._counters[name] = value + by, until
        return Counter(value + by, max(until - now, 0) if until else 0)

    async def counters(self, prefix: str = "") -> Mapping[str, int]:
        now = self._clock.now_ms()
        live = {name: value for name, (value, until) in self._counters.items() if until == 0 or until > now}
        return {name: value for name, value in live.items() if name.startswith(prefix)}

    def forget_ended_counters(self) -> None:
        now = self._clock.now_ms()
        self._counters = {name: one for name, one in self._counters.items() if one[1] == 0 or one[1] > now}

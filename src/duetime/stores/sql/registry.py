"""The registry in the store's own database: its writes are steps like any verb, announced together with the wakes."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from duetime.model.errors import VersionConflict
from duetime.stores.registry import MAX_TOMBSTONES, Changes, Counter, Record
from duetime.stores.sql.step import Step
from duetime.stores.sql.wake import WakeHub

T = TypeVar("T")


class RunSteps(Protocol):
    """Runs an operation as one step of the store, such as `SqlStore._write` and `SqlStore._read`."""

    async def __call__(self, operation: Callable[[Step], T], /) -> T: ...


class SqlRegistry:
    """Keeps the contract of `stores.registry.Registry`.

    A deleted record leaves a tombstone with the version of its deletion, until there are too many tombstones.
    """

    def __init__(self, write: RunSteps, read: RunSteps, hub: WakeHub) -> None:
        self._write, self._read, self._hub = write, read, hub

    async def get(self, kind: str, key: str) -> Record | None:
        return await self._read(lambda step: _get(step, kind, key))

    async def put(self, kind: str, key: str, value: bytes, *, if_version: int | None = None) -> Record:
        return await self._write(lambda step: _put(step, kind, key, value, if_version))

    async def delete(self, kind: str, key: str, *, if_version: int | None = None) -> bool:
        return await self._write(lambda step: _delete(step, kind, key, if_version))

    async def list_records(self, kind: str) -> Sequence[Record]:
        rows = await self._read(lambda step: step.fetch("list_records", kind=kind))
        return [Record(kind, *row) for row in rows]

    async def changes(self, since: int = 0) -> Changes:
        return await self._read(lambda step: _changes(step, since))

    def watch(self) -> AsyncIterator[int]:
        return self._hub.registry_versions()

    async def increment(self, name: str, by: int = 1, *, life_ms: int = 0) -> Counter:
        return await self._write(lambda step: _increment(step, name, by, life_ms))

    async def counters(self, prefix: str = "") -> Mapping[str, int]:
        return await self._read(lambda step: _counters(step, prefix))


def _get(step: Step, kind: str, key: str) -> Record | None:
    row = step.fetch_one("get_record", kind=kind, key=key)
    return None if row is None or row[0] is None else Record(kind, key, *row)


def _put(step: Step, kind: str, key: str, value: bytes, if_version: int | None) -> Record:
    step.lock_registry()
    _require(_get(step, kind, key), kind, key, if_version)
    return Record(kind, key, value, _write(step, kind, key, value))


def _delete(step: Step, kind: str, key: str, if_version: int | None) -> bool:
    step.lock_registry()
    record = _get(step, kind, key)
    _require(record, kind, key, if_version)
    if record is not None:
        _write(step, kind, key, None)
        for (version,) in step.fetch("delete_old_tombstones", keep=MAX_TOMBSTONES):
            step.execute("forget_version", version=version)
    return record is not None


def _require(record: Record | None, kind: str, key: str, if_version: int | None) -> None:
    present = record.version if record else 0
    if if_version not in (None, present):
        raise VersionConflict.of(kind, key, present, if_version)


def _write(step: Step, kind: str, key: str, value: bytes | None) -> int:
    (version,) = step.fetch_one("next_version")
    step.execute("put_record", kind=kind, key=key, value=value, version=version)
    step.registry_version = version
    return version


def _changes(step: Step, since: int) -> Changes:
    (version,) = step.fetch_one("registry_version")
    (forgotten,) = step.fetch_one("forgotten_version")
    if since < forgotten:
        rows = step.fetch("records_since", since=0)
        return Changes(version, [Record(*row) for row in rows if row[2] is not None], [], is_complete=True)
    rows = step.fetch("records_since", since=since)
    records = [Record(*row) for row in rows if row[2] is not None]
    return Changes(version, records, [(kind, key) for kind, key, value, _ in rows if value is None])


def _increment(step: Step, name: str, by: int, life_ms: int) -> Counter:
    if by != 0:
        step.lock_counter(name)
    value, expires_at = step.fetch_one("get_counter", name=name) or (0, -1)
    if expires_at != 0 and expires_at <= step.now:
        if by == 0:
            return Counter(0)
        value, expires_at = 0, step.now + life_ms if life_ms else 0
    if by != 0:
        step.execute("put_counter", name=name, value=value + by, expires_at=expires_at)
    return Counter(value + by, max(expires_at - step.now, 0) if expires_at else 0)


def _counters(step: Step, prefix: str) -> dict[str, int]:
    """`beyond` sorts after every name that starts with the prefix: no name contains the last code point."""
    rows = step.fetch("counters_from", prefix=prefix, beyond=prefix + "\U0010ffff", now=step.now)
    return {name: value for name, value in rows if name.startswith(prefix)}

"""The registry in the store's own file: its writes are steps of the same writer, its news travel with the wakes."""

from collections.abc import AsyncIterator, Mapping, Sequence

from duetime.errors import VersionConflict
from duetime.stores.registry import MAX_TOMBSTONES, Changes, Counter, Record
from duetime.stores.sqlite.connection import QUERIES
from duetime.stores.sqlite.rows import execute, fetch, fetch_one
from duetime.stores.sqlite.threads import ReaderThread, Step, WriterThread
from duetime.stores.sqlite.wake import WakeHub


class SqliteRegistry:
    """Keeps the contract of `stores.registry.Registry`. A deleted record leaves a tombstone with its last version,
    until there are too many of them.
    """

    def __init__(self, writer: WriterThread, reader: ReaderThread, hub: WakeHub) -> None:
        self._writer, self._reader, self._hub = writer, reader, hub

    async def get(self, kind: str, key: str) -> Record | None:
        return await self._reader.run(lambda step: _get(step, kind, key))

    async def put(self, kind: str, key: str, value: bytes, *, if_version: int | None = None) -> Record:
        return await self._writer.run(lambda step: _put(step, kind, key, value, if_version))

    async def delete(self, kind: str, key: str, *, if_version: int | None = None) -> bool:
        return await self._writer.run(lambda step: _delete(step, kind, key, if_version))

    async def list_records(self, kind: str) -> Sequence[Record]:
        rows = await self._reader.run(lambda step: fetch(step, "list_records", kind=kind))
        return [Record(kind, *row) for row in rows]

    async def changes(self, since: int = 0) -> Changes:
        return await self._reader.run(lambda step: _changes(step, since))

    def watch(self) -> AsyncIterator[int]:
        return self._hub.registry_versions()

    async def increment(self, name: str, by: int = 1, *, life_ms: int = 0) -> Counter:
        return await self._writer.run(lambda step: _increment(step, name, by, life_ms))

    async def counters(self, prefix: str = "") -> Mapping[str, int]:
        return await self._reader.run(lambda step: _counters(step, prefix))


def _get(step: Step, kind: str, key: str) -> Record | None:
    row = fetch_one(step, "get_record", kind=kind, key=key)
    return None if row is None or row[0] is None else Record(kind, key, *row)


def _put(step: Step, kind: str, key: str, value: bytes, if_version: int | None) -> Record:
    _require(_get(step, kind, key), kind, key, if_version)
    return Record(kind, key, value, _write(step, kind, key, value))


def _delete(step: Step, kind: str, key: str, if_version: int | None) -> bool:
    record = _get(step, kind, key)
    _require(record, kind, key, if_version)
    if record is not None:
        _write(step, kind, key, None)
        for (version,) in fetch(step, "delete_old_tombstones", keep=MAX_TOMBSTONES):
            execute(step, "forget_version", version=version)
    return record is not None


def _require(record: Record | None, kind: str, key: str, if_version: int | None) -> None:
    present = record.version if record else 0
    if if_version not in (None, present):
        raise VersionConflict.of(kind, key, present, if_version)


def _write(step: Step, kind: str, key: str, value: bytes | None) -> int:
    (version,) = fetch_one(step, "next_version")
    execute(step, "put_record", kind=kind, key=key, value=value, version=version)
    step.registry_version = version
    return version


def _changes(step: Step, since: int) -> Changes:
    _, _, version = fetch_one(step, "get_meta")
    (forgotten,) = fetch_one(step, "forgotten_version")
    if since < forgotten:
        rows = fetch(step, "records_since", since=0)
        return Changes(version, [Record(*row) for row in rows if row[2] is not None], [], whole=True)
    rows = fetch(step, "records_since", since=since)
    records = [Record(*row) for row in rows if row[2] is not None]
    return Changes(version, records, [(kind, key) for kind, key, value, _ in rows if value is None])


def _increment(step: Step, name: str, by: int, life_ms: int) -> Counter:
    value, expires_at = fetch_one(step, "get_counter", name=name) or (0, -1)
    if expires_at != 0 and expires_at <= step.now:
        if by == 0:
            return Counter(0)
        value, expires_at = 0, step.now + life_ms if life_ms else 0
    if by != 0:
        execute(step, "put_counter", name=name, value=value + by, expires_at=expires_at)
    return Counter(value + by, max(expires_at - step.now, 0) if expires_at else 0)


def _counters(step: Step, prefix: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in step.connection.execute(QUERIES["counters_from"], {"prefix": prefix, "now": step.now}):
        if not name.startswith(prefix):
            break
        found[name] = value
    return found

"""The registry of a group: it is the first member's, and every other member keeps a copy of it.

A write goes to the first member, and then to the copies that can be reached; each process brings the copies up to date
once a second. While the first member is down, records are read from the newest copy. Then a write with a condition, a
deletion or a counter is refused, because only one member can decide. A write without a condition is kept with the
copies, and applied when the first member is back, unless the record has changed there. A first member that has lost
its data, or is a new one, gets the records from the newest copy.

On the other members, `group-copy:<kind>` holds the records, each with its version before its value; `group-copy` says
how far the copy has come; `group-pending` names the records that the first member does not have yet.
"""

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from struct import Struct as Packer
from uuid import uuid4

import msgspec
from msgspec import Struct

from duetime.model.errors import StoreUnavailable, VersionConflict
from duetime.stores.group.member import PROBLEMS, Member, MemberProblem
from duetime.stores.registry import GROUP_COPY, Changes, Counter, Record, Registry

STATE, ORIGIN = "state", "origin"
PENDING = "group-pending"
_OWN = (GROUP_COPY, PENDING, "group")
"""Kinds that are about one member. `group` are the layouts of `members.py`."""
_COPY = f"{GROUP_COPY}:"
_VERSION = Packer(">Q")
BUSY_S = 30.0
"""A process that has not finished a copy by then has died."""
FROM_COPY = 1 << 40
"""Added to the versions of a copy, once for each place of its member, so that no caller takes it for the original."""


class CopyState(Struct, frozen=True):
    """A copy holds the registry `origin` up to `version`. Some process is writing it until `busy_until` (epoch s)."""

    origin: str = ""
    version: int = 0
    busy_until: float = 0.0


class MemberRegistry:
    """The registry of one member. Raises a MemberProblem with the member's name."""

    def __init__(self, member: Member) -> None:
        self._member = member

    async def get(self, kind: str, key: str) -> Record | None:
        return await self._member.call(lambda store: store.registry.get(kind, key))

    async def put(self, kind: str, key: str, value: bytes, *, if_version: int | None = None) -> Record:
        return await self._member.call(lambda store: store.registry.put(kind, key, value, if_version=if_version))

    async def delete(self, kind: str, key: str, *, if_version: int | None = None) -> bool:
        return await self._member.call(lambda store: store.registry.delete(kind, key, if_version=if_version))

    async def list_records(self, kind: str) -> Sequence[Record]:
        return await self._member.call(lambda store: store.registry.list_records(kind))

    async def changes(self, since: int = 0) -> Changes:
        return await self._member.call(lambda store: store.registry.changes(since))

    async def watch(self) -> AsyncIterator[int]:
        async for version in self._member.store.registry.watch():
            yield version

    async def increment(self, name: str, by: int = 1, *, life_ms: int = 0) -> Counter:
        return await self._member.call(lambda store: store.registry.increment(name, by, life_ms=life_ms))

    async def counters(self, prefix: str = "") -> Mapping[str, int]:
        return await self._member.call(lambda store: store.registry.counters(prefix))


class GroupRegistry:
    """Keeps the contract of `stores.registry.Registry`, with the limits above."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._members = list(members)
        self._first = MemberRegistry(self._members[0])

    async def get(self, kind: str, key: str) -> Record | None:
        try:
            return await self._first.get(kind, key)
        except PROBLEMS as problem:
            _, copy = await self._copy(problem)
            record = await copy.get(_COPY + kind, key)
            return _original(record) if record else None

    async def list_records(self, kind: str) -> Sequence[Record]:
        try:
            return await self._first.list_records(kind)
        except PROBLEMS as problem:
            _, copy = await self._copy(problem)
            return [_original(record) for record in await copy.list_records(_COPY + kind)]

    async def changes(self, since: int = 0) -> Changes:
        try:
            if since < FROM_COPY:
                return await self._first.changes(since)
            return msgspec.structs.replace(await self._first.changes(0), deleted=(), is_complete=True)
        except PROBLEMS as problem:
            place, copy = await self._copy(problem)
            base = place * FROM_COPY
            seen = since - base
            if 0 < seen < FROM_COPY and (found := await copy.changes(seen)).version == seen:
                return Changes(since, (), ())
            found = await copy.changes(0)
            return Changes(base + found.version, _originals(found.records), (), is_complete=True)

    async def watch(self) -> AsyncIterator[int]:
        up = next((member for member in self._members if member.is_up), self._members[0])
        async for version in MemberRegistry(up).watch():
            yield version

    async def put(self, kind: str, key: str, value: bytes, *, if_version: int | None = None) -> Record:
        try:
            record = await self._first.put(kind, key, value, if_version=if_version)
        except StoreUnavailable as problem:
            if if_version is not None:
                raise
            return await self._put_later(kind, key, value, problem)
        await self.refresh_copies()
        return record

    async def delete(self, kind: str, key: str, *, if_version: int | None = None) -> bool:
        was_there = await self._first.delete(kind, key, if_version=if_version)
        await self.refresh_copies()
        return was_there

    async def increment(self, name: str, by: int = 1, *, life_ms: int = 0) -> Counter:
        return await self._first.increment(name, by, life_ms=life_ms)

    async def counters(self, prefix: str = "") -> Mapping[str, int]:
        return await self._first.counters(prefix)

    # --- copies

    async def restore_first(self, first: Registry) -> None:
        """Give a first member without the group's records those of the newest copy."""
        if await first.get(GROUP_COPY, ORIGIN):
            return
        if found := await _newest([(0, first), *self._copies()]):
            for record in _originals((await found[1].changes(0)).records):
                with suppress(VersionConflict):
                    await first.put(record.kind, record.key, record.value, if_version=0)
        with suppress(VersionConflict):
            await first.put(GROUP_COPY, ORIGIN, uuid4().hex.encode(), if_version=0)

    async def refresh_copies(self) -> None:
        """Bring all copies up to date that can be reached."""
        for _, copy in self._copies():
            with suppress(*PROBLEMS):
                await _refresh(self._first, copy)

    def _copies(self) -> list[tuple[int, Registry]]:
        """The places of the other members, and their registries."""
        return [(place, MemberRegistry(member)) for place, member in enumerate(self._members) if place]

    async def _copy(self, problem: MemberProblem) -> tuple[int, Registry]:
        """The newest copy and its place. Raises the problem if there is none."""
        if found := await _newest(self._copies()):
            return found
        raise problem

    async def _put_later(self, kind: str, key: str, value: bytes, problem: StoreUnavailable) -> Record:
        """Write the record to all copies that can be reached. Raises the problem if there is none."""
        _, newest = await self._copy(problem)
        record = await newest.get(_COPY + kind, key)
        later = Record(kind, key, value, _original(record).version if record else 0)
        for _, copy in self._copies():
            with suppress(*PROBLEMS):
                await copy.put(PENDING, f"{kind}/{key}", b"")
                await copy.put(_COPY + kind, key, _VERSION.pack(later.version) + value)
        if await newest.get(PENDING, f"{kind}/{key}") is None:
            raise problem
        return later


async def _newest(copies: Iterable[tuple[int, Registry]]) -> tuple[int, Registry] | None:
    newest, found = -1, None
    for place, copy in copies:
        with suppress(*PROBLEMS):
            record = await copy.get(GROUP_COPY, STATE)
            if record and _state(record).version > newest:
                newest, found = _state(record).version, (place, copy)
    return found


async def _refresh(first: Registry, copy: Registry) -> None:
    origin, record = await first.get(GROUP_COPY, ORIGIN), await copy.get(GROUP_COPY, STATE)
    state = _state(record) if record else CopyState()
    if origin is None or 0 < state.busy_until - time.time() <= BUSY_S:  # a later time is one of a clock that was ahead
        return
    name = origin.value.decode()
    since = state.version if state.origin == name else 0
    pending = await copy.list_records(PENDING)
    if since and not pending and (await first.changes(since)).version == since:
        return
    try:
        busy = msgspec.structs.replace(state, busy_until=time.time() + BUSY_S)
        held = await copy.put(GROUP_COPY, STATE, msgspec.json.encode(busy), if_version=record.version if record else 0)
        for one in pending:
            await _apply(first, copy, one)
        changes = await first.changes(since)
        if changes.version < since or not since:
            changes = msgspec.structs.replace(await first.changes(0), is_complete=True)
        originals = [one for one in changes.records if not one.kind.startswith(_OWN)]
        gone = set(changes.deleted)
        if changes.is_complete:
            gone = {(one.kind, one.key) for one in _originals((await copy.changes(0)).records)}
            gone -= {(one.kind, one.key) for one in originals}
        for one in originals:
            await copy.put(_COPY + one.kind, one.key, _VERSION.pack(one.version) + one.value)
        for kind, key in gone:
            await copy.delete(_COPY + kind, key)
        done = CopyState(name, changes.version)
        await copy.put(GROUP_COPY, STATE, msgspec.json.encode(done), if_version=held.version)
    except VersionConflict:
        pass  # another process copies


async def _apply(first: Registry, copy: Registry, pending: Record) -> None:
    kind, _, key = pending.key.partition("/")
    if record := await copy.get(_COPY + kind, key):
        later = _original(record)
        with suppress(VersionConflict):  # it was applied already, or the first member knows better
            await first.put(kind, key, later.value, if_version=later.version)
    await copy.delete(PENDING, pending.key)


def _state(record: Record) -> CopyState:
    return msgspec.json.decode(record.value, type=CopyState)


def _original(record: Record) -> Record:
    version = _VERSION.unpack_from(record.value)[0]
    return Record(record.kind.removeprefix(_COPY), record.key, record.value[_VERSION.size :], version)


def _originals(records: Iterable[Record]) -> list[Record]:
    return [_original(record) for record in records if record.kind.startswith(_COPY)]

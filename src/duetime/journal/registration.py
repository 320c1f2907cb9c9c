"""The records in a pool's registry about its journal: when the journal began, and which programs are its nodes.

Audit and reconcile cover all events after the pool's journal began. Every engine that opens from then on journals,
unless its journal is off.

Every program whose engine changes jobs is a node and registers before its first change. A node with a journal signs off
with the number of its last entry. So a reader knows which nodes exist before any of their entries has arrived, and can
distinguish a complete journal from one of which a part is missing. A node without a journal renews its record, and
removes it when its engine stops: as long as it may be running, entries of it are missing from the pool's journal.
Living nodes with a journal remember the records of all nodes, and write them again into a store that was wiped.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from duetime.duties import Rounds, run_duty
from duetime.model.clock import rfc3339
from duetime.model.errors import InvalidSettings, VersionConflict
from duetime.model.ids import IdMaker
from duetime.stores.base import Store
from duetime.stores.registry import Record

log = logging.getLogger("duetime.journal")

POOL_KIND, POOL_KEY = "journal", "pool"
NODE_KIND = "journal_node"

RENEW_EVERY_S = 20.0
STALE_MS = 60_000
"""A node without a journal that has not renewed its record for this long was killed."""


# --- the pool


class Journaling(Struct, frozen=True):
    """The record of a pool that journals: since when, in the store's time, and under which name."""

    since: int
    pool: str


async def find_journaling(store: Store) -> Journaling | None:
    """The pool's record; None if the pool does not journal."""
    record = await store.registry.get(POOL_KIND, POOL_KEY)
    return msgspec.json.decode(record.value, type=Journaling) if record else None


async def begin_journaling(store: Store, pool: str) -> Journaling:
    """Make the pool one that journals, if it is not yet; returns the record. Idempotent.

    A warning lists the running programs without a journal, because their entries are missing.
    """
    while (found := await find_journaling(store)) is None:
        await put_journaling(store, Journaling((await store.ping()).now, pool))
    if others := await nodes_without_journal(store, found.since):
        programs = [f"{name} (process {node.pid} on {node.host})" for name, node in sorted(others.items())]
        log.warning("programs_without_journal", extra={"pool": pool, "programs": programs})
    return found


async def put_journaling(store: Store, journaling: Journaling) -> None:
    """Write the record if there is none."""
    if await find_journaling(store) is None:
        with suppress(VersionConflict):  # another process was quicker
            await store.registry.put(POOL_KIND, POOL_KEY, msgspec.json.encode(journaling), if_version=0)


async def end_journaling(store: Store) -> bool:
    """End the pool's journaling, so that engines may start without a journal. False if it did not journal."""
    await forget(store, [name for name, node in (await registered(store)).items() if node.journal])
    return await store.registry.delete(POOL_KIND, POOL_KEY)


def refusal_without_journal(journaling: Journaling) -> InvalidSettings:
    """The error for a load without a journal into this pool."""
    return InvalidSettings(
        f"the pool {journaling.pool!r} has journaled since {rfc3339(journaling.since)}, and what bypasses the journal "
        "cannot be audited or brought back: name a folder with --journal, DUETIME_JOURNAL, journal in duetime.toml or "
        "journal= of the client; or end the journal of the whole pool with `duetime journal end`"
    )


# --- its nodes


class RegisteredNode(Struct, frozen=True, omit_defaults=True):
    """`at` is the store's time at which the node registered; all its events are later.

    `last` is the seq of its last entry that may be about this pool; None while the node may still write some. An
    `abandoned` node, such as a load that has to begin anew, ended half way, and its missing entries were promised to
    nobody. `host`, `pid` and `folder` say who the node is and where it writes; they are empty for loads. A node without
    a journal has `journal` False, and `seen_at` is when it last renewed its record.
    """

    at: int
    last: int | None = None
    abandoned: bool = False
    host: str = ""
    folder: str = ""
    pid: int = 0
    journal: bool = True
    seen_at: int = 0

    def lacks_entries(self, since: int) -> bool:
        """Returns whether the node has no journal and may have changed jobs after the pool's began (`since`)."""
        return not self.journal and self.seen_at >= since - STALE_MS


async def register(store: Store, node: str, folder: Path | None = None) -> None:
    """Register a node before it writes entries about the store's pool. Idempotent. A node that signed off is
    registered again. `folder` is the journal's folder on this host.
    """
    record = await store.registry.get(NODE_KIND, node)
    if record is None or _decode(record).last is not None:
        at = _decode(record).at if record else (await store.ping()).now
        made = RegisteredNode(at)
        if folder:
            made = RegisteredNode(at, host=socket.gethostname(), folder=str(folder), pid=os.getpid())
        await store.registry.put(NODE_KIND, node, msgspec.json.encode(made))


async def sign_off(store: Store, node: str, last: int) -> None:
    """Record that the node writes no more about the store's pool, and that its entries up to `last` are written."""
    await _end(store, node, last, abandoned=False)


async def abandon(store: Store, node: str) -> None:
    """Record that the node has stopped writing, and that readers must not wait for its missing entries."""
    await _end(store, node, None, abandoned=True)


async def _end(store: Store, node: str, last: int | None, *, abandoned: bool) -> None:
    record = await store.registry.get(NODE_KIND, node)
    known = _decode(record) if record else RegisteredNode((await store.ping()).now)
    ended = msgspec.structs.replace(known, last=last, abandoned=abandoned)
    await store.registry.put(NODE_KIND, node, msgspec.json.encode(ended))


async def registered(store: Store) -> dict[str, RegisteredNode]:
    """All nodes by name."""
    return {record.key: _decode(record) for record in await store.registry.list_records(NODE_KIND)}


async def nodes_without_journal(store: Store, since: int) -> dict[str, RegisteredNode]:
    """The running programs without a journal. Removes the records of those that were killed before `since`, the store's
    time at which the pool's journal began: they can owe it no entries.
    """
    nodes = {name: node for name, node in (await registered(store)).items() if not node.journal}
    await forget(store, [name for name, node in nodes.items() if not node.lacks_entries(since)])
    return {name: node for name, node in nodes.items() if node.lacks_entries(since)}


async def forget(store: Store, nodes: Iterable[str]) -> None:
    """Remove the records of nodes of which no entry can be missing any more."""
    for node in nodes:
        await store.registry.delete(NODE_KIND, node)


def _decode(record: Record) -> RegisteredNode:
    return msgspec.json.decode(record.value, type=RegisteredNode)


class NodeRegistration:
    """One engine's registration with one pool, and its copy of the records of all nodes. Without a name, it is the
    registration of an engine without a journal.
    """

    def __init__(self, store: Store, node: str = "", folder: Path | None = None) -> None:
        self._store, self._folder = store, folder
        self._has_journal = bool(node)
        self._node = node or f"{socket.gethostname()}-{os.getpid()}-{IdMaker().make()}"
        self._copied: dict[str, bytes] = {}
        self._own = b""
        self._version = 0
        self._began_at = 0
        self.is_made = False
        self._has_ended = False
        self._making = asyncio.Lock()

    async def make(self) -> None:
        """Register once. Raises StoreUnavailable; then the node must not write."""
        async with self._making:
            if self.is_made or self._has_ended:
                return
            if self._has_journal:
                await register(self._store, self._node, self._folder)
                await self._copy()
                self._own = self._copied[self._node]
            else:
                await self._put_without_journal()
            self.is_made = True

    async def _put_without_journal(self) -> None:
        now = (await self._store.ping()).now
        self._began_at = self._began_at or now
        host, pid = socket.gethostname(), os.getpid()
        record = RegisteredNode(self._began_at, host=host, pid=pid, journal=False, seen_at=now)
        await self._store.registry.put(NODE_KIND, self._node, msgspec.json.encode(record))

    async def keep_renewed(self) -> None:
        """Renew the record of an engine without a journal until cancelled."""

        async def renew() -> float:
            await self._put_without_journal()
            return RENEW_EVERY_S

        await run_duty(Rounds("node renewal", renew), first_after_s=RENEW_EVERY_S, survives_bugs=True)

    async def withdraw(self) -> None:
        """The engine without a journal has stopped: remove its record."""
        async with self._making:
            was_made, self.is_made, self._has_ended = self.is_made, False, True
            if was_made:
                await self._store.registry.delete(NODE_KIND, self._node)

    async def renew(self) -> None:
        """Copy the records of all nodes. If the own one is gone because the pool's journal was ended, write it again
        when another journal has begun.
        """
        if not self.is_made:
            return
        await self._copy()
        if self._node not in self._copied and await find_journaling(self._store) is not None:
            with suppress(VersionConflict):
                await self._store.registry.put(NODE_KIND, self._node, self._own, if_version=0)

    async def restore(self) -> None:
        """Write the copied records again into a store that was wiped."""
        for node, value in self._copied.items():
            with suppress(VersionConflict):  # another process was quicker
                await self._store.registry.put(NODE_KIND, node, value, if_version=0)
        self._version = 0

    async def end(self, last: int) -> None:
        async with self._making:
            self.is_made, self._has_ended = False, True
            await sign_off(self._store, self._node, last)

    async def _copy(self) -> None:
        changes = await self._store.registry.changes(self._version)
        if changes.version < self._version:
            return  # the store was wiped a moment ago: the copy is still needed
        if changes.is_complete:
            self._copied.clear()
        for kind, node in changes.deleted:
            if kind == NODE_KIND:
                self._copied.pop(node, None)
        self._copied |= {record.key: record.value for record in changes.records if record.kind == NODE_KIND}
        self._version = changes.version

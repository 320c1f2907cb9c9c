"""The nodes of a pool's journal, as records in the pool's registry.

A node registers before its first event and signs off with its last seq. So a reader knows which nodes exist before
any of their entries has arrived, and can tell a complete journal from one of which a part is still to come. Living
nodes remember these records, and write them again into a store that was wiped.
"""

import asyncio
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from duetime.model.errors import VersionConflict
from duetime.stores.base import Store
from duetime.stores.registry import Record

KIND = "journal_node"


class RegisteredNode(Struct, frozen=True, omit_defaults=True):
    """`at` is the store's time at which the node registered; all its events are later.

    `last` is the seq of its last entry that may be about this pool; None while the node may still write some. An
    `abandoned` node, such as a load that has to begin anew, ended half way, and its missing entries were promised to
    nobody. `host` and `folder` say where the node writes; both are empty for nodes of earlier releases and of loads.
    """

    at: int
    last: int | None = None
    abandoned: bool = False
    host: str = ""
    folder: str = ""


async def register(store: Store, node: str, folder: Path | None = None) -> None:
    """Register a node before it writes entries about the store's pool. Idempotent. A node that signed off is
    registered again. `folder` is the journal's folder on this host.
    """
    record = await store.registry.get(KIND, node)
    if record is None or _decode(record).last is not None:
        at = _decode(record).at if record else (await store.ping()).now
        host, where = (socket.gethostname(), str(folder)) if folder else ("", "")
        await store.registry.put(KIND, node, msgspec.json.encode(RegisteredNode(at, host=host, folder=where)))


async def sign_off(store: Store, node: str, last: int) -> None:
    """Record that the node writes no more about the store's pool, and that its entries up to `last` are written."""
    await _end(store, node, last, abandoned=False)


async def abandon(store: Store, node: str) -> None:
    """Record that the node writes no more, and that nobody should wait for its missing entries."""
    await _end(store, node, None, abandoned=True)


async def _end(store: Store, node: str, last: int | None, *, abandoned: bool) -> None:
    record = await store.registry.get(KIND, node)
    known = _decode(record) if record else RegisteredNode((await store.ping()).now)
    ended = msgspec.structs.replace(known, last=last, abandoned=abandoned)
    await store.registry.put(KIND, node, msgspec.json.encode(ended))


async def registered(store: Store) -> dict[str, RegisteredNode]:
    """All nodes by name."""
    return {record.key: _decode(record) for record in await store.registry.list_records(KIND)}


async def forget(store: Store, nodes: Iterable[str]) -> None:
    """Remove the records of nodes of which no entry can be missing any more."""
    for node in nodes:
        await store.registry.delete(KIND, node)


def _decode(record: Record) -> RegisteredNode:
    return msgspec.json.decode(record.value, type=RegisteredNode)


class NodeRegistration:
    """One process's registration with one pool, and its copy of the records of all nodes."""

    def __init__(self, store: Store, node: str, folder: Path | None = None) -> None:
        self._store, self._node, self._folder = store, node, folder
        self._known: dict[str, bytes] = {}
        self._version = 0
        self.is_made = False
        self._has_ended = False
        self._making = asyncio.Lock()

    async def make(self) -> None:
        """Register once. Raises StoreUnavailable; then the node must not write."""
        async with self._making:
            if not (self.is_made or self._has_ended):
                await register(self._store, self._node, self._folder)
                await self._learn()
                self.is_made = True

    async def renew(self) -> None:
        """Copy the records of all nodes, or write the copied ones again if the store was wiped."""
        if not self.is_made:
            return
        if await self._store.registry.get(KIND, self._node) is not None:
            await self._learn()
            return
        # The own record comes last: as long as it is missing, a renewal that broke off is begun again.
        for node, value in sorted(self._known.items(), key=lambda known: known[0] == self._node):
            with suppress(VersionConflict):  # somebody else was quicker
                await self._store.registry.put(KIND, node, value, if_version=0)
        self._version = 0

    async def end(self, last: int) -> None:
        async with self._making:
            self.is_made, self._has_ended = False, True
            await sign_off(self._store, self._node, last)

    async def _learn(self) -> None:
        changes = await self._store.registry.changes(self._version)
        if changes.whole:
            self._known.clear()
        for kind, node in changes.deleted:
            if kind == KIND:
                self._known.pop(node, None)
        self._known |= {record.key: record.value for record in changes.records if record.kind == KIND}
        self._version = changes.version

"""One move from a store, or one restore into it, at a time: two would take each other's copies for outdated ones.

The lock is a record in the store's registry. Its version rises while its holder works; one that stays the same for
LOCK_S belongs to a process that was killed, and is taken over. A holder that was too slow notices that at its next
`check`, before it changes anything else.
"""

import asyncio
import os
import socket
import time
from contextlib import suppress
from typing import Self

from duetime.model.errors import Conflict, StoreUnavailable, VersionConflict
from duetime.stores.registry import Registry
from duetime.transfer.registry_records import TRANSFER_LOCK

LOCK_S = 3.0
KEY = "current"


class TransferLock:
    """An async context manager. Raises Conflict if another process holds the lock."""

    def __init__(self, registry: Registry, what: str) -> None:
        self._registry, self._what = registry, what
        self._version, self._checked_at = 0, 0.0

    async def __aenter__(self) -> Self:
        began = time.monotonic()
        first = record = await self._registry.get(TRANSFER_LOCK, KEY)
        while record and time.monotonic() - began < LOCK_S:
            await asyncio.sleep(LOCK_S / 20)
            record = await self._registry.get(TRANSFER_LOCK, KEY)
            if first and record and record.version != first.version:
                raise Conflict(f"another {self._what} of this store is running: {record.value.decode()}")
        await self._write(record.version if record else 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(StoreUnavailable, VersionConflict):  # then the next process waits for LOCK_S
            await self._registry.delete(TRANSFER_LOCK, KEY, if_version=self._version)

    async def check(self) -> None:
        """Keep the lock. Raises Conflict if another process has taken it over."""
        if time.monotonic() - self._checked_at > LOCK_S / 3:
            await self._write(self._version)

    async def _write(self, version: int) -> None:
        holder = f"{self._what} by process {os.getpid()} on {socket.gethostname()}".encode()
        checked_at = time.monotonic()
        try:
            record = await self._registry.put(TRANSFER_LOCK, KEY, holder, if_version=version)
        except VersionConflict:
            raise Conflict(f"another {self._what} of this store has taken over: only one may run at a time") from None
        self._version, self._checked_at = record.version, checked_at

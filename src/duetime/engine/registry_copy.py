"""A local copy of the registry's records, for code that reads them with every request.

The copy follows the registry's announcements, and also reads the registry every second, in case an announcement was
lost. So a change by any process arrives here within milliseconds, and within a second at the latest. After an outage
the reader of the copy decides by its age whether it is recent enough.
"""

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from duetime.duties import Rounds, run_duty
from duetime.model.errors import DuetimeError
from duetime.stores.registry import Record, Registry

log = logging.getLogger("duetime.registry")

CHECK_EVERY_S = 1.0
RECONNECT_S = 0.2


class RegistryCopy:
    """An async context manager: inside it the copy is kept up to date.

    `registry` is called before every read, because the store behind it may be closed and opened again. `generations`
    counts the changes of each kind of record; unlike a version it never goes down, also when the registry is wiped.
    `seen_at` is when the copy was last known to be complete, on the monotonic clock; minus infinity before the first
    read.
    """

    def __init__(self, registry: Callable[[], Registry]) -> None:
        self._registry = registry
        self._records: dict[tuple[str, str], Record] = {}
        self._version = 0
        self.generations: defaultdict[str, int] = defaultdict(int)
        self.seen_at = -math.inf
        self._lock = asyncio.Lock()
        self._begun = self._finished = 0
        self._error: DuetimeError | None = None
        self._followers: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()

    async def __aenter__(self) -> "RegistryCopy":
        try:
            await self.refresh()
        except DuetimeError as error:
            log.warning("registry_unavailable", extra={"error": error.message})
        # If a loop ended, the copy would get no more changes.
        duties = Rounds("registry announcements", self._follow), Rounds("registry copy", self._check)
        self._followers = [asyncio.create_task(run_duty(duty, survives_bugs=True)) for duty in duties]
        return self

    async def __aexit__(self, *_: object) -> None:
        for follower in self._followers:
            follower.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)

    def get(self, kind: str, key: str) -> Record | None:
        return self._records.get((kind, key))

    def list_records(self, kind: str, prefix: str = "") -> Sequence[Record]:
        """Sorted by key."""
        found = [record for (of, key), record in self._records.items() if of == kind and key.startswith(prefix)]
        return sorted(found, key=lambda record: record.key)

    async def changed(self, since: int) -> int:
        """Wait until the version of the copy is not `since`; returns the new version."""
        while self._version == since:
            await self._changed.wait()
        return self._version

    async def refresh(self) -> None:
        """Wait for a read of the registry that begins after this call; concurrent callers share one.

        Raises the error of that read.
        """
        wanted = self._begun + 1
        async with self._lock:
            if self._finished < wanted:
                await self._read()
            if self._error:
                raise self._error

    async def _read(self) -> None:
        self._begun += 1
        began, seen_at = self._begun, time.monotonic()
        try:
            registry = self._registry()
            changes = await registry.changes(self._version)
            if changes.version < self._version:
                # The registry was wiped or replaced, so no record of this copy is valid any more.
                changes = msgspec.structs.replace(await registry.changes(0), is_complete=True)
        except DuetimeError as error:
            self._error = error
        else:
            changed = {record.kind for record in changes.records} | {kind for kind, _ in changes.deleted}
            if changes.is_complete:
                changed |= {kind for kind, _ in self._records}
                self._records.clear()
            for kind in changed:
                self.generations[kind] += 1
            self._records.update({(record.kind, record.key): record for record in changes.records})
            for name in changes.deleted:
                self._records.pop(name, None)
            if changes.version != self._version:
                self._changed.set()
                self._changed = asyncio.Event()
            self._version, self.seen_at, self._error = changes.version, seen_at, None
        self._finished = began

    async def _follow(self) -> float:
        async for _ in self._registry().watch():
            await self.refresh()
        return RECONNECT_S

    async def _check(self) -> float:
        await self.refresh()
        return CHECK_EVERY_S

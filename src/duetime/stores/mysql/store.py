"""The store on MariaDB and MySQL. Each step locks its queue's row first, as on PostgreSQL.

MariaDB and MySQL have no NOTIFY, so announcements are rows of a table. Each process reads the new ones every 20 ms
while a caller waits in it, and else once a second, with one seek on a connection of its own.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from duetime.model.clock import Clock
from duetime.model.errors import DuetimeError
from duetime.stores.base import Wake
from duetime.stores.mysql.connection import MysqlAddress, MysqlLink, open_connection
from duetime.stores.mysql.session import AnnouncementSession, MysqlSession
from duetime.stores.sql.server_store import ServerStore
from duetime.stores.sql.step import Step
from duetime.stores.sql.wake import Announcement, AnnouncingHub, encode_announcement

log = logging.getLogger("duetime.mysql")

POLL_ANNOUNCEMENTS_S = 0.02
KEPT = 1_000
"""How many announcements stay in the table."""
SWEEP = 100
"""After how many announcements a process deletes old ones."""
GAP_S = 2.0
"""How long polls ask for a number that was passed over: its transaction may commit after that of a higher number."""


class AnnouncementLink(MysqlLink):
    """Shares its failovers with `main`, the link of the store's steps: a replica answers polls, too."""

    def __init__(self, address: MysqlAddress, main: MysqlLink) -> None:
        super().__init__(address, None)
        self._main = main

    @property
    def failed_over_at(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._main.failed_over_at

    @failed_over_at.setter
    def failed_over_at(self, at: float) -> None:
        self._main.failed_over_at = at

    def connect(self) -> MysqlSession:
        return AnnouncementSession(open_connection(self._address), self._queries)


class MysqlWakeHub(AnnouncingHub):
    """`read_version` reads the registry's version."""

    def __init__(self, address: MysqlAddress, main: MysqlLink, read_version: Callable[[], Awaitable[int]]) -> None:
        super().__init__("mysql", AnnouncementLink(address, main), read_version)
        self._last: int | None = None
        self._missing: dict[int, float] = {}
        # Counted from anywhere, so that processes which announce only a few times delete old ones as well.
        self._posted = random.randrange(SWEEP)
        self._listening_now = asyncio.Event()

    def _post(self, step: Step, message: Announcement) -> None:
        number, increment = step.fetch_one("put_announcement", message=encode_announcement(message).decode())
        self._posted += 1
        if self._posted % SWEEP == 0:
            step.execute("delete_old_announcements", last=number - KEPT * increment)

    async def _join(self) -> None:
        if self._receiving is None:
            self._last = None
            self._listening_now.clear()
        self.keep_awake()
        await super()._join()
        await self._listening_now.wait()

    async def run_once(self) -> float:
        try:
            await self._poll_once()
        except DuetimeError:
            self._last = None  # announcements may be missed until the server answers again: then every queue is checked
            raise
        finally:
            self._listening_now.set()
        return POLL_ANNOUNCEMENTS_S

    async def _poll_once(self) -> None:
        if self._last is None:
            (self._last,) = await self._sender.run(lambda step: step.fetch_one("last_announcement"))
            self._missing = {}
            self._deliver(Wake())
            return
        asked = {"last": self._last, "missing": list(self._missing)}
        rows = await self._sender.run(lambda step: step.fetch("announcements_since", **asked))
        for number, message in rows:
            self._miss(number)
            self._receive(message)

    def _miss(self, number: int) -> None:
        """Note which numbers below this one have not been seen yet."""
        now = self._loop.time()
        self._missing.pop(number, None)
        self._missing = {other: until for other, until in self._missing.items() if until > now}
        if self._last is not None and number > self._last:
            first = max(self._last + 1, number - KEPT)
            self._missing.update(dict.fromkeys(range(first, number), now + GAP_S))
            self._last = number


class MysqlStore(ServerStore):
    """Keeps the contract of `stores.base.Store`. Belongs to the event loop that opened it; made by `open`."""

    def __init__(self, address: MysqlAddress, link: MysqlLink) -> None:
        hub = MysqlWakeHub(address, link, self._registry_version)
        super().__init__("mysql", link, address.connections, hub)

    @classmethod
    async def open(cls, url: str, *, clock: Clock | None = None) -> "MysqlStore":
        """Connect, and make or upgrade the tables. Raises StoreUnavailable, StoreDamaged, InvalidSettings."""
        address = MysqlAddress.parse(url)
        link = MysqlLink(address, clock)
        await asyncio.to_thread(link.prepare_tables)
        return cls(address, link)

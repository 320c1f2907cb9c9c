"""The PostgreSQL store. Each step locks its queue's row first; docs/decisions/023-postgresql.md says why.

Processes wake each other by NOTIFY, never in a transaction that changes jobs: a commit that notifies takes a lock of
the whole server. So announcements are sent on a connection of their own. One more connection listens. Behind a pooler
that hands out connections per transaction no notification arrives; then the engine's checks, once a second, find what
is new.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import psycopg
from psycopg import sql

from duetime.model.clock import Clock
from duetime.stores.base import Wake
from duetime.stores.postgres.connection import PostgresAddress, PostgresLink, translate
from duetime.stores.postgres.one_job import PostgresOneJob
from duetime.stores.sql.server_store import ServerStore
from duetime.stores.sql.step import Step
from duetime.stores.sql.wake import Announcement, AnnouncingHub, encode_announcement

log = logging.getLogger("duetime.postgres")

PROBE_S = 5.0
MAX_PAYLOAD = 7_500
"""Bytes of a notification; PostgreSQL takes less than 8,000."""


class PostgresWakeHub(AnnouncingHub):
    """`read_version` reads the registry's version."""

    def __init__(
        self, address: PostgresAddress, link: PostgresLink, read_version: Callable[[], Awaitable[int]]
    ) -> None:
        super().__init__("postgres", link, read_version)
        self._address = address
        self._listening_now = asyncio.Event()
        self._received_probe = asyncio.Event()
        self._has_warned = False

    def _post(self, step: Step, message: Announcement) -> None:
        payload = encode_announcement(message)
        if len(payload) > MAX_PAYLOAD:
            payload = encode_announcement(Announcement(message.sender, message.registry_version, None))
        # An answer is waited for before the commit, so that a session that was ended meanwhile is replaced.
        step.fetch_one("notify", channel=self._address.channel, payload=payload.decode())

    async def _join(self) -> None:
        if self._receiving is None:
            self._listening_now.clear()
        await super()._join()
        with suppress(TimeoutError):
            async with asyncio.timeout(PROBE_S):
                await self._listening_now.wait()

    async def run_once(self) -> float:
        try:
            async with await psycopg.AsyncConnection.connect(self._address.conninfo, autocommit=True) as connection:
                await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._address.channel)))
                self._listening_now.set()
                self._deliver(Wake())
                probe = self._start(self._probe(), "probe")
                try:
                    async for notice in connection.notifies():
                        if self._receive(notice.payload):
                            self._received_probe.set()
                finally:
                    probe.cancel()
        except psycopg.Error as error:
            raise translate(error) from error
        return 0

    async def _probe(self) -> None:
        """Warn if our own notification does not come back; behind some poolers none ever does."""
        self._received_probe.clear()
        await self._send(Announcement(self._own, 0, []))
        try:
            async with asyncio.timeout(PROBE_S):
                await self._received_probe.wait()
        except TimeoutError:
            if not self._has_warned:
                self._has_warned = True
                log.warning("postgres_notify_is_not_heard", extra={"hint": "a pooler in transaction mode?"})


class PostgresStore(ServerStore):
    """Keeps the contract of `stores.base.Store`. Belongs to the event loop that opened it; made by `open`."""

    def __init__(self, address: PostgresAddress, link: PostgresLink) -> None:
        hub = PostgresWakeHub(address, link, self._registry_version)
        super().__init__("postgres", link, address.connections, hub)
        self.one_job = self._one_job = PostgresOneJob(link, hub, self.push)

    @classmethod
    async def open(cls, url: str, *, clock: Clock | None = None) -> "PostgresStore":
        """Connect, and make or upgrade the tables. Raises StoreUnavailable, StoreDamaged, InvalidSettings."""
        address = PostgresAddress.parse(url)
        link = PostgresLink(address, clock)
        await asyncio.to_thread(link.prepare_tables)
        return cls(address, link)

    async def close(self) -> None:
        await self._one_job.close()
        await super().close()

"""How processes on one PostgreSQL wake each other: NOTIFY, never in a transaction that changes jobs.

A commit that notifies takes a lock of the whole server. So the announcements of steps are collected and sent on a
connection of their own, at most 20 times a second. One more connection listens. Behind a pooler that hands out
connections per transaction no notification arrives. Then consumers depend on the engine, which looks at the heads of
their queues every second, and watchers of the registry on the poll of its version here.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec
import psycopg
from msgspec import Struct
from psycopg import sql

from duetime.errors import DuetimeError
from duetime.names import Queue
from duetime.stores.base import Wake
from duetime.stores.postgres.connection import PostgresAddress, PostgresLink, translate
from duetime.stores.sql.connection_threads import ConnectionThreads
from duetime.stores.sql.server_store import ServerWakeHub
from duetime.stores.sql.step import Step

log = logging.getLogger("duetime.postgres")

PAUSE_S = 0.05
POLL_S = 1.0
PROBE_S = 5.0
MAX_PAYLOAD = 7_500
"""Bytes of a notification; PostgreSQL takes less than 8,000."""


class Announcement(Struct, frozen=True, array_like=True):
    """What one process tells the others. `wakes` is None for "look everywhere"."""

    sender: str
    registry_version: int
    wakes: Sequence[tuple[str, str, int]] | None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Announcement).decode


class PostgresWakeHub(ServerWakeHub):
    """`look` reads the registry's version."""

    def __init__(self, address: PostgresAddress, link: PostgresLink, look: Callable[[], Awaitable[int]]) -> None:
        super().__init__()
        self._address, self._look = address, look
        self._own = secrets.token_hex(8)
        self._outgoing: dict[Queue, int] = {}
        self._outgoing_version = 0
        self._announcer: asyncio.Task[None] | None = None
        self._sender = ConnectionThreads("duetime-postgres-announcer", link, size=1, announce=_nothing)
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._listening_now = asyncio.Event()
        self._heard_probe = asyncio.Event()
        self._has_complained = False

    # --- sending

    def announce(self, steps: Sequence[Step]) -> None:
        """Called in a thread of the store after a commit."""
        wakes = [wake for step in steps for wake in step.wakes]
        version = max((step.registry_version for step in steps), default=0)
        if wakes or version:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._take_in, wakes, version)

    def _take_in(self, wakes: Sequence[Wake], version: int) -> None:
        self._see_version(version)
        self._outgoing_version = max(self._outgoing_version, version)
        for wake in wakes:
            self._deliver(wake)
            if wake.queue is not None:
                self._outgoing[wake.queue] = min(wake.due_at, self._outgoing.get(wake.queue, wake.due_at))
        if self._announcer is None and not self._closed:
            self._announcer = self._loop.create_task(self._send_all(), name="duetime-postgres-announcer")

    async def _send_all(self) -> None:
        """Send until nothing is left. What cannot be sent is lost, and the other processes find it by polling."""
        try:
            while self._outgoing or self._outgoing_version:
                wakes = [(queue.namespace, queue.name, due_at) for queue, due_at in self._outgoing.items()]
                message = Announcement(self._own, self._outgoing_version, wakes)
                self._outgoing, self._outgoing_version = {}, 0
                await self._send(message)
                await asyncio.sleep(PAUSE_S)
        finally:
            self._announcer = None

    async def _send(self, message: Announcement) -> None:
        payload = _encode(message)
        if len(payload) > MAX_PAYLOAD:
            payload = _encode(Announcement(message.sender, message.registry_version, None))
        words = {"channel": self._address.channel, "payload": payload.decode()}
        try:
            await self._sender.run(lambda step: step.fetch_one("notify", **words))
        except DuetimeError as error:
            log.warning("postgres_wake_not_sent", extra={"error": str(error)})

    # --- hearing

    async def _join(self) -> None:
        if not self._tasks:
            self._listening_now.clear()
            self._tasks = [
                self._loop.create_task(self._listen(), name="duetime-postgres-listener"),
                self._loop.create_task(self._poll(), name="duetime-postgres-poll"),
            ]
            with suppress(TimeoutError):
                await asyncio.wait_for(self._listening_now.wait(), PROBE_S)
        self._see_version(await self._look())

    def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        self._tasks = []

    async def _listen(self) -> None:
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._address.conninfo, autocommit=True) as connection:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._address.channel)))
                    self._listening_now.set()
                    self._deliver(Wake())
                    probe = self._loop.create_task(self._probe())
                    try:
                        async for notice in connection.notifies():
                            self._hear(notice.payload)
                    finally:
                        probe.cancel()
            except psycopg.Error as error:
                log.warning("postgres_listener_lost", extra={"error": str(translate(error))})
            await asyncio.sleep(POLL_S)

    async def _probe(self) -> None:
        """Warn if our own notification does not come back; behind some poolers none ever does."""
        self._heard_probe.clear()
        await self._send(Announcement(self._own, 0, []))
        try:
            await asyncio.wait_for(self._heard_probe.wait(), PROBE_S)
        except TimeoutError:
            if not self._has_complained:
                self._has_complained = True
                log.warning("postgres_notify_is_not_heard", extra={"hint": "a pooler in transaction mode?"})

    def _hear(self, payload: str) -> None:
        try:
            news = _decode(payload)
        except msgspec.MsgspecError:
            return  # anybody may notify our channel
        if news.sender == self._own:
            self._heard_probe.set()
            return
        self._see_version(news.registry_version)
        if news.wakes is None:
            self._deliver(Wake())
        for namespace, name, due_at in news.wakes or ():
            self._deliver(Wake(Queue(namespace, name), due_at))

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            with suppress(DuetimeError):
                self._see_version(await self._look())

    async def finish(self) -> None:
        """Wait for a moment until pending announcements are sent, then close the connections."""
        if (announcer := self._announcer) is not None:
            await asyncio.wait([announcer], timeout=POLL_S)
            announcer.cancel()
        if self._ending:
            await asyncio.wait(self._ending)
        await self._sender.close()


def _nothing(steps: Sequence[Step]) -> None:
    """The steps that send announcements have none of their own."""

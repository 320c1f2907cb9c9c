"""The hubs pass wakes and versions of the registry to the listeners in this process, and to other processes.

Each dialect derives its hub, which receives what other processes announce. A hub that polls does so often only while
a caller waits. A reserve that found no job shows that, a call of `results`, and a call of `heads` with `waiting`,
which the engine makes every second for queues with waiting consumers.
"""

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from duetime.duties import run_duty
from duetime.model.backoff import Fixed
from duetime.model.clock import MAX_INSTANT, to_tick
from duetime.model.errors import NOT_JSON, DuetimeError
from duetime.model.names import Queue
from duetime.stores.base import Wake, results_wake
from duetime.stores.sql.step import Step
from duetime.stores.sql.threads import ConnectionThreads, DatabaseLink

MAX_PENDING = 10_000
AWAKE_S = 5.0
"""How long after the last such call the hub polls often."""
IDLE_POLL_S = 1.0
LISTEN_AGAIN = Fixed(1_000)
"""The pause after a listener has lost its store."""


class WakeHub(ABC):
    """Passes wakes and versions to the listeners in this process. Belongs to one event loop; idle without listeners.
    The duty that receives what other processes announce runs while there are listeners.
    """

    def __init__(self, name: str) -> None:
        self.name = f"{name} listener"
        self._loop = asyncio.get_running_loop()
        self._listeners: set[asyncio.Queue[Wake | None]] = set()
        self._listening_count = 0
        self._joining = asyncio.Lock()
        self._registry_version = 0
        self._changed = asyncio.Event()
        self._closed = False
        self._awake_until = 0.0
        self._poll_now = asyncio.Event()
        self._receiving: asyncio.Task[None] | None = None

    def keep_awake(self) -> None:
        """A caller waits, or begins to."""
        self._awake_until = self._loop.time() + AWAKE_S
        self._poll_now.set()

    @abstractmethod
    async def run_once(self) -> float:
        """Receive what other processes announce; returns how long to rest while a caller waits."""

    async def rest(self, seconds: float) -> None:
        """That long while a caller waits, else a second, or less if one begins to."""
        if self._loop.time() < self._awake_until:
            await asyncio.sleep(seconds)
            return
        self._poll_now.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(to_tick(IDLE_POLL_S, self._loop)):
                await self._poll_now.wait()

    async def _join(self) -> None:
        """Called for each new listener: receive announcements from now on. Dialects also catch up with the store."""
        if self._receiving is None:
            self._receiving = self._loop.create_task(run_duty(self, LISTEN_AGAIN), name=f"duetime-{self.name}")

    def _stop(self) -> None:
        """Called when there are no listeners any more. Idempotent."""
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    async def wakes(self) -> AsyncIterator[Wake]:
        async with self._listening():
            listener: asyncio.Queue[Wake | None] = asyncio.Queue(MAX_PENDING)
            self._listeners.add(listener)
            try:
                yield Wake()
                while not self._closed and (wake := await listener.get()) is not None:
                    yield wake
            finally:
                self._listeners.discard(listener)

    async def registry_versions(self) -> AsyncIterator[int]:
        async with self._listening():
            seen = -1
            while not self._closed:
                changed = self._changed
                if self._registry_version == seen:
                    await changed.wait()
                else:
                    seen = self._registry_version
                    yield seen

    def close(self) -> None:
        """End the iteration of every listener."""
        self._closed = True
        for listener in self._listeners:
            _offer(listener, None)
        self._changed.set()
        self._stop()

    @asynccontextmanager
    async def _listening(self) -> AsyncGenerator[None, None]:
        self._listening_count += 1
        try:
            async with self._joining:
                await self._join()
            yield
        finally:
            self._listening_count -= 1
            if self._listening_count == 0:
                self._stop()

    def _see_version(self, version: int) -> None:
        if version > self._registry_version:
            self._registry_version = version
            self._changed.set()
            self._changed = asyncio.Event()

    def _deliver(self, wake: Wake) -> None:
        for listener in self._listeners:
            _offer(listener, wake)


def _offer(listener: "asyncio.Queue[Wake | None]", wake: Wake | None) -> None:
    """A listener that does not keep up gets one "check every queue" for all that it missed."""
    if listener.full():
        while not listener.empty():
            listener.get_nowait()
        wake = wake and Wake()
    listener.put_nowait(wake)


# --- between processes of one database server
#
# The announcements of steps are collected, merged and sent at most 20 times a second, on a connection of their own and
# never in a transaction that changes jobs. An announcement may be lost: the engine checks the heads of its queues and
# its copy of the registry every second.


log = logging.getLogger("duetime.stores")

PAUSE_S = 0.05
FINISH_S = 1.0


class Announcement(Struct, frozen=True, array_like=True):
    """What one process sends to the others. `wakes` is None for "check every queue". `results` names jobs whose results
    were kept, by queue; no ids mean that there are too many to name.
    """

    sender: str
    registry_version: int
    wakes: Sequence[tuple[str, str, Annotated[int, Meta(ge=0, le=MAX_INSTANT)]]] | None
    results: Sequence[tuple[str, str, Sequence[str]]] = ()


encode_announcement = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Announcement).decode


class AnnouncingHub(WakeHub):
    """`read_version` reads the registry's version. Announcements go through `link`."""

    def __init__(self, name: str, link: DatabaseLink, read_version: Callable[[], Awaitable[int]]) -> None:
        super().__init__(name)
        self._name, self._read_version = name, read_version
        self._own = secrets.token_hex(8)
        self._outgoing: dict[Queue, int] = {}
        self._outgoing_results: dict[Queue, tuple[str, ...]] = {}
        self._outgoing_version = 0
        self._announcer: asyncio.Task[None] | None = None
        self._sender = ConnectionThreads(f"duetime-{name}-announcer", link, size=1, announce=_nothing)
        self._ending: set[asyncio.Task[None]] = set()

    @abstractmethod
    def _post(self, step: Step, message: Announcement) -> None:
        """Send a message to all processes, this one included. Called in the announcer's thread."""

    # --- sending

    def announce(self, steps: Sequence[Step]) -> None:
        """Called in a thread of the store after a commit."""
        wakes = [wake for step in steps for wake in step.wakes]
        version = max((step.registry_version for step in steps), default=0)
        if wakes or version:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.announce_in_loop, wakes, version)

    def announce_in_loop(self, wakes: Sequence[Wake], version: int) -> None:
        """As `announce`, called in the event loop."""
        self._see_version(version)
        self._outgoing_version = max(self._outgoing_version, version)
        for wake in wakes:
            self._deliver(wake)
            if wake.queue is not None and wake.results is not None:
                before = self._outgoing_results.get(wake.queue)
                # An empty tuple means all, so it stays empty.
                ids = wake.results if before is None else before and wake.results and before + wake.results
                self._outgoing_results[wake.queue] = results_wake(wake.queue, ids).results or ()
            elif wake.queue is not None:
                self._outgoing[wake.queue] = min(wake.due_at, self._outgoing.get(wake.queue, wake.due_at))
        if self._announcer is None and not self._closed:
            self._announcer = self._start(self._send_all(), "announcer")

    async def _send_all(self) -> None:
        """Send until nothing is left. What cannot be sent is lost, and the other processes find it by polling."""
        try:
            while self._outgoing or self._outgoing_results or self._outgoing_version:
                wakes = [(queue.namespace, queue.name, due_at) for queue, due_at in self._outgoing.items()]
                results = [(queue.namespace, queue.name, ids) for queue, ids in self._outgoing_results.items()]
                message = Announcement(self._own, self._outgoing_version, wakes, results)
                self._outgoing, self._outgoing_results, self._outgoing_version = {}, {}, 0
                await self._send(message)
                await asyncio.sleep(PAUSE_S)
        finally:
            self._announcer = None

    async def _send(self, message: Announcement) -> None:
        try:
            await self._sender.run(lambda step: self._post(step, message))
        except DuetimeError as error:
            log.warning(f"{self._name}_wake_not_sent", extra={"error": str(error)})

    # --- receiving

    async def _join(self) -> None:
        await super()._join()
        self._see_version(await self._read_version())

    def _start(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        return self._loop.create_task(work, name=f"duetime-{self._name}-{what}")

    def _stop(self) -> None:
        if (receiving := self._receiving) is not None:
            self._ending.add(receiving)
            receiving.add_done_callback(self._ending.discard)
        super()._stop()

    def _receive(self, payload: str) -> bool:
        """Pass on what another process has posted. Returns True if this process has."""
        try:
            announcement = _decode(payload)
        except NOT_JSON:
            return False  # any database user may post
        if announcement.sender == self._own:
            return True
        self._see_version(announcement.registry_version)
        if announcement.wakes is None:
            self._deliver(Wake())
        for namespace, name, due_at in announcement.wakes or ():
            self._deliver(Wake(Queue(namespace, name), due_at))
        for namespace, name, ids in announcement.results:
            self._deliver(Wake(Queue(namespace, name), results=tuple(ids)))
        return False

    async def finish(self) -> None:
        """Wait for a moment until pending announcements are sent, then close the connections."""
        if (announcer := self._announcer) is not None:
            await asyncio.wait([announcer], timeout=FINISH_S)
            announcer.cancel()
        if self._ending:
            await asyncio.wait(self._ending)
        await self._sender.close()


def _nothing(steps: Sequence[Step]) -> None:
    """The steps that send announcements have none of their own."""

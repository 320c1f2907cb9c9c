"""How processes on one database server tell each other what became due earlier, and that records have changed.

The announcements of steps are collected, merged and sent at most 20 times a second, on a connection of their own and
never in a transaction that changes jobs. How they travel is a matter of the dialect. An announcement may be lost: the
engine looks at the heads of its queues every second, and watchers of the registry depend on the poll of its version.
"""

import asyncio
import logging
import secrets
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from duetime.model.errors import DuetimeError
from duetime.model.names import Queue
from duetime.stores.base import Wake, results_wake
from duetime.stores.sql.step import Step
from duetime.stores.sql.threads import ConnectionThreads, DatabaseLink
from duetime.stores.sql.wake import WakeHub

log = logging.getLogger("duetime.stores")

PAUSE_S = 0.05
POLL_S = 1.0


class Announcement(Struct, frozen=True, array_like=True):
    """What one process tells the others. `wakes` is None for "look everywhere". `results` names jobs whose results were
    kept, by queue; no ids stand for too many to be named.
    """

    sender: str
    registry_version: int
    wakes: Sequence[tuple[str, str, int]] | None
    results: Sequence[tuple[str, str, Sequence[str]]] = ()


encode_announcement = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Announcement).decode


class AnnouncingHub(WakeHub):
    """`look` reads the registry's version. Announcements go through `link`."""

    def __init__(self, name: str, link: DatabaseLink, look: Callable[[], Awaitable[int]]) -> None:
        super().__init__()
        self._name, self._look = name, look
        self._own = secrets.token_hex(8)
        self._outgoing: dict[Queue, int] = {}
        self._outgoing_results: dict[Queue, tuple[str, ...]] = {}
        self._outgoing_version = 0
        self._announcer: asyncio.Task[None] | None = None
        self._sender = ConnectionThreads(f"duetime-{name}-announcer", link, size=1, announce=_nothing)
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: set[asyncio.Task[None]] = set()

    @abstractmethod
    def _post(self, step: Step, message: Announcement) -> None:
        """Send a message to all processes, this one included. Called in the announcer's thread."""

    @abstractmethod
    async def _listen(self) -> None:
        """Hand what other processes post to `_hear`, until cancelled. Begins with the `_deliver` of a `Wake()`."""

    # --- sending

    def announce(self, steps: Sequence[Step]) -> None:
        """Called in a thread of the store after a commit."""
        wakes = [wake for step in steps for wake in step.wakes]
        version = max((step.registry_version for step in steps), default=0)
        if wakes or version:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.take_in, wakes, version)

    def take_in(self, wakes: Sequence[Wake], version: int) -> None:
        """As `announce`, called in the event loop."""
        self._see_version(version)
        self._outgoing_version = max(self._outgoing_version, version)
        for wake in wakes:
            self._deliver(wake)
            if wake.queue is not None and wake.results is not None:
                before = self._outgoing_results.get(wake.queue)
                # An empty tuple stands for all, so it stays empty.
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

    # --- hearing

    async def _join(self) -> None:
        if not self._tasks:
            self._tasks = [self._start(self._listen(), "listener"), self._start(self._poll(), "poll")]
        self._see_version(await self._look())

    def _start(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        return self._loop.create_task(work, name=f"duetime-{self._name}-{what}")

    def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        self._tasks = []

    def _hear(self, payload: str) -> bool:
        """Pass on what another process has posted; True if this process has."""
        try:
            news = _decode(payload)
        except msgspec.MsgspecError:
            return False  # anybody may post
        if news.sender == self._own:
            return True
        self._see_version(news.registry_version)
        if news.wakes is None:
            self._deliver(Wake())
        for namespace, name, due_at in news.wakes or ():
            self._deliver(Wake(Queue(namespace, name), due_at))
        for namespace, name, ids in news.results:
            self._deliver(Wake(Queue(namespace, name), results=tuple(ids)))
        return False

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

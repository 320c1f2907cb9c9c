"""Load on a real server: clients that push, take and acknowledge over connections of their own, and keep books.

`lost` is whatever a client may not see: anything but an answer, a refused connection, or (where it is allowed) a reset.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from duetime.model.job import STEP_JOBS, Counts
from duetime.model.names import Queue
from duetime.stores.open import open_store
from tests.plugins.http_peer import Peer, Reply

QUEUE = "/api/ns/q"


class Books:
    """What the clients of one test saw, all of them together."""

    def __init__(self) -> None:
        self.accepted: set[str] = set()
        self.delivered: set[str] = set()
        self.finished: set[str] = set()
        self.statuses: Counter[int] = Counter()
        self.refused = 0
        self.resets = 0
        self.lost: list[str] = []


class LoadClient:
    """One connection at a time; a new one whenever the server has closed the last.

    It pushes to the queue q, and takes from it or, in their order, from several `queues`.
    """

    def __init__(self, port: int, books: Books, queues: bytes = b"q") -> None:
        self._port = port
        self._queues = queues
        self._books = books
        self._peer: Peer | None = None

    async def ask(self, request: bytes) -> Reply | None:
        """The answer, or None if there was none; the books say why."""
        books = self._books
        try:
            peer = self._peer = self._peer or Peer(*await asyncio.open_connection("127.0.0.1", self._port))
        except ConnectionRefusedError:
            books.refused += 1
            return None
        except ConnectionResetError as error:
            books.resets += 1
            books.lost.append(f"{error!r} while connecting")
            return None
        try:
            reply = await peer.ask(request)
        except (ConnectionResetError, BrokenPipeError, asyncio.IncompleteReadError) as error:
            books.resets += 1
            books.lost.append(f"{error!r} after {request[:40]!r}")
            self.close()
            return None
        books.statuses[reply[0]] += 1
        if reply[1].get("connection") == "close":
            self.close()
        return reply

    async def push(self, body: bytes = b"x" * 100) -> None:
        reply = await self.ask(
            b"PUT %b?ttl=0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (_QUEUE, len(body), body)
        )
        if reply is not None and reply[0] == 201:
            self._books.accepted.add(job_id(reply[2]))

    async def take(self, wait_s: int = 600) -> str | None:
        """A job's id after a long poll; it is not acknowledged."""
        reply = await self.ask(
            b"GET /api/ns/%b?ttr=600&timeout=%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % (self._queues, wait_s)
        )
        if reply is None or reply[0] != 200:
            return None
        self._books.delivered.add(job_id(reply[2]))
        return job_id(reply[2])

    async def finish_one(self) -> None:
        if (taken := await self.take(wait_s=1)) is not None:
            await self.acknowledge(taken)

    async def acknowledge(self, taken: str) -> None:
        self._books.finished.add(taken)  # at the latest now: the answer may get lost
        await self.ask(b"DELETE %b/job/%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (_QUEUE, taken.encode()))

    def close(self) -> None:
        if self._peer is not None:
            self._peer.writer.close()
            self._peer = None


_QUEUE = QUEUE.encode()


def job_id(body: bytes) -> str:
    return body.partition(b'"job_id":"')[2][:26].decode()


async def repeat(step: Callable[[], Awaitable[object]], stop: asyncio.Event) -> None:
    while not stop.is_set():
        await step()
        await asyncio.sleep(0)


async def missing(url: str, ids: set[str]) -> set[str]:
    """Those of the ids that the store does not know any more, in whatever state."""
    store = await open_store(url)
    try:
        wanted = sorted(ids)
        found: set[str] = set()
        for at in range(0, len(wanted), STEP_JOBS):
            part = wanted[at : at + STEP_JOBS]
            found |= {view.id for view in await store.get(Queue("ns", "q"), part) if view is not None}
        return ids - found
    finally:
        await store.close()


async def counts(url: str) -> Counts:
    store = await open_store(url)
    try:
        [found] = await store.counts([Queue("ns", "q")])
        return found
    finally:
        await store.close()

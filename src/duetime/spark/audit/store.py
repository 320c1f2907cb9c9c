"""What audit and reconcile ask of a store: how much it holds, single jobs, its time; a push, and counts of joins.

Works with a store URL and with a server's. A store is opened as it is, without an engine on top: looking moves nothing
and must also work where the pool journals.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import msgspec

from duetime.client import Client, calls, store_calls
from duetime.client.lookup import Lookup
from duetime.client.transport import is_http
from duetime.journal.pool_journal import Journaling, known
from duetime.journal.registered_nodes import RegisteredNode, forget, register, registered, sign_off
from duetime.model.errors import Conflict, DuetimeError
from duetime.model.job import Counts, IfExists, Job, Moved
from duetime.model.names import DEFAULT_NAMESPACE, DEFAULT_POOL, Queue
from duetime.protocols.tokens import split
from duetime.stores.base import Push, Pushed, StoreInfo
from duetime.stores.finishes import JoinCount
from duetime.stores.get_all import get_all
from duetime.stores.open import open_store
from duetime.stores.registry import MOVED_AWAY

Result = TypeVar("Result")


class StoreView(Protocol):
    """Blocking, for one thread. Raises DuetimeError."""

    def now(self) -> int: ...

    def info(self) -> StoreInfo:
        """The store's time, and its epoch, which changes when the store is wiped."""
        ...

    def journaling(self) -> Journaling:
        """The name under which the pool journals, and since when; since 0 if it does not or the store does not tell."""
        ...

    def registered(self) -> Mapping[str, RegisteredNode]:
        """The nodes of the journal; none if the store does not tell."""
        ...

    def counts(self) -> Mapping[Queue, Counts]:
        """How many jobs each queue has."""
        ...

    def get(self, queue: Queue, ids: Sequence[str]) -> list[Job | None]: ...

    @property
    def journals(self) -> bool:
        """Whether `push` also writes the journal's entries; if not, the caller must."""
        ...

    def register(self, node: str) -> None:
        """Register a node that is about to write entries about the store's jobs."""
        ...

    def sign_off(self, node: str, last: int) -> None:
        """Note that the node has written its last entry."""
        ...

    def forget(self, nodes: Iterable[str]) -> None:
        """Remove the registrations of nodes of which no entry can be missing any more."""
        ...

    def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        """Each request has one job; a job that exists is kept."""
        ...

    def raise_joins(self, queue: Queue, joins: Sequence[JoinCount]) -> None:
        """As the store's: idempotent, and nothing follows from it."""
        ...

    def close(self) -> None: ...


def open_view(url: str, token: str | None = None) -> StoreView:
    return ServerView(url, token) if is_http(url) else OpenedStore(url)


class ServerView:
    """Through the HTTP door, which serves the pool that the token names. The token must be good for all namespaces."""

    def __init__(self, url: str, token: str | None) -> None:
        self._token = token or ""
        self._client = Client(url, token=token)
        self._send = self._client.send

    def now(self) -> int:
        return self._send(calls.status(Queue("default", "duetime-audit"))).counts.now

    def info(self) -> StoreInfo:
        return self._send(store_calls.store_info(DEFAULT_NAMESPACE))

    def journaling(self) -> Journaling:
        told = self._send(store_calls.journaling(DEFAULT_NAMESPACE))
        # A server of an earlier release tells neither. Its door serves the pool that the token names.
        return told if told.pool else Journaling(told.since, split(self._token)[0])

    def registered(self) -> Mapping[str, RegisteredNode]:
        # Whatever the namespace, the door answers for the one pool that the token names.
        return self._send(store_calls.journal_nodes(DEFAULT_NAMESPACE))

    def counts(self) -> Mapping[Queue, Counts]:
        return {status.queue: status.counts for status in self._send(calls.statuses(None))}

    def get(self, queue: Queue, ids: Sequence[str]) -> list[Job | None]:
        lookup = Lookup(queue, ids)
        while call := lookup.next_call():
            lookup.take(self._send(call))
        return lookup.jobs()

    @property
    def journals(self) -> bool:
        return True

    def register(self, node: str) -> None:
        """Does nothing: a server has no call for it. Entries of ends and adoptions that get lost are made again."""

    def sign_off(self, node: str, last: int) -> None: ...

    def forget(self, nodes: Iterable[str]) -> None:
        """Does nothing: who changes the registry needs the store's own URL."""

    def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        answers = self._send(calls.push_each(queue, [request.jobs[0] for request in requests], IfExists.KEEP))
        return [Pushed([answer], 0) if isinstance(answer, Moved) else answer or DuetimeError() for answer in answers]

    def raise_joins(self, queue: Queue, joins: Sequence[JoinCount]) -> None:
        self._send(store_calls.raise_joins(queue, joins))

    def close(self) -> None:
        self._client.close()


class _LoopThread:
    """An event loop in a thread of its own: the caller's thread may run a loop already, as notebooks do."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._runner = asyncio.Runner()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._thread.submit(self._runner.run, work).result()

    def close(self) -> None:
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()


class OpenedStore:
    """The store itself, in an event loop that runs during each call."""

    def __init__(self, url: str) -> None:
        self._runner = _LoopThread()
        self._store = self._runner.run(open_store(url))

    def now(self) -> int:
        return self._runner.run(self._store.ping()).now

    def info(self) -> StoreInfo:
        return self._runner.run(self._store.ping())

    def journaling(self) -> Journaling:
        if moved := self._runner.run(self._store.registry.get(MOVED_AWAY, "current")):
            place = msgspec.json.decode(moved.value)
            raise Conflict(f"the jobs of this store were moved to {place['to']}: ask that store")
        return self._runner.run(known(self._store)) or Journaling(0, DEFAULT_POOL)

    def registered(self) -> Mapping[str, RegisteredNode]:
        return self._runner.run(registered(self._store))

    def counts(self) -> Mapping[Queue, Counts]:
        queues = self._runner.run(self._store.queues())
        return dict(zip(queues, self._runner.run(self._store.counts(queues)), strict=True))

    def get(self, queue: Queue, ids: Sequence[str]) -> list[Job | None]:
        return self._runner.run(get_all(self._store, queue, ids))

    @property
    def journals(self) -> bool:
        return False

    def register(self, node: str) -> None:
        self._runner.run(register(self._store, node))

    def sign_off(self, node: str, last: int) -> None:
        self._runner.run(sign_off(self._store, node, last))

    def forget(self, nodes: Iterable[str]) -> None:
        self._runner.run(forget(self._store, nodes))

    def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        return self._runner.run(self._store.push(queue, requests))

    def raise_joins(self, queue: Queue, joins: Sequence[JoinCount]) -> None:
        self._runner.run(self._store.raise_joins(queue, joins))

    def close(self) -> None:
        self._runner.run(self._store.close())
        self._runner.close()

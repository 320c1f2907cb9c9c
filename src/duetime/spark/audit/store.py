"""What audit and reconcile ask of a store: everything it holds, single jobs, its time; and a push.

Works with a store URL and with a server's. A store is opened as it is, without an engine on top: looking moves nothing
and must also work where the pool journals. The scan runs on the executors, a task per group of queues.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from duetime.client import Client, calls
from duetime.client.lookup import Lookup
from duetime.client.transport import is_http
from duetime.errors import DuetimeError
from duetime.job import STEP_JOBS, IfExists, Job, Moved, State
from duetime.journal.pool_journal import Journaling, known
from duetime.journal.registered_nodes import RegisteredNode, forget, register, registered, sign_off
from duetime.names import DEFAULT_NAMESPACE, Queue
from duetime.spark.audit.transform import SCAN
from duetime.spark.schemas import frame
from duetime.spark.session import parallelism
from duetime.stores.base import Page, Push, Pushed, StoreInfo
from duetime.stores.get_all import get_all
from duetime.stores.open import open_store

ORDER = (State.DELAYED, State.READY, State.LEASED, State.DEAD)
"""The order of the scan is that in which jobs move, so that a job that moves on meanwhile is met twice and not missed.

A job that moves back has a fresh entry, and the audit then believes the journal.
"""

QUEUES = StructType([StructField("namespace", StringType()), StructField("queue", StringType())])


class StoreView(Protocol):
    """Blocking, for one thread. Raises DuetimeError."""

    def now(self) -> int: ...

    def info(self) -> StoreInfo:
        """The store's time, and its epoch, which changes when the store is wiped."""
        ...

    def journaling(self) -> Journaling | None:
        """Since when, and under which name, the pool journals; None if the store does not tell."""
        ...

    def registered(self) -> Mapping[str, RegisteredNode]:
        """The nodes of the journal; none if the store does not tell."""
        ...

    def queues(self) -> list[Queue]: ...

    def page(self, queue: Queue, state: State, cursor: str | None) -> Page: ...

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

    def close(self) -> None: ...


def open_view(url: str, token: str | None = None) -> StoreView:
    return ServerView(url, token) if is_http(url) else OpenedStore(url)


class ServerView:
    """Through the HTTP door: the token must be good for all namespaces."""

    def __init__(self, url: str, token: str | None) -> None:
        self._client = Client(url, token=token)
        self._send = self._client.send

    def now(self) -> int:
        return self._send(calls.status(Queue("default", "duetime-audit"))).counts.now

    def info(self) -> StoreInfo:
        return self._send(calls.store_info(DEFAULT_NAMESPACE))

    def journaling(self) -> Journaling | None:
        return None

    def registered(self) -> Mapping[str, RegisteredNode]:
        # Each namespace may live in a pool of its own.
        namespaces = {DEFAULT_NAMESPACE, *(queue.namespace for queue in self.queues())}
        found: dict[str, RegisteredNode] = {}
        for namespace in sorted(namespaces):
            found |= self._send(calls.journal_nodes(namespace))
        return found

    def queues(self) -> list[Queue]:
        return [status.queue for status in self._send(calls.statuses(None))]

    def page(self, queue: Queue, state: State, cursor: str | None) -> Page:
        return self._send(calls.list_jobs(queue, state, cursor, STEP_JOBS))

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

    def close(self) -> None:
        self._client.close()


class OpenedStore:
    """The store itself, in an event loop that runs during each call."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._store = self._runner.run(open_store(url))

    def now(self) -> int:
        return self._runner.run(self._store.ping()).now

    def info(self) -> StoreInfo:
        return self._runner.run(self._store.ping())

    def journaling(self) -> Journaling | None:
        return self._runner.run(known(self._store))

    def registered(self) -> Mapping[str, RegisteredNode]:
        return self._runner.run(registered(self._store))

    def queues(self) -> list[Queue]:
        return list(self._runner.run(self._store.queues()))

    def page(self, queue: Queue, state: State, cursor: str | None) -> Page:
        return self._runner.run(self._store.list_jobs(queue, state, cursor=cursor, limit=STEP_JOBS))

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

    def close(self) -> None:
        self._runner.run(self._store.close())
        self._runner.close()


def scan(spark: SparkSession, url: str, token: str | None, queues: Sequence[Queue]) -> DataFrame:
    """SCAN of the queues, each job once. Lazy: it runs when it is written."""
    names = frame(spark, [(queue.namespace, queue.name) for queue in queues], QUEUES)
    tasks = max(1, min(len(queues), parallelism(spark)))
    spread: Any = names.repartition(tasks)
    pages: DataFrame = spread.mapInArrow(Scan(url, token), SCAN)
    # A job that moved on during the scan was met twice, and is to be counted once.
    return pages.groupBy(*SCAN.names[:-1]).agg(F.max("state").alias("state"))


class Scan:
    """Runs on an executor, so it is pickled with all that it needs."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url, self._token = url, token

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        view = open_view(self._url, self._token)
        try:
            for batch in batches:
                for names in batch.to_pylist():
                    yield from self._queue(view, Queue(names["namespace"], names["queue"]))
        finally:
            view.close()

    def _queue(self, view: StoreView, queue: Queue) -> Iterator[Any]:
        for state in ORDER:
            cursor: str | None = None
            while True:
                page = view.page(queue, state, cursor)
                if page.jobs:
                    yield _batch(queue, page.jobs)
                cursor = page.cursor
                if cursor is None:
                    break


def _batch(queue: Queue, jobs: Sequence[Job]) -> Any:
    arrow: Any = pa  # its annotations are incomplete
    return arrow.RecordBatch.from_pydict(
        {
            "namespace": [queue.namespace] * len(jobs),
            "queue": [queue.name] * len(jobs),
            "id": [job.id for job in jobs],
            "born": arrow.array([job.born for job in jobs], arrow.int64()),
            "state": [job.state.value for job in jobs],
        }
    )

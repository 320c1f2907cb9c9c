"""The store contract spoken through a server: every verb that has a route goes over a real socket and the SDK.

What the API does not offer is asked of the store behind the server: the duties of an engine (reap, wakeups, heads), the
registry, the check, and what a reserve says besides its jobs.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from duetime.client import AsyncClient, Client, calls
from duetime.client.call import Call
from duetime.model.errors import DuetimeError, LeaseLost
from duetime.model.job import Counts, Delivery, Job, Lease, Moved, QueueTotals, State, chunks
from duetime.model.names import Queue
from duetime.stores.base import (
    Ask,
    GiveBack,
    Page,
    Purged,
    Push,
    Pushed,
    QueueRules,
    Reaped,
    Reserved,
    RulesChange,
    Store,
    StoreInfo,
    Wake,
)
from duetime.stores.finishes import Finish, Finished, KeptResult
from duetime.wire.messages import MAX_RESULTS

Answer = TypeVar("Answer")
Send = Callable[[Call[Answer]], Awaitable[Answer]]


class ThroughHttp:
    """`send` is the SDK of either colour."""

    def __init__(self, behind: Store, send: Callable[[Call[Answer]], Awaitable[Answer]]) -> None:
        self._behind = behind
        self._send = send
        self.registry = behind.registry

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        answers: list[Pushed | DuetimeError] = []
        for request in requests:
            try:
                answers.append(await self._send(calls.push(queue, request.jobs, request.if_exists, request.mark)))
            except DuetimeError as error:
                answers.append(error)
        return answers

    async def reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved:
        deliveries = [await self._reserve(queue, ask) for ask in asks]
        [head] = await self._behind.heads([queue])
        paused = (await self.configure(queue)).paused
        return Reserved(deliveries, head, (await self._behind.ping()).now, paused=paused)

    async def _reserve(self, queue: Queue, ask: Ask) -> list[Delivery]:
        return await self._send(calls.reserve(queue.namespace, [queue], ask.limit, f"{ask.ttr_ms}ms", 0))

    async def ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved | LeaseLost | None]:
        return await self._send(calls.ack(queue, leases))  # type: ignore[return-value]

    async def finish(self, queue: Queue, finishes: Sequence[Finish]) -> Sequence[Finished | DuetimeError | None]:
        return await self._send(calls.finish(queue, finishes))

    async def results(self, queue: Queue, ids: Sequence[str]) -> Sequence[KeptResult | None]:
        found: list[KeptResult | None] = []
        for some in chunks(ids, MAX_RESULTS):
            found += await self._send(calls.results(queue, some, 0))
        return found

    async def release(self, lease: Lease, delay_ms: int, error: str = "") -> Moved:
        return await self._send(calls.release(lease, f"{delay_ms}ms", error))

    async def give_back(self, queue: Queue, give_backs: Sequence[GiveBack]) -> Sequence[Moved | LeaseLost]:
        """A request has one delay."""
        answers: list[Moved | LeaseLost] = []
        for some in chunks(give_backs, key=lambda one: one.delay_ms):
            delay = None if some[0].delay_ms is None else f"{some[0].delay_ms}ms"
            answers += await self._send(calls.give_back([one.lease for one in some], delay))  # type: ignore[arg-type]
        return answers

    async def kill(self, lease: Lease, error: str = "") -> Moved:
        return await self._send(calls.kill(lease, error))

    async def extend(self, lease: Lease, ttr_ms: int) -> int:
        return await self._send(calls.extend(lease, f"{ttr_ms}ms"))

    async def cancel(self, queue: Queue, ids: Sequence[str], *, finished: bool = False) -> Sequence[Moved | None]:
        assert not finished, "only the compatible protocols have an ack without a lease"
        return await self._send(calls.cancel(queue, ids))  # type: ignore[return-value]

    async def reschedule(
        self, queue: Queue, ids: Sequence[str], *, delay_ms: int = 0, due_at: int | None = None
    ) -> Sequence[Moved | DuetimeError | None]:
        delay = f"{delay_ms}ms" if due_at is None else None
        return await self._send(calls.reschedule(queue, ids, delay, due_at))

    async def reap(self, limit: int = 500, *, recorded: Sequence[str] = ()) -> Reaped:
        return await self._behind.reap(limit, recorded=recorded)

    def wakeups(self) -> AsyncIterator[Wake]:
        return self._behind.wakeups()

    async def heads(self, queues: Sequence[Queue], *, waiting: bool = False) -> Sequence[int | None]:
        return await self._behind.heads(queues, waiting=waiting)

    async def get(self, queue: Queue, ids: Sequence[str]) -> Sequence[Job | None]:
        """The application looks at each id once."""
        distinct = list(dict.fromkeys(ids))
        found = dict(zip(distinct, await self._send(calls.get(queue, distinct)), strict=False))
        return [found[job_id] for job_id in itertools.takewhile(found.__contains__, ids)]

    async def list_jobs(self, queue: Queue, state: State, *, cursor: str | None = None, limit: int = 100) -> Page:
        return await self._send(calls.list_jobs(queue, state, cursor, limit))

    async def counts(self, queues: Sequence[Queue]) -> Sequence[Counts]:
        return [(await self._send(calls.status(queue))).counts for queue in queues]

    async def queues(self, namespace: str | None = None) -> Sequence[Queue]:
        return [status.queue for status in await self._send(calls.statuses(namespace))]

    async def totals(self, queues: Sequence[Queue]) -> Sequence[QueueTotals]:
        return [await self._send(calls.totals(queue)) for queue in queues]

    async def due_histogram(self, queue: Queue, edges: Sequence[int]) -> Sequence[int]:
        return await self._send(calls.due_histogram(queue, edges))

    async def respawn(
        self,
        queue: Queue,
        *,
        ids: Sequence[str] | None = None,
        limit: int = 1,
        ttl_ms: int = 0,
        tries: int | None = None,
    ) -> Sequence[Moved]:
        return await self._send(calls.respawn(queue, ids, limit, f"{ttl_ms}ms", tries))

    async def purge(self, queue: Queue, states: Sequence[State], *, limit: int | None = None) -> Purged:
        removed = await self._send(calls.purge(queue, states, limit))
        return Purged(removed, (await self._behind.ping()).now)

    async def configure(self, queue: Queue, change: RulesChange | None = None) -> QueueRules:
        return await self._send(calls.configure(queue, change))

    async def ping(self) -> StoreInfo:
        return await self._behind.ping()

    async def check(self) -> Sequence[str]:
        return await self._behind.check()

    async def close(self) -> None:
        await self._behind.close()


def sending_async(client: AsyncClient) -> Callable[[Call[Answer]], Awaitable[Answer]]:
    return client.send


def sending_sync(client: Client) -> Callable[[Call[Answer]], Awaitable[Answer]]:
    """The blocking client, in a thread, so that the server in this loop can answer it."""

    async def send(call: Call[Answer]) -> Answer:
        return await asyncio.to_thread(client.send, call)

    return send

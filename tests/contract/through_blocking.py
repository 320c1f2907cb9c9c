"""The store contract through a store's blocking single-job calls (`base.BlockingOneJob`): push, reserve and ack of one
job are called in another thread, and what these decline is served by the verbs, as in the SDK.
"""

import asyncio
from collections.abc import Sequence

from duetime.model.errors import DuetimeError, LeaseLost, StoreUnavailable
from duetime.model.job import Delivery, Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Reserved, Store
from duetime.stores.forwarding import ForwardingStore


class ThroughBlocking(ForwardingStore):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        assert store.one_job is not None
        calls = store.one_job.blocking()
        assert calls is not None
        self.blocking = calls
        self.answered = 0

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        answers: list[Pushed | DuetimeError] = []
        for request in requests:
            done = await asyncio.to_thread(self.blocking.push, queue, request) if len(request.jobs) == 1 else None
            self.answered += done is not None
            answers += [done] if done is not None else await self.inner.push(queue, [request])
        return answers

    async def reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved:
        if len(asks) == 1 and asks[0].limit == 1:
            done = await asyncio.to_thread(self.blocking.reserve, queue, asks[0], _nobody)
            self.answered += done is not None
            if done is not None:
                return done
        return await self.inner.reserve(queue, asks)

    async def ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved | LeaseLost | StoreUnavailable | None]:
        answers: list[Moved | LeaseLost | StoreUnavailable | None] = []
        for lease in leases:
            done = await asyncio.to_thread(self.blocking.ack, lease) if lease.queue == queue else None
            self.answered += done is not None
            answers += [done] if done is not None else await self.inner.ack(queue, [lease])
        return answers

    async def close(self) -> None:
        self.blocking.close()
        await super().close()


def _nobody(delivery: Delivery) -> None:
    raise AssertionError(f"no caller was interrupted, but {delivery} has none")

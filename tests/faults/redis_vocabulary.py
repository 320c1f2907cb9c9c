"""One queue of a Redis store, and what the tests of its faults do with it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import redis

from duetime.model.clock import Clock
from duetime.model.errors import DuetimeError
from duetime.model.job import Lease, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed
from duetime.stores.redis import keys
from duetime.stores.redis.store import RedisStore

QUEUE = Queue("shop", "mail")
PREFIX = keys.prefix(QUEUE)

Verb = Callable[[RedisStore, Lease], Awaitable[Any]]


@asynccontextmanager
async def opened(url: str, clock: Clock | None = None) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open(url, clock=clock)
    try:
        yield store
    finally:
        await store.close()


async def push_one(store: RedisStore, job_id: str, **options: Any) -> Pushed | DuetimeError:
    [answer] = await store.push(QUEUE, [Push([NewJob(job_id, b"body", **options)])])
    return answer


async def lease_one(store: RedisStore) -> Lease:
    [[delivery]] = (await store.reserve(QUEUE, [Ask(1, 60_000)])).deliveries
    return delivery.lease


def dump(url: str) -> dict[bytes, bytes]:
    with redis.Redis.from_url(url) as client:
        return {key: client.dump(key) for key in client.scan_iter()}

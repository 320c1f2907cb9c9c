"""A name that leads to another server after a failover, while connections to the old one stay open.

The old server is read only from then on. A DNS name, a virtual address or a load balancer behaves like this proxy.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import redis

from duetime.engine import Engine
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.base import Push, Pushed, Store
from duetime.stores.open import open_store
from tests.faults.losing_proxy import LosingProxy
from tests.plugins.mysql_server import MysqlServer
from tests.plugins.postgres_server import PostgresServer
from tests.plugins.redis_server import RedisServer
from tests.plugins.until import until

BEFORE, AFTER = Queue("shop", "before"), Queue("shop", "after")
READERS = 4
"""Calls at the same time, so that the store has several connections."""


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = await open_store(url)
    try:
        yield store
    finally:
        await store.close()


async def push(store: Store, queue: Queue) -> Pushed | DuetimeError:
    [answer] = await store.push(queue, [Push([NewJob("a", b"body")])])
    return answer


async def is_accepted(store: Store) -> bool:
    try:
        return isinstance(await push(store, AFTER), Pushed)
    except StoreUnavailable:
        return False


async def count_at_once(store: Store, queue: Queue) -> list[int]:
    answers = await asyncio.gather(*(store.counts([queue]) for _ in range(READERS)))
    return [counts.ready for [counts] in answers]


async def make_tables(url: str) -> None:
    async with opened(url):
        pass


@pytest.mark.store_kind("postgres")
async def test_a_session_on_a_standby_is_given_up(start_postgres: Callable[..., PostgresServer]) -> None:
    primary = start_postgres(wal_level="replica", max_wal_senders=4, hot_standby="on")
    standby = start_postgres(standby_of=primary)
    await make_tables(primary.url)
    async with LosingProxy(standby.port) as proxy:
        url = primary.url.replace(str(primary.port), str(proxy.port))
        await until(lambda: can_open(url))  # the tables have reached the standby
        async with opened(url) as store:
            with pytest.raises(StoreUnavailable, match="read-only"):
                await push(store, BEFORE)
            assert await count_at_once(store, AFTER) == [0] * READERS

            proxy.target = primary.port

            await until(lambda: is_accepted(store))


async def can_open(url: str) -> bool:
    try:
        await make_tables(url)
    except StoreUnavailable:
        return False
    return True


@pytest.mark.store_kind("mysql")
async def test_a_session_on_a_mariadb_that_became_read_only_is_given_up(
    start_mysql: Callable[..., MysqlServer], mysql_url: str, mysql_server: MysqlServer
) -> None:
    old = start_mysql()
    await make_tables(mysql_url)
    async with LosingProxy(old.port) as proxy, opened(old.url.replace(str(old.port), str(proxy.port))) as store:
        await push(store, BEFORE)
        assert await count_at_once(store, BEFORE) == [1] * READERS

        old.administer("SET GLOBAL read_only = 1")
        with pytest.raises(StoreUnavailable, match="read-only"):
            await push(store, BEFORE)
        proxy.target = mysql_server.port

        await until(lambda: is_accepted(store))
        # Connections that have only read follow, too
        assert await count_at_once(store, AFTER) == [1] * READERS


@pytest.mark.store_kind("redis")
async def test_connections_to_a_redis_that_became_a_replica_are_given_up(
    start_redis: Callable[..., RedisServer],
) -> None:
    old, new = start_redis(), start_redis()
    async with LosingProxy(old.port) as proxy, opened(proxy.url) as store, Engine(store) as engine:
        await push(store, BEFORE)
        waiting = asyncio.create_task(engine.reserve([AFTER], limit=1, ttr_ms=60_000, wait_ms=60_000))
        with redis.Redis.from_url(old.url, decode_responses=True) as client:
            await until(lambda: len(client.client_list(_type="pubsub")) > 0)

            client.execute_command("REPLICAOF", "127.0.0.1", str(new.port))
            proxy.target = new.port

            await until(lambda: is_accepted(store))
            [delivery] = await waiting
            assert delivery.lease.queue == AFTER
            await until(lambda: not client.client_list(_type="pubsub"))
            own = client.client_id()
            await until(lambda: [one for one in client.client_list(_type="normal") if int(one["id"]) != own] == [])

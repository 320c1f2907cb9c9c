"""Answers get lost while a server works: every push and every ack that was answered is in the journal all the same."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis

from duetime.stores.redis.store import RedisStore
from tests.faults.answered_load import AnsweredLoad
from tests.faults.losing_proxy import LosingProxy
from tests.plugins.redis_server import RedisServer
from tests.plugins.served import ServedProcess, StartServer
from tests.plugins.until import until

pytestmark = [pytest.mark.store_kind("redis"), pytest.mark.timeout(300)]

JOBS = 240


@asynccontextmanager
async def loaded(server: ServedProcess, url: str, jobs: int) -> AsyncIterator[AnsweredLoad]:
    """Load that runs inside the block until it is over; the server is stopped then."""
    store = await RedisStore.open(url)
    try:
        load = AnsweredLoad(server.api, store)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run(producers=6, consumers=4, jobs=jobs))
            yield load
        assert len(load.pushed) == jobs
        code, log = await asyncio.to_thread(server.stop)
        assert code == 0, log
    finally:
        await store.close()


def check(load: AnsweredLoad, journal: Path) -> None:
    assert load.repeats, "nothing was lost"
    assert load.wrong == []
    assert load.untold(journal) == (set(), set())
    assert load.acked


async def test_replies_of_redis_are_cut(
    start_redis: Callable[..., RedisServer], start_server: StartServer, tmp_path: Path, scale: int
) -> None:
    redis_server = start_redis()
    async with LosingProxy(redis_server.port) as proxy:
        server = await asyncio.to_thread(
            start_server, DUETIME_STORE=f"{proxy.url}?timeout=2", DUETIME_JOURNAL=str(tmp_path / "journal")
        )
        proxy.loses_every = 10
        async with loaded(server, redis_server.url, JOBS * scale) as load:
            # Now and then nobody gets through for so long that the repetitions fail as well.
            for _ in range(4):
                lost = proxy.lost
                await until(lambda lost=lost: proxy.lost > lost + 5 or len(load.pushed) == JOBS * scale)
                proxy.on_loss = proxy.refuse
                await asyncio.sleep(0.5)
                proxy.on_loss = None
                proxy.accept()
            await until(lambda: len(load.pushed) == JOBS * scale, deadline_s=250)
            proxy.loses_every = 0
    check(load, tmp_path / "journal")
    assert proxy.lost > 10


async def test_redis_closes_connections(
    start_redis: Callable[..., RedisServer], start_server: StartServer, tmp_path: Path, scale: int
) -> None:
    redis_server = start_redis()
    server = await asyncio.to_thread(
        start_server, DUETIME_STORE=redis_server.url, DUETIME_JOURNAL=str(tmp_path / "journal")
    )
    with redis.Redis.from_url(redis_server.url) as client:
        async with loaded(server, redis_server.url, JOBS * scale) as load:
            for at in range(0, JOBS * scale, 6):
                await until(lambda at=at: len(load.pushed) > at, deadline_s=250)
                client.client_kill_filter(_type="normal", skipme=True)
    check(load, tmp_path / "journal")


async def test_one_of_two_workers_is_killed(
    start_redis: Callable[..., RedisServer], start_server: StartServer, tmp_path: Path, scale: int
) -> None:
    redis_server = start_redis()
    server = await asyncio.to_thread(
        start_server, "--workers", "2", DUETIME_STORE=redis_server.url, DUETIME_JOURNAL=str(tmp_path / "journal")
    )
    async with loaded(server, redis_server.url, 2 * JOBS * scale) as load:
        for at in range(50, 2 * JOBS * scale, 150):
            await until(lambda at=at: len(load.pushed) > at, deadline_s=250)
            await until(lambda: len(server.workers()) == 2, deadline_s=60)
            os.kill(server.workers()[0], signal.SIGKILL)
    check(load, tmp_path / "journal")

"""Answers get lost while a server works: every push and every ack that was answered is in the journal all the same."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.faults.answered_load import AnsweredLoad, cut_replies, loaded
from tests.faults.losing_proxy import LosingProxy
from tests.plugins.redis_server import RedisServer
from tests.plugins.served import StartServer
from tests.plugins.until import until

pytestmark = [pytest.mark.store_kind("redis"), pytest.mark.timeout(900)]

JOBS = 240


def check(load: AnsweredLoad, journal: Path) -> None:
    assert load.repeats, "nothing was lost"
    assert load.wrong == []
    assert load.wrongly_refused() == set()
    assert load.untold(journal) == (set(), set())
    assert load.acked
    assert load.acked_by_id


async def test_replies_of_redis_are_cut(
    start_redis: Callable[..., RedisServer], start_server: StartServer, tmp_path: Path, scale: int
) -> None:
    redis_server = start_redis()
    async with LosingProxy(redis_server.port) as proxy:
        server = await asyncio.to_thread(
            start_server, DUETIME_STORE=f"{proxy.url}?timeout=2", DUETIME_JOURNAL=str(tmp_path / "journal")
        )
        async with loaded(server, redis_server.url, JOBS * scale) as load:
            await cut_replies(proxy, load, JOBS * scale)
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
    """In the moment when Redis has done what it was asked for, and the answer is on its way."""
    redis_server, jobs = start_redis(), 2 * JOBS * scale
    async with LosingProxy(redis_server.port) as proxy:
        server = await asyncio.to_thread(
            start_server, "--workers", "2", DUETIME_STORE=proxy.url, DUETIME_JOURNAL=str(tmp_path / "journal")
        )
        async with loaded(server, redis_server.url, jobs) as load:
            for at in range(50, jobs, 150):
                await until(lambda at=at: len(load.pushed) > at, deadline_s=250)
                await until(lambda: len(server.workers()) == 2, deadline_s=60)
                pid = server.workers()[0]
                proxy.loses_next, proxy.on_loss = True, lambda pid=pid: os.kill(pid, signal.SIGKILL)
                await until(lambda: not proxy.loses_next)
    check(load, tmp_path / "journal")

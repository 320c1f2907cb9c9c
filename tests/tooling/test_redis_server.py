import os
from collections.abc import Callable

import pytest
import redis

from tests.plugins.redis_server import RedisServer


def test_each_server_has_its_own_port_and_process(
    redis_server: RedisServer, start_redis: Callable[..., RedisServer]
) -> None:
    other = start_redis()

    assert other.port != redis_server.port
    assert other.pid != redis_server.pid


def test_settings_reach_redis(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(maxmemory_policy="allkeys-lru", requirepass="secret")

    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "allkeys-lru"}
        assert client.config_get("save") == {"save": ""}


def test_redis_url_is_empty_each_time(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


test_redis_url_is_empty_once_more = test_redis_url_is_empty_each_time


def test_a_killed_server_starts_again_where_it_was(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(appendonly="yes", appendfsync="always")
    with redis.Redis.from_url(server.url) as client:
        client.set("kept", "yes")
    url, pid = server.url, server.pid

    server.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    server.start()

    assert server.url == url
    with redis.Redis.from_url(url) as client:
        assert client.get("kept") == b"yes"


def test_stop_ends_the_process_even_when_paused(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()
    pid = server.pid

    server.pause()
    server.stop()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_wrong_setting_shows_what_redis_said(start_redis: Callable[..., RedisServer]) -> None:
    with pytest.raises(RuntimeError, match="no-such-setting"):
        start_redis(no_such_setting="1")


async def test_async_tests_need_no_decorator(redis_url: str) -> None:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        assert await client.ping()

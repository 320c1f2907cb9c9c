"""Somebody else's Redis: answers that are lost, and data that no application would have written."""

import asyncio

import pytest
import redis

from duetime.bridges.laravel import LaravelRedis
from duetime.bridges.redisson import Redisson, RedissonDelayedQueue
from duetime.model.errors import StoreUnavailable
from tests.faults.losing_proxy import LosingProxy
from tests.plugins.redis_server import RedisServer


async def test_a_push_whose_answer_was_lost_is_not_sent_again(redis_server: RedisServer, redis_url: str) -> None:
    theirs = redis.Redis.from_url(redis_url)
    async with LosingProxy(redis_server.port) as proxy:
        laravel = LaravelRedis(proxy.url)
        await asyncio.to_thread(laravel.push, "Job@fire", {"n": 1})
        proxy.loses_next = True
        with pytest.raises(StoreUnavailable) as failure:
            await asyncio.to_thread(laravel.push, "Job@fire", {"n": 2})
        assert failure.value.outcome_unknown
        assert theirs.llen("queues:default") == 2
        await asyncio.to_thread(laravel.push, "Job@fire", {"n": 3})
        assert theirs.llen("queues:default") == 3
        laravel.close()


async def test_an_offer_whose_answer_was_lost_is_not_sent_again(redis_server: RedisServer, redis_url: str) -> None:
    theirs = redis.Redis.from_url(redis_url)
    async with LosingProxy(redis_server.port) as proxy:
        redisson = Redisson(proxy.url)
        queue = RedissonDelayedQueue(redisson, redisson.keys("mail"))
        await asyncio.to_thread(queue.offer, "a", "1h")
        proxy.loses_next = True
        with pytest.raises(StoreUnavailable):
            await asyncio.to_thread(queue.offer, "b", "1h")
        assert theirs.llen("redisson_delay_queue:{mail}") == 2
        redisson.close()

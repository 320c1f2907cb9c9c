"""What Redis refuses, and how long a call may take to say so: ACLs, MISCONF, names like errors, a hung Redis."""

import time
from collections.abc import Callable

import pytest
import redis
from redis.exceptions import NoPermissionError, OutOfMemoryError, ReadOnlyError, ResponseError

from duetime.model.errors import DuetimeError, StoreDamaged, StoreFull, StoreUnavailable
from duetime.model.job import Event
from duetime.model.names import Queue
from duetime.stores.base import Ask, Pushed
from duetime.stores.redis.pipe import read_error
from duetime.stores.redis.scripts import translate
from tests.faults.redis_vocabulary import QUEUE, opened, push_one
from tests.plugins.redis_server import RedisServer
from tests.plugins.until import until

pytestmark = pytest.mark.store_kind("redis")


# --- an ACL user without channels


@pytest.fixture
def without_channels(start_redis: Callable[..., RedisServer]) -> str:
    """The URL of a Redis for a user that may do everything with our keys, and nothing with channels."""
    server = start_redis()
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "~dt:*", "resetchannels", "+@all")
    return server.url.replace("redis://", "redis://worker:secret@")


async def test_a_push_is_answered_also_where_it_cannot_be_announced(without_channels: str) -> None:
    async with opened(without_channels) as store:
        pushed = await push_one(store, "a")

        assert isinstance(pushed, Pushed)
        assert pushed.jobs[0].event is Event.ACCEPTED
        assert (await store.registry.put("kind", "key", b"value")).version == 1
        assert await store.registry.delete("kind", "key")
        [[delivery]] = (await store.reserve(QUEUE, [Ask(1, 1000)])).deliveries
        assert (await store.release(delivery.lease, 0)).event is Event.RELEASED


# --- errors by their first word


REFUSALS = {
    "OOM command not allowed when used memory > 'maxmemory'.": StoreFull,
    "MISCONF Redis is configured to save RDB snapshots, but it's unable to persist to disk.": StoreUnavailable,
    "NOREPLICAS Not enough good replicas to write.": StoreUnavailable,
    "NOPERM this user has no permissions to run the 'hset' command": StoreUnavailable,
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.": StoreUnavailable,
    "WRONGTYPE Operation against a key holding the wrong kind of value": StoreDamaged,
}


@pytest.mark.parametrize("said", REFUSALS)
@pytest.mark.parametrize("form", ["plain", "in a script", "in a script of Redis 6"])
def test_the_first_word_tells_what_an_error_is(said: str, form: str) -> None:
    if form == "in a script":
        said_there = f"{said} script: 0123abcd, on @user_script:42."
    elif form == "in a script of Redis 6":
        said_there = f"ERR Error running script (call to f_0123abcd): @user_script:42: @user_script: 42: -{said}"
    else:
        said_there = said

    assert type(translate(_answered(said_there))) is REFUSALS[said]


def _answered(text: str) -> ResponseError:
    error = read_error(text)
    assert isinstance(error, ResponseError)
    return error


def test_an_error_of_lua_itself_is_damage() -> None:
    text = "ERR user_script:12: attempt to index a nil value script: 0123abcd, on @user_script:12."

    assert isinstance(translate(_answered(text)), StoreDamaged)


def test_the_driver_s_classes_are_known() -> None:
    assert isinstance(_answered("OOM no"), OutOfMemoryError)
    assert isinstance(_answered("READONLY no"), ReadOnlyError)
    assert isinstance(_answered("NOPERM no"), NoPermissionError)


async def test_a_redis_that_cannot_persist_is_unavailable(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(save="3600 1")
    async with opened(server.url) as store:
        await push_one(store, "a")
        with redis.Redis.from_url(server.url) as client:
            (server.folder / "dump.rdb").mkdir()  # which no snapshot can take the place of
            client.bgsave()
            await until(lambda: client.info("persistence")["rdb_last_bgsave_status"] != "ok")

        with pytest.raises(StoreUnavailable, match="MISCONF") as failure:
            await push_one(store, "b")
        assert not failure.value.outcome_unknown
    server.kill()  # it would refuse to stop without a snapshot


# --- one deadline per call


async def test_a_hung_redis_costs_each_call_its_timeout_once(start_redis: Callable[..., RedisServer]) -> None:
    timeout_s = 1.0
    server = start_redis()
    queues = [Queue("shop", f"queue-{number}") for number in range(100)]
    async with opened(f"{server.url}?timeout={timeout_s}") as store:
        server.pause()
        try:
            for verb in (store.ping, lambda: store.counts(queues), lambda: store.heads(queues), store.queues):
                begun = time.monotonic()
                with pytest.raises(DuetimeError):
                    await verb()
                # Before, each of the commands had four attempts of its own: 18 s for the four of a ping.
                assert time.monotonic() - begun < 12 * timeout_s
        finally:
            server.resume()

        assert (await store.ping()).kind == "redis"

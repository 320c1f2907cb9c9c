"""A pool that is down affects only its own namespaces."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugins.redis_server import RedisServer
from tests.plugins.until import until
from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server
from tests.protocols.lmstfy.test_disconnects import has_parked

INTERNAL = b'{"error":"internal error"}'

pytestmark = pytest.mark.store_kind("redis")


async def with_token(server: Server, namespace: str, pool: str) -> Lmstfy:
    made = await server.admin.request("POST", f"/token/{namespace}", query={"description": "d", "pool": pool})
    assert made.status == 201, made
    return Lmstfy(server.api, server.admin, namespace, made.json()["token"])


async def published(lmstfy: Lmstfy) -> bool:
    return (await lmstfy.call("PUT", "q")).status == 201


async def test_a_killed_redis_affects_only_its_pool(start_redis: Callable[..., RedisServer], tmp_path: Path) -> None:
    redis = start_redis(appendonly="yes", appendfsync="always")
    with Server({"default": f"sqlite://{tmp_path}/jobs.db", "fragile": redis.url}) as server:
        steady, fragile = await with_token(server, "ns", "default"), await with_token(server, "ns", "fragile")
        assert await published(steady)
        assert await published(fragile)
        redis.kill()
        for method, path in [("PUT", "q"), ("GET", "q"), ("GET", "q/peek"), ("DELETE", "q/job/x"), ("GET", "q/size")]:
            response = await fragile.call(method, path)
            assert (response.status, response.body) == (500, INTERNAL), (method, path)
            assert (await steady.call(method, path)).status < 300, (method, path)
            await published(steady)
        batch = await fragile.call("GET", "q", count=5)
        assert batch.json() == {"msg": "no job available"}, "as lmstfy has it: a batch that fails is an empty one"
        assert (await server.admin.request("GET", "/metrics")).status == 200
        assert (await server.admin.request("GET", "/pools")).json() == ["default", "fragile"]
        redis.start()
        await until(lambda: published(fragile), every_s=0.05)
        assert await fragile.size("q") == 2, "what was accepted is there"


async def test_a_pool_that_is_down_at_the_start_comes_later(
    start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    redis = start_redis()
    redis.kill()
    with Server({"default": f"sqlite://{tmp_path}/jobs.db", "late": redis.url}) as server:
        steady, late = await with_token(server, "ns", "default"), await with_token(server, "ns", "late")
        assert await published(steady)
        assert (await late.call("PUT", "q")).body == INTERNAL
        redis.start()
        await until(lambda: published(late), every_s=0.05)


async def test_when_the_registry_is_down_known_tokens_of_other_pools_work_on(
    start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    redis = start_redis(appendonly="yes", appendfsync="always")
    with Server({"default": redis.url, "steady": f"sqlite://{tmp_path}/jobs.db"}) as server:
        steady = await with_token(server, "ns", "steady")
        assert await published(steady)
        redis.kill()
        assert await published(steady)
        unknown = await steady.call("PUT", "q", headers={"X-Token": "steady:never-seen-before"})
        assert (unknown.status, unknown.body) == (500, INTERNAL)
        created = await server.admin.request("POST", "/token/ns", query={"description": "d"})
        assert (created.status, created.body) == (500, INTERNAL)


async def test_a_parked_poll_sits_out_a_restart_of_its_redis(
    start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    redis = start_redis(appendonly="yes", appendfsync="always")
    with Server({"default": f"sqlite://{tmp_path}/jobs.db", "fragile": redis.url}) as server:
        fragile = await with_token(server, "ns", "fragile")
        await fragile.publish("other")
        poll = asyncio.create_task(fragile.consume("q", timeout=25))
        await until(has_parked(server, 1))
        await until(server.only_waits)
        redis.kill()
        redis.start()
        await until(lambda: published(fragile), every_s=0.05)
        assert (await poll)["queue"] == "q"

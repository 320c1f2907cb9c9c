"""Several servers on one store: revocations, limits and the access log's switch reach all of them.

That this takes a second at most is proved in virtual time, in tests/unit/test_engine_registry_copy.py.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.redis_server import RedisServer
from tests.plugins.until import until
from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server
from tests.protocols.lmstfy.test_16_tokens_and_limits import label, set_limit
from tests.protocols.lmstfy.test_disconnects import has_parked


@pytest.fixture(params=["sqlite", "redis", "postgres", "mysql"])
def store_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def servers(store_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    if store_kind == "redis":
        redis: RedisServer = request.getfixturevalue("lmstfy_redis")
        url = redis.url.replace("/0", "/2")
    elif store_kind == "sqlite":
        url = f"sqlite://{tmp_path}/jobs.db"
    else:
        url = request.getfixturevalue(f"{store_kind}_url")
    with Server({"default": url}) as one, Server({"default": url}) as other:
        yield one, other


async def both(servers: tuple[Server, Server]) -> tuple[Lmstfy, Lmstfy]:
    """One namespace, seen through two servers."""
    one, other = servers
    here = await Lmstfy.enter(one.api, one.admin, f"ns-{time.time_ns()}")
    return here, Lmstfy(other.api, other.admin, here.namespace, here.token)


async def test_a_token_works_everywhere_at_once_and_a_revoked_one_soon_nowhere(servers: tuple[Server, Server]) -> None:
    here, there = await both(servers)
    assert (await there.call("PUT", "q")).status == 201, "the next request on another server"
    deleted = await here.admin.request("DELETE", f"/token/{here.namespace}/{label(here.token)}")
    assert deleted.status == 204
    assert (await here.call("PUT", "q")).status == 401

    async def is_refused() -> bool:
        return (await there.call("PUT", "q")).status == 401

    await until(is_refused)


async def test_limits_hold_across_servers(servers: tuple[Server, Server]) -> None:
    here, there = await both(servers)
    assert (await set_limit(here, write=4, interval=60)).status == 201
    path = f"/token/{here.namespace}/{here.token}/limit"

    async def is_known() -> bool:
        return (await there.admin.request("GET", path)).status == 200

    await until(is_known)
    statuses = [(await lmstfy.call("PUT", "q")).status for lmstfy in (here, there) * 3]
    assert statuses == [201] * 4 + [429] * 2


async def test_a_poll_here_gets_what_is_published_there(servers: tuple[Server, Server]) -> None:
    here, there = await both(servers)
    poll = asyncio.create_task(here.consume("q", timeout=25))
    await until(has_parked(servers[0], 1))
    job_id = await there.publish("q")
    assert (await poll)["job_id"] == job_id


async def test_the_access_log_is_switched_everywhere(servers: tuple[Server, Server]) -> None:
    here, there = servers

    async def is_enabled() -> bool:
        return (await there.admin.request("GET", "/accesslog")).json() == {"status": "enabled"}

    await here.admin.request("POST", "/accesslog", query={"status": "enable"})
    await until(is_enabled)
    await here.admin.request("POST", "/accesslog", query={"status": "disable"})

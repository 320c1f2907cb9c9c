"""One empty store per test, on a clock that the test turns.

`store_kind` is the parameter that selects and counts tests per store. The HTTP API passes the same suite: `http` and
`http-blocking` are a memory store behind a real server, spoken to by the SDK of either colour; only tests of what the
API does not offer, marked `store_only`, stay out of it. Blocking calls of a store (`-blocking`) pass what they are used
for. A group of stores passes it too, less what not_in_groups.py names, and so does a tiered pool, whose horizon of a
minute puts many jobs into its cold tier (tiered.py).
Every test ends with a proof that the store it leaves behind is sound.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import redis

from duetime.client import connect, connect_async
from duetime.model.clock import ManualClock
from duetime.stores.base import Store
from duetime.stores.open import open_store
from duetime.stores.tiered.store import TieredStore
from tests.contract.not_in_groups import NOT_IN_GROUPS
from tests.contract.through_blocking import ThroughBlocking
from tests.contract.through_http import ThroughHttp, sending_async, sending_sync
from tests.contract.tiered import NOT_IN_TIERS, Promoting
from tests.plugins import mysql_server, postgres_server
from tests.plugins.lanes import parametrize_by_store
from tests.protocols.v1.server import serve

STORE_KINDS = ["memory", "sqlite", "redis", "postgres", "mysql"]
HTTP_KINDS = ["http", "http-blocking"]
BLOCKING_KINDS = ["sqlite-blocking", "redis-blocking"]
"""A store's calls in the caller's own thread; only for what is tried by verbs that have such a call."""
DIRECT_FILES = {
    "test_push",
    "test_push_taken_ids",
    "test_reserve",
    "test_ack",
    "test_fence",
    "test_totals",
    "test_marks",
}
GROUP = "group"
TIERED = "tiered"
SHARED_KINDS = ["sqlite", "redis", "postgres", "mysql"]
"""Stores that several processes can open at once."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "store_only: about what the API does not offer, such as the bounds of one call")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_by_store(metafunc, "store_kind", kinds_of(metafunc))


def kinds_of(metafunc: pytest.Metafunc) -> list[str]:
    """Every kind that this test can run on."""
    kinds = [*STORE_KINDS]
    if metafunc.definition.originalname not in NOT_IN_GROUPS:
        kinds.append(GROUP)
    if metafunc.definition.originalname not in NOT_IN_TIERS:
        kinds.append(TIERED)
    if "store" in metafunc.fixturenames and not metafunc.definition.get_closest_marker("store_only"):
        kinds += HTTP_KINDS
        if metafunc.module.__name__.rpartition(".")[2] in DIRECT_FILES:
            kinds += BLOCKING_KINDS
    return kinds


@pytest.fixture
def store_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty_store_url(store_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Gives the address of an empty store each time it is called; the one before it is no longer of use."""
    files = iter(range(1_000_000))

    def sqlite_url() -> str:
        # No test here cuts the power, and waiting for the disk is most of what a new file costs.
        return f"sqlite://{tmp_path}/{next(files)}.db?synchronous=off"

    def redis_url() -> str:
        server = request.getfixturevalue("redis_server")
        with redis.Redis.from_url(server.url) as client:
            client.flushall()
        return str(server.url)

    def postgres_url() -> str:
        server = request.getfixturevalue("postgres_server")
        postgres_server.empty_tables(server)
        return f"{server.url}?{postgres_server.STORE}"

    def mysql_url() -> str:
        server = request.getfixturevalue("mysql_server")
        mysql_server.empty_tables(server)
        return str(server.url)

    def group_url() -> str:
        return "group:test?a=memory:&b=memory:&c=memory:"

    return {
        "sqlite": sqlite_url,
        "redis": redis_url,
        "postgres": postgres_url,
        "mysql": mysql_url,
        GROUP: group_url,
        TIERED: lambda: "tiered:test?hot=memory:&cold=memory:&horizon=1m",
    }.get(store_kind.removesuffix("-blocking"), lambda: "memory:")


@pytest.fixture
def store_url(empty_store_url: Callable[[], str]) -> str:
    return empty_store_url()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(store_url: str, store_kind: str, clock: ManualClock) -> AsyncIterator[Store]:
    opened = await open_store(store_url, clock=clock)
    try:
        if store_kind in HTTP_KINDS:
            async with serve(opened, reaping=False) as served, AsyncExitStack() as stack:
                if store_kind == "http":
                    client = await stack.enter_async_context(connect_async(served.url))
                    yield ThroughHttp(opened, sending_async(client))
                else:
                    yield ThroughHttp(opened, sending_sync(stack.enter_context(connect(served.url))))
        elif store_kind in BLOCKING_KINDS:
            through = ThroughBlocking(opened)
            yield through
            through.blocking.close()
        elif isinstance(opened, TieredStore):
            yield Promoting(opened)
        else:
            yield opened
        assert list(await opened.check()) == []
    finally:
        await opened.close()


@pytest.fixture(params=["sqlite", "redis", "postgres", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store that other processes can open, too: loads and repairs run in many."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path / 'jobs.db'}"
    return request.getfixturevalue(f"{request.param}_url")

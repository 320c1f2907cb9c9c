"""One empty store per test, on a clock that the test turns.

`store_kind` is the parameter that selects and counts tests per store. A door that is to pass the same suite overrides
`store` and leaves the tests as they are. Every test ends with a proof that the store it leaves behind is sound.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import redis

from duetime.clock import ManualClock
from duetime.stores.base import Store
from duetime.stores.open import open_store

STORE_KINDS = ["memory", "sqlite", "redis"]
SHARED_KINDS = ["sqlite", "redis"]
"""Stores that several processes can open at once."""


@pytest.fixture(params=STORE_KINDS)
def store_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty_store_url(store_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Gives the address of an empty store each time it is called; the one before it is no longer of use."""
    files = iter(range(1_000_000))

    def sqlite_url() -> str:
        return f"sqlite://{tmp_path}/{next(files)}.db"

    def redis_url() -> str:
        server = request.getfixturevalue("redis_server")
        with redis.Redis.from_url(server.url) as client:
            client.flushall()
        return str(server.url)

    return {"memory": lambda: "memory:", "sqlite": sqlite_url, "redis": redis_url}[store_kind]


@pytest.fixture
def store_url(empty_store_url: Callable[[], str]) -> str:
    return empty_store_url()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(store_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    opened = await open_store(store_url, clock=clock)
    try:
        yield opened
        assert list(await opened.check()) == []
    finally:
        await opened.close()

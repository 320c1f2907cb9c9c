"""The native API with a memory store behind it, and a client that talks plain HTTP to it."""

from collections.abc import AsyncIterator

import httpx
import pytest

from duetime.engine import Engine
from duetime.model.clock import ManualClock
from duetime.stores.base import Store
from duetime.stores.open import open_store
from tests.protocols.v1.server import Served, serve


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[Store]:
    opened = await open_store("memory:", clock=clock)
    yield opened
    assert await opened.check() == []
    await opened.close()


@pytest.fixture
async def served(store: Store) -> AsyncIterator[Served]:
    async with serve(store) as running:
        yield running


@pytest.fixture
def engine(served: Served) -> Engine:
    return served.engine


@pytest.fixture
async def http(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    # Without TLS there is nothing to verify, and reading the system's certificates takes longer than most tests.
    async with httpx.AsyncClient(base_url=served.url, verify=False) as client:
        yield client

"""One server per store and test process; each test has a namespace and a token of its own.

`lmstfy` is a client in that namespace on every store in turn. Tests about the server itself start their own.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.lanes import parametrize_by_store
from tests.plugins.redis_server import RedisServer
from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server

STORE_KINDS = ["memory", "sqlite", "redis"]

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def lmstfy_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Not the one that other tests empty between them."""
    server = RedisServer(tmp_path_factory.mktemp("lmstfy-redis"))
    server.start()
    yield server
    server.stop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_by_store(metafunc, "store_kind", STORE_KINDS, scope="session")


@pytest.fixture(scope="session")
def store_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def server(
    store_kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Two pools on one store of the kind: `default` and `second`."""
    folder: Path = tmp_path_factory.mktemp("lmstfy")
    urls = {
        "memory": lambda: ("memory:", "memory:"),
        "sqlite": lambda: (f"sqlite://{folder}/default.db", f"sqlite://{folder}/second.db"),
        "redis": lambda: (redis_url := request.getfixturevalue("lmstfy_redis").url, redis_url.replace("/0", "/1")),
    }[store_kind]()
    with Server(dict(zip(("default", "second"), urls, strict=True))) as started:
        yield started


@pytest.fixture
async def lmstfy(server: Server) -> Lmstfy:
    return await Lmstfy.enter(server.api, server.admin, f"ns-{next(_numbers)}")

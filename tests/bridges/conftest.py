"""Real peers: Laravel on Redis and on the databases that its database driver knows."""

from pathlib import Path

import pytest

from tests.bridges.laravel_peer import LaravelPeer, database_peer, needs_laravel, own_database, redis_peer
from tests.plugins.lanes import parametrize_by_store


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_by_store(metafunc, "store_kind", ["redis", "sqlite", "postgresql", "mysql"])


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker in a thread of a test ends after the wait that it is in."""
    monkeypatch.setattr("duetime.bridges.laravel_worker.WAIT_S", 0.2)
    monkeypatch.setattr("duetime.bridges.laravel_worker.PAUSED_S", 0.02)


@pytest.fixture
def store_kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def peer(store_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> LaravelPeer:
    needs_laravel()
    match store_kind:
        case "redis":
            return redis_peer(request.getfixturevalue("redis_url"), tmp_path)
        case "sqlite":
            return database_peer(f"sqlite:{tmp_path / 'laravel.db'}", tmp_path)
        case "postgresql":
            return database_peer(own_database(request.getfixturevalue("postgres_server").url), tmp_path)
        case _:
            return database_peer(own_database(request.getfixturevalue("mysql_server").url), tmp_path)

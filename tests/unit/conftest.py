"""What the unit tests share. A module's STORE_KINDS are the stores that its tests with a store run on."""

from pathlib import Path

import pytest

from duetime.model.clock import ManualClock
from tests.plugins.lanes import parametrize_by_store


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_by_store(metafunc, "store_kind", getattr(metafunc.module, "STORE_KINDS", ()))


@pytest.fixture
def store_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store_url(store_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    match store_kind:
        case "memory":
            return "memory:"
        case "sqlite":
            return f"sqlite://{tmp_path}/jobs.db?synchronous=OFF"
        case _:
            return str(request.getfixturevalue(f"{store_kind}_url"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()

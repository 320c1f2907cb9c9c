"""A shell on a SQLite file of its own, and real servers, for the tests of the command line."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.shell import Shell
from tests.plugins.serving import Served, serving

Serve = Callable[..., Served]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(f"sqlite://{tmp_path / 'jobs.db'}", tmp_path)


@pytest.fixture
def serve(shell: Shell) -> Iterator[Serve]:
    """Start `duetime serve` on the shell's store and free ports; ends with the test."""
    with ExitStack() as servers:
        yield lambda *arguments: servers.enter_context(serving(shell.folder, *arguments, store=shell.url))


@pytest.fixture(params=["sqlite", "redis", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A client's URL: a store, or a server."""
    match request.param:
        case "sqlite":
            yield f"sqlite://{tmp_path}/jobs.db"
        case "redis":
            yield request.getfixturevalue("redis_url")
        case _:
            with serving(tmp_path, "--dev") as served:
                yield served.api

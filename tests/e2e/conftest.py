"""A shell on a SQLite file of its own, and real servers, for the tests of the command line."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.shell import Shell, program
from tests.plugins.processes import guard, release

STOP_S = 90


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(f"sqlite://{tmp_path / 'jobs.db'}", tmp_path)


@dataclass(frozen=True)
class Addresses:
    api: str
    admin: str


@pytest.fixture
def serve(shell: Shell) -> Iterator[Callable[..., Addresses]]:
    """Start `duetime serve` on the shell's store and free ports; ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> Addresses:
        process = subprocess.Popen(
            [*program(), "serve", "--store", shell.url, "--port", "0", "--admin-port", "0", *arguments],
            env=shell.environment(),
            cwd=shell.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        guard(process.pid)
        started.append(process)
        assert process.stdout is not None
        facts: dict[str, str] = {}
        for line in process.stdout:
            label, _, value = line.strip().partition(" ")
            facts[label] = value.strip()
            if label == "stop":
                return Addresses(facts["API"], facts["admin"])
        raise AssertionError(f"the server did not start: {facts}")

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=STOP_S)
        release(process.pid)

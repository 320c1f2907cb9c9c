"""A client on a store, and workers as real processes on it.

`start(...)` runs `duetime work tests.worker.sample:app` with these options, as a fork of a process that has imported
Duetime; `start.program(...)` runs the installed program, a second slower. Its `notes` are the lines that the sample
wrote: events, and what tasks noted. Workers that still run at the end of the test are killed.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import pytest

import duetime
from duetime.model.job import Job
from tests.e2e.shell import program
from tests.plugins.processes import guard, release
from tests.plugins.until import until
from tests.worker.forks import Forks, Process

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """SQLite. Some tests ask for other kinds by `indirect`: redis, postgres, mysql, group (two files of SQLite)."""
    kind = getattr(request, "param", "sqlite")
    if kind == "group":
        members = [quote(f"sqlite://{tmp_path / name}.db?synchronous=OFF", safe="") for name in ("a", "b")]
        return f"group:pair?a={members[0]}&b={members[1]}"
    if kind != "sqlite":
        return request.getfixturevalue(f"{kind}_url")
    return f"sqlite://{tmp_path / 'jobs.db'}?synchronous=OFF"


@pytest.fixture
def client(url: str) -> Iterator[duetime.Client]:
    with duetime.connect(url) as client:
        yield client


@dataclass
class Started:
    process: Process
    log: Path
    out: Path
    err: Path
    _notes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _read: int = 0

    @property
    def notes(self) -> list[dict[str, Any]]:
        """Reads on where it stopped: tests ask a hundred times a second. A line that is half written waits."""
        if self.log.exists():
            with self.log.open("rb") as file:
                file.seek(self._read)
                whole, newline, _half = file.read().rpartition(b"\n")
            self._read += len(whole + newline)
            self._notes += map(json.loads, whole.splitlines())
        return self._notes

    def kinds(self, job_id: str) -> list[str]:
        """What happened to one job, in order."""
        return [note["kind"] for note in self.notes if note.get("id") == job_id]

    def noted(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        return [note for note in self.notes if note["kind"] == kind and fields.items() <= note.items()]

    async def until_noted(self, kind: str, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
        def enough() -> bool:
            assert self.process.poll() is None or len(self.noted(kind, **fields)) >= count, self.err.read_text()
            return len(self.noted(kind, **fields)) >= count

        await until(enough, every_s=0.01)
        return self.noted(kind, **fields)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Wait for its end: the exit code and the reason."""
        code = self.process.wait(DEADLINE_S)
        return code, next((note["reason"] for note in reversed(self.notes) if note["kind"] == "stopping"), "")


@pytest.fixture
def app(tmp_path: Path) -> Iterator[duetime.App]:
    """A program's own App, on a file."""
    with duetime.App(f"sqlite://{tmp_path / 'jobs.db'}?synchronous=OFF") as app:
        yield app


def stored(app: duetime.App, job_id: str, queue: str = "default") -> Job:
    with duetime.connect(app.url) as client:
        return client.queue(queue).get(job_id)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    with Forks(ROOT) as forks:
        yield forks


class Start:
    """Starts workers on a store, with files of their own."""

    def __init__(self, url: str, folder: Path, forks: Forks) -> None:
        self._url = url
        self._folder = folder
        self._forks = forks
        self.started: list[Started] = []

    def __call__(
        self, *options: str, at: str = "", place: str = "tests.worker.sample:app", **environment: str
    ) -> Started:
        return self._start(self._fork, [place, *options], {"DUETIME_URL": at or self._url, **environment})

    def program(self, *options: str, place: str = "tests.worker.sample:app", **environment: str) -> Started:
        return self._start(self._spawn, [place, *options], {"DUETIME_URL": self._url, **environment})

    def _start(self, how: Callable[..., Process], options: list[str], more: dict[str, str]) -> Started:
        number = len(self.started)
        log, out, err = (self._folder / f"{name}-{number}" for name in ("log", "out", "err"))
        environment = {**os.environ, "SAMPLE_LOG": str(log), "NO_COLOR": "1", **more}
        with out.open("w") as to_out, err.open("w") as to_err:
            process = how(["work", *options], environment, out=to_out, err=to_err)
        guard(process.pid)
        self.started.append(Started(process, log, out, err))
        return self.started[-1]

    def _fork(self, arguments: list[str], environment: dict[str, str], *, out: IO[str], err: IO[str]) -> Process:
        return self._forks.start(arguments, environment, out=out, err=err)

    def _spawn(self, arguments: list[str], environment: dict[str, str], *, out: IO[str], err: IO[str]) -> Process:
        return subprocess.Popen([*program(), *arguments], cwd=ROOT, env=environment, stdout=out, stderr=err)


@pytest.fixture
def start(url: str, tmp_path: Path, forks: Forks) -> Iterator[Start]:
    start = Start(url, tmp_path, forks)
    yield start
    for one in start.started:
        one.process.kill()
        one.process.wait()
        release(one.process.pid)


@pytest.fixture
def sample(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The sample's tasks, to push with; each test gets its own, on its own store."""
    import importlib.util

    monkeypatch.setenv("DUETIME_URL", url)
    monkeypatch.setenv("SAMPLE_LOG", str(tmp_path / "producer.log"))
    spec = importlib.util.find_spec("tests.worker.sample")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    module.app.close()
    os.close(module.LOG)

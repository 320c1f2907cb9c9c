"""A client on a store of each kind, and workers as real processes on it.

`start(...)` runs `duetime work tests.worker.sample:app` with these options; its `notes` are the lines that the
sample wrote: events, and what tasks noted. Workers that still run at the end of the test are killed.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import duetime
from tests.e2e.shell import program
from tests.plugins.processes import guard, release
from tests.plugins.until import until

ROOT = Path(__file__).parents[2]
DEADLINE_S = 40


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return request.getfixturevalue("redis_url")
    return f"sqlite://{tmp_path / 'jobs.db'}?synchronous=OFF"


@pytest.fixture
def client(url: str) -> Iterator[duetime.Client]:
    with duetime.connect(url) as client:
        yield client


@dataclass
class Started:
    process: subprocess.Popen[str]
    log: Path
    out: Path
    err: Path

    @property
    def notes(self) -> list[dict[str, Any]]:
        text = self.log.read_text() if self.log.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line]

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


Start = Callable[..., Started]


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Start]:
    started: list[Started] = []

    def start(*options: str, at: str = url, place: str = "tests.worker.sample:app", **environment: str) -> Started:
        number = len(started)
        log, out, err = (tmp_path / f"{name}-{number}" for name in ("log", "out", "err"))
        with out.open("w") as to_out, err.open("w") as to_err:
            process = subprocess.Popen(
                [*program(), "work", place, *options],
                cwd=ROOT,
                env={**os.environ, "DUETIME_URL": at, "SAMPLE_LOG": str(log), "NO_COLOR": "1", **environment},
                stdout=to_out,
                stderr=to_err,
                text=True,
            )
        guard(process.pid)
        one = Started(process, log, out, err)
        started.append(one)
        return one

    yield start
    for one in started:
        if one.process.poll() is None:
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

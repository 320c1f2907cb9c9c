"""What the real database servers of the tests share: a process of a user that is not root, in a folder of its own."""

import functools
import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from tests.plugins.ports import find_free_port
from tests.plugins.processes import guard, make_folder, release

START_DEADLINE_S = 60
STOP_DEADLINE_S = 30

Setting = str | int


class DatabaseServer(ABC):
    """A server process that can be started again: same port, same folder."""

    user: str
    stop_signal: signal.Signals
    kill_signal: signal.Signals

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, find_free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it takes connections; called until it does."""

    def start(self) -> None:
        """Start, or start again after stop() or kill(), and return once it answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._owner()
            )
        guard(self._process.pid)
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._answers():
                return
            time.sleep(0.02)
        self.kill()
        raise RuntimeError(f"{self.user}'s server did not start:\n{self.log.read_text(errors='replace')}")

    def stop(self) -> None:
        """Shut down in good order. Does nothing when it is not running."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """End at once, as a crash does."""
        self._end(self.kill_signal)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        release(self._process.pid)
        self._process = None

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, check=False, capture_output=True, text=True, **self._owner())
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed ({done.returncode}):\n{done.stdout}{done.stderr}")

    def _make_data(self, program: str, option: str, *arguments: str) -> None:
        """Let a program make the data folder that the option names; once per test process: a copy is quicker."""
        made = template_folder(self.user) / "data"
        if not made.exists():
            self._run(program, *arguments, f"{option}={made}")
        self._run("cp", "-r", str(made), str(self.folder))

    def _owner(self) -> dict[str, object]:
        """The servers refuse to run as root. MariaDB removes temporary tables of others that start at the same time."""
        user = {"user": self.user, "group": self.user, "cwd": "/"} if os.getuid() == 0 else {}
        return {"env": {**os.environ, "TMPDIR": str(self.folder)}, **user}


Server = TypeVar("Server", bound=DatabaseServer)


class Servers(Generic[Server]):
    """Starts servers in folders below `base`, and stops them all."""

    def __init__(self, base: Path, make: Callable[..., Server], user: str) -> None:
        self._base, self._make, self._user = base, make, user
        self._started: list[Server] = []

    def start(self, **settings: object) -> Server:
        folder = self._base / str(len(self._started))
        folder.mkdir()
        give_to(folder, self._user)
        self._started.append(self._make(folder, **settings))
        self._started[-1].start()
        return self._started[-1]

    def stop(self) -> None:
        for server in self._started:
            server.stop()


def give_to(folder: Path, user: str) -> None:
    if os.getuid() == 0:
        shutil.chown(folder, user, user)


@functools.cache
def template_folder(user: str) -> Path:
    """For the data with which each server of a kind begins."""
    folder = make_folder(f"duetime-{user}-template-")
    give_to(folder, user)
    return folder


@contextmanager
def servers(make: Callable[..., Server], user: str) -> Iterator[Servers[Server]]:
    base = make_folder(f"duetime-{user}-")
    started = Servers(base, make, user)
    try:
        yield started
    finally:
        started.stop()
        shutil.rmtree(base, ignore_errors=True)

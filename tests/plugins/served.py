"""`duetime serve` as a real process, of one worker or several.

server = start_server("--workers", "2", DUETIME_LOG_FORMAT="json")      # --dev, free ports, a folder of its own
server.api, server.admin            addresses
server.workers()                    process ids, in the order of their start
server.stop()                       exit code and everything on standard error
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.plugins.processes import guard, release

COMMAND = [str(Path(sys.executable).with_name("duetime"))]
STOP_S = 90
ANY_PORT = ("--port", "0", "--admin-port", "0")

StartServer = Callable[..., "ServedProcess"]


class ServedProcess:
    """A running `duetime serve`, after its start-up message. Standard error is collected as it comes."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.message: list[str] = []
        self._errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors)
        self._reader.start()
        assert process.stdout is not None
        for line in iter(process.stdout.readline, ""):
            self.message.append(line.rstrip("\n"))
            if line.lstrip().startswith("stop "):
                break

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(iter(self.process.stderr.readline, ""))

    @property
    def log(self) -> str:
        """Standard error so far."""
        return "".join(self._errors)

    def address(self, label: str) -> str:
        [line] = [line for line in self.message if line.split()[0] == label]
        return line.split()[1]

    @property
    def api(self) -> str:
        return self.address("API")

    @property
    def admin(self) -> str:
        return self.address("admin")

    @property
    def port(self) -> int:
        return int(self.api.rpartition(":")[2])

    def workers(self) -> list[int]:
        """The children of the process that was started, living ones only."""
        return sorted(pid for pid, parent, state in processes() if parent == self.process.pid and state != "Z")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> tuple[int, str]:
        code = self.process.wait(STOP_S)
        release(self.process.pid)
        self._reader.join(STOP_S)  # workers hold standard error open: none of them is left when this returns
        assert not self._reader.is_alive()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code, self.log

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        self.send(number)
        return self.wait()

    def clean_up(self) -> None:
        if self.process.stdout is not None and not self.process.stdout.closed:
            for pid in (self.process.pid, *self.workers()):
                with contextlib.suppress(ProcessLookupError):  # a worker may end between the look and the signal
                    os.kill(pid, signal.SIGKILL)
            self.wait()


def processes() -> Iterator[tuple[int, int, str]]:
    """Process id, parent and state of everything that runs."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and (fields := _stat(int(name))):
            yield int(name), int(fields[1]), fields[0]


def _stat(pid: int) -> list[str]:
    """State, parent and so on; empty for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_running(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], ["Z"])


def launch_server(folder: Path, *arguments: str, **environment: str) -> ServedProcess:
    """Start it in the folder; the caller ends it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
    process = subprocess.Popen(
        [*COMMAND, "serve", *arguments],
        cwd=folder,
        env=inherited | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    guard(process.pid)
    return ServedProcess(process, folder)


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    started: list[ServedProcess] = []

    def start(
        *arguments: str, ports: tuple[str, ...] = ANY_PORT, dev: bool = True, **environment: str
    ) -> ServedProcess:
        server = launch_server(tmp_path, *(["--dev"] if dev else []), *ports, *arguments, **environment)
        started.append(server)
        return server

    yield start
    for server in started:
        server.clean_up()

"""The processes of the demo: a Redis that keeps nothing on disk, and a server.

Each runs in a session of its own, so that Ctrl-C reaches the demo alone, which then stops them in order. What they
print goes to files in the demo's folder.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

from duetime.client import Client
from duetime.client.client import LeasedJob
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.job import Moved

START_S = 30.0
STOP_S = 20.0
LOOK_S = 0.05
SERVE = "from duetime.cli.main import main; main()"


class DemoFailed(DuetimeError):
    """The demo did not go as it must."""

    code = "demo_failed"
    status = 409


class DemoProcess:
    """One process. `stop` sends TERM and, if that is not enough, KILL; stopping twice is fine."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name, self._command = name, command
        self.log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self) -> None:
        # Settings of the person who runs the demo must not change what it shows.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environment, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End immediately, as a crash does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def check_running(self) -> None:
        if self._process is None or self._process.poll() is not None:
            raise DemoFailed(f"{self.name} ended: {self.said()[-500:]}")

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class EmptyRedis(DemoProcess):
    """A redis-server that writes nothing to disk: killed and started again, it is empty."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        program = find_redis()
        if program is None:
            raise StoreUnavailable("redis-server is not installed")
        settings = ("--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no")
        super().__init__("redis", (program, *settings, "--dir", str(folder)), folder)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Returns once Redis takes connections."""
        super().start()
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            self.check_running()
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(LOOK_S)
        raise DemoFailed("redis-server did not start in time")


class Server(DemoProcess):
    """`duetime serve` on loopback; `api` is its address once it has started."""

    def __init__(self, store: str, journal: Path, folder: Path) -> None:
        arguments = ("--store", store, "--journal", str(journal), "--port", "0", "--admin-port", "0", "--dev")
        super().__init__("server", (sys.executable, "-c", SERVE, "serve", *arguments), folder)
        self.api = ""

    def start(self) -> None:
        super().start()
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            facts = dict(line.split(None, 1) for line in self.said().splitlines() if len(line.split(None, 1)) == 2)
            if "stop" in facts and "API" in facts:
                self.api = facts["API"].strip()
                return
            self.check_running()
            time.sleep(LOOK_S)
        raise DemoFailed(f"the server did not start in time: {self.said()[-500:]}")


def find_redis() -> str | None:
    return shutil.which("redis-server") or shutil.which("redis-server", path="/usr/bin:/usr/local/bin")


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- consumers
#
# The demo's consumers: a few threads that work through the server and go on trying while the store is gone.
#
# One reminder in a hundred fails the first time and is tried again; one in a thousand is refused for good and becomes
# a dead letter. The id alone decides which ones, so they are the same in every run.


PAUSE_S = 0.2
LIMIT = 50
RETRY = "1s"


class Consumers:
    """A context manager: the threads run until it ends. `tally` counts what they did."""

    def __init__(self, url: str, *, namespace: str, queue: str, threads: int = 4) -> None:
        self._url, self._namespace, self._queue = url, namespace, queue
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, name=f"consumer {n}", daemon=True) for n in range(threads)]
        self.tally: Counter[str] = Counter()

    def __enter__(self) -> "Consumers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with Client(self._url, namespace=self._namespace) as client:
            while not self._stopping.is_set():
                try:
                    self._work(client, client.queue(self._queue).reserve(limit=LIMIT, ttr="15s", wait=1))
                except DuetimeError:
                    self._count("refused", 1)
                    self._stopping.wait(PAUSE_S)

    def _work(self, client: Client, deliveries: Sequence[LeasedJob]) -> None:
        self._count("delivered", len(deliveries))
        done: list[LeasedJob] = []
        for delivery in deliveries:
            chance = crc32(delivery.lease.id.encode()) % 1000
            if chance == 1:
                client.kill(delivery, error="no such address")
                self._count("killed", 1)
            elif chance < 11 and delivery.lease.attempt == 1:
                client.release(delivery, delay=RETRY, error="mail server busy")
                self._count("released", 1)
            else:
                done.append(delivery)
        if done:
            answers = client.queue(self._queue).ack(done)
            self._count("acked", sum(isinstance(answer, Moved) for answer in answers))

    def _count(self, word: str, number: int) -> None:
        with self._lock:
            self.tally[word] += number

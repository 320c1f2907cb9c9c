"""Real Redis servers, each on a free port in a folder of its own.

`redis_server` is one server per test process, without persistence. `redis_url` is its address with all data removed.
`start_redis(**config)` starts another with its own configuration and stops it after the test:

    replica = start_redis(replicaof=f"127.0.0.1 {redis_server.port}")
    durable = start_redis(appendonly="yes", appendfsync="always")
    durable.kill()       # as a crash would
    durable.start()      # same port, same folder, so what was persisted is back
"""

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import redis

from tests.plugins.ci import missing_service
from tests.plugins.ports import find_free_port
from tests.plugins.processes import guard, release

START_DEADLINE_S = 60
STOP_DEADLINE_S = 60
PORT_TRIES = 5
DEFAULTS: Mapping[str, str] = {"bind": "127.0.0.1", "save": "", "appendonly": "no", "daemonize": "no"}

Setting = str | int


class RedisServer:
    """A redis-server process. Settings are Redis's own, with `_` for `-`, such as `maxmemory_policy="noeviction"`."""

    def __init__(self, folder: Path, **config: Setting) -> None:
        self.folder = folder
        self.config: dict[str, Setting] = {**DEFAULTS, "port": find_free_port(), **config}
        self._port_is_fixed = "port" in config
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        return int(self.config["port"])

    @property
    def url(self) -> str:
        password = self.config.get("requirepass")
        return f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("this Redis is not running")
        return self._process.pid

    def start(self) -> None:
        """Start, or start again after stop() or kill(), and return once it answers."""
        if self._process is not None:
            raise RuntimeError("this Redis is already running")
        for _ in range(PORT_TRIES):
            self._launch()
            if self._answers():
                # Others may rely on the address from now on, so a later start keeps it.
                self._port_is_fixed = True
                return
            self._reap()
            if self._port_is_fixed:
                break
            self.config["port"] = find_free_port()  # somebody took the port between the probe and the bind
        raise RuntimeError(f"redis-server did not start:\n{self.log()}")

    def stop(self) -> None:
        """Shut down in good order (Redis persists what it is set to persist). Does nothing when it is not running."""
        if self._process is None:
            return
        self._process.terminate()
        self._process.send_signal(signal.SIGCONT)  # a paused one could not obey
        try:
            self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reap()

    def kill(self) -> None:
        """End at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def pause(self) -> None:
        """Stop answering without closing connections, until resume()."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def log(self) -> str:
        path = self.folder / "redis.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise RuntimeError("this Redis is not running")
        self._process.send_signal(number)

    def _launch(self) -> None:
        lines = [f'dir "{self.folder}"']
        for name, value in self.config.items():
            shown = '""' if value == "" else value
            lines.append(f"{name.replace('_', '-')} {shown}")
        config_file = self.folder / "redis.conf"
        config_file.write_text("\n".join(lines) + "\n")
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [find_redis_program(), str(config_file)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        guard(self._process.pid)

    def _answers(self) -> bool:
        """True once this very process answers PING, False when it ended; a stranger on the port does not count."""
        assert self._process is not None
        deadline = time.monotonic() + START_DEADLINE_S
        client = redis.Redis.from_url(self.url, socket_timeout=START_DEADLINE_S)
        try:
            while time.monotonic() < deadline:
                try:
                    if client.info("server")["process_id"] == self._process.pid and client.ping():
                        return True
                except redis.RedisError:
                    pass  # not listening yet, or still loading its data
                try:
                    self._process.wait(0.005)
                except subprocess.TimeoutExpired:
                    continue
                return False
        finally:
            client.close()
        self._process.kill()
        return False

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            release(self._process.pid)
            self._process = None


def find_redis_program() -> str:
    program = shutil.which("redis-server") or shutil.which("redis-server", path="/usr/bin:/usr/local/bin")
    if program is None:
        missing_service("redis-server is not installed")
    return program


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def start_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RedisServer]]:
    servers: list[RedisServer] = []

    def start(**config: Setting) -> RedisServer:
        server = RedisServer(tmp_path_factory.mktemp("redis"), **config)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()

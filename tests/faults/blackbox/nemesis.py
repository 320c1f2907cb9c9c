"""The system under test, and what the nemesis does to it.

A system is a real server with two worker processes and a journal, its store, and proxies: one between clients and
server, and one before each server of the store. An action does harm for a while, heals it, and returns; the load goes
on all the time.

`CLOCK` is a module for the server's Python that shifts the wall clock by as many seconds as a shared file says.
"""

import asyncio
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import redis

from tests.faults.losing_proxy import LosingProxy
from tests.plugins.database_server import servers
from tests.plugins.mysql_server import MysqlServer
from tests.plugins.ports import find_free_port
from tests.plugins.postgres_server import STORE, PostgresServer
from tests.plugins.redis_server import RedisServer
from tests.plugins.served import ServedProcess, launch_server, processes
from tests.plugins.until import until

HARM_S = 1.5
HOUR_S = 3600
DISK = "size=48m"
CLOCK = """
import mmap, os, struct, time
with open(os.environ["CLOCK_FILE"], "r+b") as file:
    shift = mmap.mmap(file.fileno(), 8)
wall, wall_ns = time.time, time.time_ns
def seconds():
    return struct.unpack_from("q", shift)[0]
time.time = lambda: wall() + seconds()
time.time_ns = lambda: wall_ns() + seconds() * 1_000_000_000
"""

STORES = ("sqlite", "redis", "postgres", "mysql", "group")

StoreServer = RedisServer | PostgresServer | MysqlServer


class System:
    """Opened on one kind of store; `folder` holds its files. SQLite and the journal have file systems of their own
    if we may mount them, so that they can be filled.
    """

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.servers: list[StoreServer] = []
        self.ways: list[LosingProxy] = []
        self.disks: list[Path] = []
        self._port, self._admin_port = find_free_port(), find_free_port()
        self._stack = ExitStack()
        self._proxies = AsyncExitStack()

    async def __aenter__(self) -> "System":
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("journal", *(["data"] if self.kind == "sqlite" else [])):
            self._mount(self.folder / name)
        await asyncio.to_thread(self._start_stores)
        self.ways = [await self._proxies.enter_async_context(LosingProxy(server.port)) for server in self.servers]
        self.front = await self._proxies.enter_async_context(LosingProxy(self._port))
        self.api = f"http://127.0.0.1:{self.front.port}"
        self._prepare_clock()
        await self.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.server.clean_up)
        await self._proxies.aclose()
        await asyncio.to_thread(self._stack.close)

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    @property
    def url(self) -> str:
        """The store without a proxy."""
        return self._url([server.port for server in self.servers])

    async def start_server(self) -> None:
        environment = {
            "DUETIME_STORE": self._url([way.port for way in self.ways]),
            "DUETIME_JOURNAL": str(self.journal),
            "DUETIME_JOURNAL_RESERVE": "4MiB",
            "PYTHONPATH": f"{self.folder / 'clock'}:{os.environ.get('PYTHONPATH', '')}",
            "CLOCK_FILE": str(self.folder / "clock" / "shift"),
        }
        ports = ["--port", str(self._port), "--admin-port", str(self._admin_port)]
        self.server: ServedProcess = await asyncio.to_thread(
            launch_server, self.folder, "--dev", "--workers", "2", *ports, **environment
        )

    async def stop_server(self) -> None:
        code, log = await asyncio.to_thread(self.server.stop)
        if code:
            raise RuntimeError(f"the server ended with {code}:\n{log[-2000:]}")

    def shift_clock(self, seconds: int) -> None:
        """Of the server, not of the store."""
        with (self.folder / "clock" / "shift").open("r+b") as file:
            file.write(struct.pack("q", seconds))

    def _prepare_clock(self) -> None:
        (self.folder / "clock").mkdir()
        (self.folder / "clock" / "sitecustomize.py").write_text(CLOCK)
        (self.folder / "clock" / "shift").write_bytes(bytes(8))

    def _mount(self, folder: Path) -> None:
        folder.mkdir()
        if not shutil.which("mount") or os.geteuid():
            return
        mount = ["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", str(folder)]
        if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            self._stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
            self.disks.append(folder)

    def _start_stores(self) -> None:
        match self.kind:
            case "redis" | "group":
                for number in range(2 if self.kind == "group" else 1):
                    folder = self.folder / f"redis{number}"
                    folder.mkdir()
                    server = RedisServer(folder, appendonly="yes", appendfsync="always")
                    server.start()
                    self._stack.callback(server.stop)
                    self.servers.append(server)
            case "postgres":
                made = self._stack.enter_context(servers(PostgresServer, "postgres"))
                self.servers.append(made.start(fsync="on", full_page_writes="on"))
            case "mysql":
                made = self._stack.enter_context(servers(MysqlServer, "mysql"))
                durable = {"innodb_flush_log_at_trx_commit": 1, "innodb_flush_method": "fsync", "innodb_doublewrite": 1}
                self.servers.append(made.start(**durable))

    def _url(self, ports: list[int]) -> str:
        match self.kind:
            case "sqlite":
                return f"sqlite://{self.folder}/data/jobs.db"
            case "redis":
                return f"redis://127.0.0.1:{ports[0]}/0?timeout=3"
            case "postgres":
                return f"postgresql://duetime@127.0.0.1:{ports[0]}/postgres?{STORE}"
            case "mysql":
                return f"mysql://duetime:secret@127.0.0.1:{ports[0]}/duetime?ssl_mode=disabled"
            case _:
                members = (f"{name}={quote(f'redis://127.0.0.1:{port}/0?timeout=3', safe='')}"
                           for name, port in zip("ab", ports, strict=True))  # fmt: skip
                return f"group:pair?{'&'.join(members)}"


Harm = Callable[[System], Awaitable[None]]
ACTIONS: dict[str, tuple[Harm, Callable[[System], object]]] = {}
"""What the nemesis can do by its name, and to which systems."""


def action(name: str, on: Callable[[System], object] = lambda system: True) -> Callable[[Harm], Harm]:
    def add(harm: Harm) -> Harm:
        ACTIONS[name] = harm, on
        return harm

    return add


def has_server(system: System) -> object:
    return system.servers


def is_redis(system: System) -> object:
    return system.kind in ("redis", "group")


@action("nothing")
async def rest(system: System) -> None:
    await asyncio.sleep(HARM_S)


@action("kill -9 a worker process")
async def kill_worker(system: System) -> None:
    before = system.server.workers()
    os.kill(before[0], signal.SIGKILL)
    await until(lambda: len(system.server.workers()) == 2 and system.server.workers() != before)


@action("kill -9 the whole server")
async def kill_server(system: System) -> None:
    await asyncio.to_thread(system.server.clean_up)
    await system.start_server()


@action("kill -9 the supervisor")
async def kill_supervisor(system: System) -> None:
    system.server.send(signal.SIGKILL)
    await asyncio.to_thread(system.server.wait)  # its workers drain and end
    await system.start_server()


@action("restart the server (TERM)")
async def restart(system: System) -> None:
    await system.stop_server()
    await system.start_server()


@action("STOP and CONT a worker process")
async def pause_worker(system: System) -> None:
    worker = system.server.workers()[0]
    os.kill(worker, signal.SIGSTOP)
    await asyncio.sleep(HARM_S)
    os.kill(worker, signal.SIGCONT)


@action("cut the connections of clients")
async def cut_clients(system: System) -> None:
    await _cut(system.front)


@action("swallow answers to clients")
async def swallow_answers(system: System) -> None:
    await _swallow([system.front])


@action("no byte passes to or from clients")
async def stall_clients(system: System) -> None:
    system.front.stall()
    await asyncio.sleep(HARM_S)
    system.front.flow()


@action("kill -9 the store", has_server)
async def kill_store(system: System) -> None:
    server = system.servers[0]
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(0.3)
    await asyncio.to_thread(server.start)


@action("STOP and CONT the store", has_server)
async def pause_store(system: System) -> None:
    server = system.servers[0]
    assert server._process is not None
    tree = [server._process.pid, *(pid for pid, parent, _ in processes() if parent == server._process.pid)]
    _signal(tree, signal.SIGSTOP)
    await asyncio.sleep(HARM_S)
    _signal(tree, signal.SIGCONT)


@action("cut the connections of the store", has_server)
async def cut_store(system: System) -> None:
    await _cut(system.ways[0])


@action("swallow answers of the store", has_server)
async def swallow_store(system: System) -> None:
    await _swallow(system.ways[:1])


@action("no byte passes to or from the store", has_server)
async def stall_store(system: System) -> None:
    system.ways[0].stall()
    await asyncio.sleep(HARM_S)
    system.ways[0].flow()


@action("the store is slow (50 ms)", has_server)
async def slow_store(system: System) -> None:
    system.ways[0].delay_s = 0.05
    await asyncio.sleep(HARM_S)
    system.ways[0].delay_s = 0.0


@action("end all sessions of the store", has_server)
async def end_sessions(system: System) -> None:
    for _ in range(3):
        for server in system.servers:
            if isinstance(server, RedisServer):
                _redis(server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            else:
                await asyncio.to_thread(server.end_sessions)
        await asyncio.sleep(HARM_S / 3)


@action("the store is read only", has_server)
async def read_only(system: System) -> None:
    for setting in (True, False):
        for server in system.servers[:1]:
            match server:
                case RedisServer():  # no write is taken without a replica
                    _redis(server, "CONFIG", "SET", "min-replicas-to-write", str(int(setting)))
                case PostgresServer():
                    await asyncio.to_thread(_postgres_read_only, server, setting)
                case MysqlServer():
                    server.administer(f"SET GLOBAL read_only = {int(setting)}")
        if setting:
            await asyncio.sleep(HARM_S)


@action("SCRIPT FLUSH", is_redis)
async def flush_scripts(system: System) -> None:
    for _ in range(5):
        for server in system.servers:
            _redis(server, "SCRIPT", "FLUSH")
        await asyncio.sleep(HARM_S / 5)


@action("maxmemory is reached", is_redis)
async def fill_memory(system: System) -> None:
    for limit in (1, 0):
        for server in system.servers:
            _redis(server, "CONFIG", "SET", "maxmemory", str(limit))
        if limit:
            await asyncio.sleep(HARM_S)


@action("the disk is full (SQLite)", lambda system: system.folder / "data" in system.disks)
async def fill_store_disk(system: System) -> None:
    await _fill(system.folder / "data")


@action("the disk is full (journal)", lambda system: system.journal in system.disks)
async def fill_journal_disk(system: System) -> None:
    await _fill(system.journal)


@action("the server's clock is an hour ahead", has_server)
async def clock_ahead(system: System) -> None:
    system.shift_clock(HOUR_S)
    await asyncio.sleep(HARM_S)
    system.shift_clock(0)


@action("the server's clock steps back an hour", has_server)
async def clock_back(system: System) -> None:
    system.shift_clock(-HOUR_S)
    await asyncio.sleep(HARM_S)
    system.shift_clock(0)


async def _cut(proxy: LosingProxy) -> None:
    for _ in range(5):
        proxy.cut()
        await asyncio.sleep(HARM_S / 5)


async def _swallow(proxies: list[LosingProxy]) -> None:
    for proxy in proxies:
        proxy.loses_every = 7
    await asyncio.sleep(HARM_S)
    for proxy in proxies:
        proxy.loses_every, proxy.loses_next = 0, False


async def _fill(disk: Path) -> None:
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\1" * 4096)
    await asyncio.sleep(HARM_S)
    filler.unlink()


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # a session of the database may have ended
            os.kill(pid, number)


def _redis(server: RedisServer, *command: str) -> Any:
    with redis.Redis.from_url(server.url) as client:
        return client.execute_command(*command)


def _postgres_read_only(server: PostgresServer, setting: bool) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {'on' if setting else 'off'}")
        connection.execute("SELECT pg_reload_conf()")

"""The system under test: a real server with two worker processes and a journal, its store, and proxies.

One proxy is between clients and server, and one before each server of the store. A Redis Cluster and a Redis behind
Sentinels have none, because their clients learn the addresses of the nodes from the nodes.

`CLOCK` is a module for the server's Python that shifts the wall clock by as many seconds as a file of its host says.
"""

import asyncio
import json
import os
import shutil
import struct
import subprocess
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from urllib.parse import urlencode

import psycopg

from tests.faults.blackbox.clients import Load
from tests.faults.losing_proxy import LosingProxy
from tests.plugins.database_server import Setting, servers
from tests.plugins.mysql_server import NODES, MysqlServer, cluster_address, galera_node
from tests.plugins.ports import find_free_port
from tests.plugins.postgres_server import STORE, PostgresServer
from tests.plugins.redis_server import RedisServer
from tests.plugins.redis_topologies import RedisCluster, SentinelSet
from tests.plugins.served import COMMAND, ServedProcess, launch_server

DISK = "size=192m"
RECONCILE_S = 1800
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
"""Stores that keep what they answered, whatever the nemesis does."""
FAILOVERS = ("everysec", "sentinel", "cluster", "standby", "sync", "replica", "galera")
"""Set-ups of which the last writes can be lost: Redis with appendfsync everysec, Redis with replicas, PostgreSQL with
an asynchronous standby, MariaDB with a replica. For comparison, PostgreSQL with a synchronous standby, and three nodes
of a Galera cluster, all programs on one of them.
"""
ON_SMALL_DISKS = 200_000
"""Jobs that fit onto the small file systems; a system for more has none."""
MARIADBS = ("replica", "galera")
DURABLE_MARIADB: dict[str, Setting] = {
    "innodb_flush_log_at_trx_commit": 1,
    "innodb_flush_method": "fsync",
    "innodb_doublewrite": 1,
}

StoreServer = RedisServer | PostgresServer | MysqlServer


class Host:
    """One `duetime serve` with its own ports and clock. The journal's folder is that of all hosts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self._admin_port = find_free_port(), find_free_port()
        (folder / "clock").mkdir(parents=True)
        (folder / "clock" / "sitecustomize.py").write_text(CLOCK)
        (folder / "clock" / "shift").write_bytes(bytes(8))

    def start(self, store: str, journal: Path) -> None:
        environment = {
            "DUETIME_STORE": store,
            "DUETIME_JOURNAL": str(journal),
            "DUETIME_JOURNAL_RESERVE": "4MiB",
            "PYTHONPATH": f"{self.folder / 'clock'}:{os.environ.get('PYTHONPATH', '')}",
            "CLOCK_FILE": str(self.folder / "clock" / "shift"),
        }
        ports = ["--port", str(self.port), "--admin-port", str(self._admin_port)]
        self.server: ServedProcess = launch_server(self.folder, "--dev", "--workers", "2", *ports, **environment)

    def stop(self) -> None:
        code, log = self.server.stop()
        if code:
            raise RuntimeError(f"the server ended with {code}:\n{log[-2000:]}")

    def shift_clock(self, seconds: int) -> None:
        """Of the server, not of the store."""
        with (self.folder / "clock" / "shift").open("r+b") as file:
            file.write(struct.pack("q", seconds))


class System:
    """Opened on one kind of store; `folder` holds its files. The journal and the jobs of a SQL store have small file
    systems of their own if we may mount them, so that they can be filled.
    """

    def __init__(self, kind: str, folder: Path, *, due_together: int = 0) -> None:
        self.kind, self.folder = kind, folder
        self.due_together = due_together
        """How many jobs fall due in the same second."""
        self.servers: list[StoreServer] = []
        self.topology: SentinelSet | RedisCluster | None = None
        self.ways: list[LosingProxy] = []
        self.disks: list[Path] = []
        self.load: Load | None = None
        """The clients of the round."""
        self._stack = ExitStack()
        self._proxies = AsyncExitStack()

    async def __aenter__(self) -> "System":
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("journal", *(["data"] if self.kind == "sqlite" else [])):
            (self.folder / name).mkdir()
            self._mount(self.folder / name)
        self.hosts = [Host(self.folder / name) for name in ("host0", "host1")]
        await asyncio.to_thread(self._start_stores)
        self.ways = [await self._proxies.enter_async_context(LosingProxy(server.port)) for server in self.servers]
        self.front = await self._proxies.enter_async_context(LosingProxy(self.hosts[0].port))
        self.api = f"http://127.0.0.1:{self.front.port}"
        await self.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        for host in self.hosts:
            if hasattr(host, "server"):
                await asyncio.to_thread(host.server.clean_up)
        await self._proxies.aclose()
        await asyncio.to_thread(self._stack.close)

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    @property
    def data(self) -> Path:
        """Where the jobs of SQLite, PostgreSQL or MariaDB are."""
        match self.kind:
            case "sqlite":
                return self.folder / "data"
            case "mysql":
                return self.servers[0].folder / "data" / "duetime"
            case _:
                return self.servers[0].folder / "small"

    @property
    def server(self) -> ServedProcess:
        return self.hosts[0].server

    @property
    def url(self) -> str:
        """The store without a proxy."""
        return self._url([server.port for server in self.servers])

    async def start_server(self, host: int = 0) -> None:
        store = self._url([way.port for way in self.ways])
        await asyncio.to_thread(self.hosts[host].start, store, self.journal)

    async def stop_server(self, host: int = 0) -> None:
        await asyncio.to_thread(self.hosts[host].stop)

    async def reconcile(self) -> int:
        """Put back what the store lost; how many jobs that were."""
        command = [*COMMAND, "pipeline", "reconcile", "--url", self.api, "--grace", "0s", "--json"]
        where = ["--journal", str(self.journal), "--lake", str(self.folder / "lake")]
        async with asyncio.timeout(RECONCILE_S):
            run = await asyncio.create_subprocess_exec(
                *command, *where, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.folder
            )
            out, errors = await run.communicate()
        if run.returncode:
            raise RuntimeError(f"reconcile ended with {run.returncode}:\n{out.decode()}{errors.decode()[-3000:]}")
        return int(json.loads(out.splitlines()[-1])["counts"].get("pushed", 0))

    def _mount(self, folder: Path, owner: str = "root") -> None:
        if os.geteuid() or self.due_together > ON_SMALL_DISKS:
            return
        mount = ["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", str(folder)]
        if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            self._stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
            self.disks.append(folder)
        shutil.chown(folder, owner, owner)

    def _start_stores(self) -> None:
        match self.kind:
            case "redis" | "group" | "everysec":
                for number in range(2 if self.kind == "group" else 1):
                    folder = self.folder / f"redis{number}"
                    folder.mkdir()
                    fsync = "everysec" if self.kind == "everysec" else "always"
                    server = RedisServer(folder, appendonly="yes", appendfsync=fsync)
                    server.start()
                    self._stack.callback(server.stop)
                    self.servers.append(server)
            case "sentinel" | "cluster":
                self.topology = (SentinelSet if self.kind == "sentinel" else RedisCluster)(self.folder / self.kind)
                self._stack.callback(self.topology.stop)
                self.topology.start()
            case "postgres":
                made = self._stack.enter_context(servers(PostgresServer, "postgres"))
                server = made.start(fsync="on", full_page_writes="on")
                self.servers.append(server)
                self.data.mkdir()
                self._mount(self.data, "postgres")
                with psycopg.connect(server.url.replace("/postgres", "/template1"), autocommit=True) as connection:
                    connection.execute(f"CREATE TABLESPACE small LOCATION '{self.data}'")  # type: ignore[arg-type]
                    connection.execute("ALTER DATABASE postgres SET TABLESPACE small")
            case "standby" | "sync":
                made = self._stack.enter_context(servers(PostgresServer, "postgres"))
                durable = {"fsync": "on", "full_page_writes": "on"}
                primary = made.start(wal_level="replica", max_wal_senders=4, hot_standby="on", **durable)
                self.servers += [primary, made.start(standby_of=primary)]
                if self.kind == "sync":
                    with psycopg.connect(primary.url, autocommit=True) as connection:
                        connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                        connection.execute("SELECT pg_reload_conf()")
            case "mysql":
                made = self._stack.enter_context(servers(MysqlServer, "mysql"))
                self.servers.append(made.start(**DURABLE_MARIADB))
                self._mount(self.data, "mysql")
            case "replica":
                made = self._stack.enter_context(servers(MysqlServer, "mysql"))
                logged: dict[str, Setting] = {"log_bin": "binlog", "sync_binlog": 1, **DURABLE_MARIADB}
                primary, replica = made.start(server_id=1, **logged), made.start(server_id=2, read_only=1, **logged)
                replica.follow(primary)
                self.servers += [primary, replica]
            case "galera":
                made = self._stack.enter_context(servers(MysqlServer, "mysql"))
                ports = [find_free_port() for _ in range(NODES)]
                for number in range(NODES):
                    node = made.start(**galera_node(number, ports), **DURABLE_MARIADB)
                    self.servers.append(node)
                    node.options["wsrep-cluster-address"] = cluster_address(ports)

    def _url(self, ports: list[int]) -> str:
        if self.topology is not None:
            return f"{self.topology.url}?timeout=3"
        addresses = [f"127.0.0.1:{port}" for port in ports]
        redises = [f"redis://{address}/0?timeout=3" for address in addresses]
        urls = {
            "sqlite": f"sqlite://{self.folder}/data/jobs.db",
            "redis": "".join(redises),
            "everysec": "".join(redises),
            "group": "group:pair?" + urlencode(dict(zip("ab", redises, strict=False))),
            "postgres": f"postgresql://duetime@{''.join(addresses)}/postgres?{STORE}",
            "mysql": f"mysql://duetime:secret@{''.join(addresses)}/duetime?ssl_mode=disabled",
        }
        if self.kind in MARIADBS:
            return f"mysql://duetime:secret@{addresses[0]}/duetime?ssl_mode=disabled"
        hosts = f"postgresql://duetime@{','.join(addresses)}/postgres?{STORE}&target_session_attrs=read-write"
        return urls.get(self.kind, hosts)

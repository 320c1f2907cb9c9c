"""A real Redis Cluster and a real Redis behind Sentinels, from nothing but `redis-server`.

`redis_cluster` is three primaries with one replica each, shared by the tests of a module and empty for each of them;
`doomed_cluster` is another for a test that breaks it. `sentinel_set` is one primary, one replica and three Sentinels.
Each takes about two seconds to start.
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import redis

from tests.plugins.ports import find_free_port
from tests.plugins.processes import guard
from tests.plugins.redis_server import RedisServer, Setting, find_redis_program

DEADLINE_S = 90
SLOTS = 16384
SERVICE = "main"

Servers = TypeVar("Servers", "RedisCluster", "SentinelSet")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return once the condition holds; a server that is just starting counts as not there yet."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except redis.RedisError:
            pass
        time.sleep(0.01)
    raise TimeoutError(f"waited {DEADLINE_S} s for this: {what}")


def ask(server: RedisServer, *command: Setting) -> object:
    with redis.Redis.from_url(server.url, decode_responses=True, socket_timeout=DEADLINE_S) as client:
        return client.execute_command(*command)


class RedisCluster:
    """Primaries 0 to 2; replica n copies primary n until a failover."""

    def __init__(self, folder: Path) -> None:
        self.primaries = [self._server(folder / f"primary-{n}") for n in range(3)]
        self.replicas = [self._server(folder / f"replica-{n}") for n in range(3)]

    @property
    def servers(self) -> list[RedisServer]:
        return [*self.primaries, *self.replicas]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.primaries)

    def start(self) -> None:
        for server in self.servers:
            server.start()
        first = self.primaries[0]
        for server in self.servers[1:]:
            ask(server, "CLUSTER", "MEET", "127.0.0.1", first.port, first.config["cluster_port"])
        for number, primary in enumerate(self.primaries):
            ask(primary, "CLUSTER", "ADDSLOTSRANGE", SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1)
        for primary, replica in zip(self.primaries, self.replicas, strict=True):
            identity = self.identity(primary)
            wait_until(lambda replica=replica, identity=identity: self._knows(replica, identity), "all nodes have met")
            ask(replica, "CLUSTER", "REPLICATE", identity)
        wait_until(lambda: all(map(self.is_whole, self.servers)), "the cluster is whole")
        wait_until(lambda: all(map(_is_synced, self.replicas)), "the replicas are in step")

    def stop(self) -> None:
        for server in self.servers:
            server.kill()

    def identity(self, server: RedisServer) -> str:
        return str(ask(server, "CLUSTER", "MYID"))

    def is_whole(self, server: RedisServer) -> bool:
        return "cluster_state:ok" in str(_info(server, "CLUSTER", "INFO"))

    def move_slots(self, slots: list[int], source: RedisServer, target: RedisServer) -> None:
        """Reshard as redis-cli does it: key by key, while clients go on."""
        to, of = self.identity(target), self.identity(source)
        for slot in slots:
            ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", of)
            ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", to)
            while keys := _keys_in_slot(source, slot):
                ask(source, "MIGRATE", "127.0.0.1", target.port, "", 0, DEADLINE_S * 1000, "KEYS", *keys)
            for server in (target, source):
                ask(server, "CLUSTER", "SETSLOT", slot, "NODE", to)

    def fail_over(self, number: int) -> None:
        """Kill a primary; its replica takes over at once."""
        self.primaries[number].kill()
        replica = self.replicas[number]
        ask(replica, "CLUSTER", "FAILOVER", "TAKEOVER")
        wait_until(lambda: "role:master" in str(_info(replica, "INFO", "replication")), "the replica took over")
        others = [server for server in self.primaries if server is not self.primaries[number]]
        wait_until(
            lambda: all(self._sees_primary(server, replica) for server in others), "the others know the new primary"
        )

    def wait_for_replicas(self) -> None:
        wait_until(lambda: all(map(_is_synced, self.replicas)), "the replicas are in step")

    def _server(self, folder: Path) -> RedisServer:
        folder.mkdir(parents=True)
        return RedisServer(
            folder,
            cluster_enabled="yes",
            cluster_node_timeout=5000,
            cluster_port=find_free_port(),
            repl_diskless_sync_delay=0,
        )

    def _knows(self, server: RedisServer, identity: str) -> bool:
        return identity in str(_info(server, "CLUSTER", "NODES"))

    def _sees_primary(self, server: RedisServer, other: RedisServer) -> bool:
        nodes = str(_info(server, "CLUSTER", "NODES")).splitlines()
        return any(f":{other.port}@" in node and "master" in node for node in nodes) and self.is_whole(server)


class SentinelServer(RedisServer):
    """A Sentinel: the same program, another mode, and a configuration that it rewrites."""

    def __init__(self, folder: Path, primary_port: int, **config: Setting) -> None:
        super().__init__(folder, **config, sentinel=f"monitor {SERVICE} 127.0.0.1 {primary_port} 2")
        for name in ("save", "appendonly"):
            del self.config[name]

    def _launch(self) -> None:
        config_file = self.folder / "sentinel.conf"
        settings = [
            f'dir "{self.folder}"',
            *(f"{name.replace('_', '-')} {value}" for name, value in self.config.items()),
        ]
        config_file.write_text("\n".join(settings) + "\n")
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [find_redis_program(), str(config_file), "--sentinel"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        guard(self._process.pid)


class SentinelSet:
    """One primary, one replica, three Sentinels of which two must agree."""

    def __init__(self, folder: Path) -> None:
        for name in ("primary", "replica", "sentinel-0", "sentinel-1", "sentinel-2"):
            (folder / name).mkdir(parents=True)
        self.primary = RedisServer(folder / "primary", repl_diskless_sync_delay=0)
        self._folder = folder
        self.servers: list[RedisServer] = [self.primary]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}/0"

    def start(self) -> None:
        self.primary.start()
        self.replica = RedisServer(self._folder / "replica", replicaof=f"127.0.0.1 {self.primary.port}")
        self.replica.start()
        self.sentinels = [SentinelServer(self._folder / f"sentinel-{n}", self.primary.port) for n in range(3)]
        self.servers += [self.replica, *self.sentinels]
        for sentinel in self.sentinels:
            sentinel.start()
            for option, value in (("down-after-milliseconds", 700), ("failover-timeout", 5000)):
                ask(sentinel, "SENTINEL", "SET", SERVICE, option, value)
        wait_until(lambda: _is_synced(self.replica), "the replica is in step")
        wait_until(lambda: all(map(self._sees_everybody, self.sentinels)), "the Sentinels know each other")

    def stop(self) -> None:
        for server in self.servers:
            server.kill()

    def wait_for_replica(self) -> None:
        wait_until(lambda: _is_synced(self.replica), "the replica is in step")

    def wait_for_failover(self) -> None:
        wait_until(
            lambda: all(self._named_port(sentinel) == self.replica.port for sentinel in self.sentinels),
            "the Sentinels name the new primary",
        )

    def _named_port(self, sentinel: RedisServer) -> int:
        with redis.Redis.from_url(sentinel.url, decode_responses=True) as client:
            return int(client.sentinel_get_master_addr_by_name(SERVICE)[1])

    def _sees_everybody(self, sentinel: RedisServer) -> bool:
        with redis.Redis.from_url(sentinel.url, decode_responses=True) as client:
            state = client.sentinel_master(SERVICE)
        return int(state["num-other-sentinels"]) == 2 and int(state["num-slaves"]) == 1


def _info(server: RedisServer, *command: str) -> str:
    with redis.Redis.from_url(server.url, socket_timeout=DEADLINE_S) as client:
        connection = client.connection_pool.get_connection()
        try:
            connection.send_command(*command)
            return connection.read_response().decode()
        finally:
            client.connection_pool.release(connection)


def _is_synced(replica: RedisServer) -> bool:
    """True once a replica has everything that its primary has written."""
    with redis.Redis.from_url(replica.url) as client:
        state = client.info("replication")
    if state.get("master_link_status") != "up":
        return False
    with redis.Redis(host=state["master_host"], port=state["master_port"]) as primary:
        return int(primary.info("replication")["master_repl_offset"]) <= int(state["slave_repl_offset"])


def _keys_in_slot(server: RedisServer, slot: int) -> list[str]:
    keys = ask(server, "CLUSTER", "GETKEYSINSLOT", slot, 100)
    assert isinstance(keys, list)
    return keys


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with running(RedisCluster(tmp_path_factory.mktemp("cluster"))) as cluster:
        yield cluster


@pytest.fixture
def redis_cluster(shared_cluster: RedisCluster) -> RedisCluster:
    for primary in shared_cluster.primaries:
        ask(primary, "FLUSHALL")
    return shared_cluster


@pytest.fixture
def doomed_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with running(RedisCluster(tmp_path_factory.mktemp("cluster"))) as cluster:
        yield cluster


@pytest.fixture
def sentinel_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelSet]:
    with running(SentinelSet(tmp_path_factory.mktemp("sentinels"))) as servers:
        yield servers


@contextmanager
def running(servers: Servers) -> Iterator[Servers]:
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()

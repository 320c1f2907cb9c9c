"""What the nemesis does to a system: `ACTIONS`.

An action does harm for a while, heals it, and returns; the load goes on all the time. The order of the table counts:
after a failover there is no primary left that can fail.
"""

import asyncio
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import redis

from duetime.stores.open import open_store
from duetime.stores.registry import set_drain
from duetime.transfer.backup_file import check_backup
from tests.faults.blackbox.system import FAILOVERS, MARIADBS, STORES, StoreServer, System
from tests.faults.losing_proxy import LosingProxy
from tests.plugins import mysql_server, postgres_server
from tests.plugins.mysql_server import MysqlServer
from tests.plugins.postgres_server import PostgresServer
from tests.plugins.redis_server import RedisServer
from tests.plugins.redis_topologies import SERVICE, RedisCluster, SentinelSet, ask
from tests.plugins.served import COMMAND, processes
from tests.plugins.until import until

HARM_S = 1.5
HOUR_S = 3600
LOCKED_S = 6.0
"""Longer than PostgreSQL and MariaDB let us wait for a lock."""
KILLED_AFTER_S = (0.5, 0.7, 0.8, 0.9, 1.0, 1.2)
"""When backups are killed: before they read, while they read and write, and about when they end."""

Harm = Callable[[System], Awaitable[None]]


class Action(NamedTuple):
    """`forgets`: the store loses answered writes, so reconcile puts jobs back. `undoes`: it also loses acks alone,
    so that jobs are delivered again.
    """

    harm: Harm
    applies: Callable[[System], object]
    forgets: bool = False
    undoes: bool = False


ACTIONS: dict[str, Action] = {}
"""By name."""
ON_FAILOVERS = (
    "nothing",
    "kill -9 the whole server",
    "kill -9 the store",
    "STOP and CONT the store",
    "swallow answers of the store",
    "end all sessions of the store",
)
"""What the set-ups that can lose writes get, besides what loses them: the rest is the same as on their one server."""


def action(
    name: str, on: Callable[[System], object] = lambda system: True, *, forgets: bool = False, undoes: bool = False
) -> Callable[[Harm], Harm]:
    def add(harm: Harm) -> Harm:
        ACTIONS[name] = Action(harm, on, forgets, undoes)
        return harm

    return add


def applies(name: str, system: System) -> bool:
    is_one_of_few = ACTIONS[name].undoes or name in ON_FAILOVERS
    return bool(ACTIONS[name].applies(system)) and (system.kind in STORES or is_one_of_few)


def has_server(system: System) -> object:
    return system.servers


def is_redis(system: System) -> object:
    return system.kind in ("redis", "group")


def is_sql(system: System) -> object:
    return system.kind in ("sqlite", "postgres", "mysql")


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
    await _pause(system.server.workers()[:1])


@action("STOP and CONT the supervisor")
async def pause_supervisor(system: System) -> None:
    await _pause([system.server.process.pid])


@action("STOP and CONT the whole server")
async def pause_server(system: System) -> None:
    await _pause([system.server.process.pid, *system.server.workers()])


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


@action("black-holed connections of clients")
async def silence_clients(system: System) -> None:
    system.front.go_silent()
    await asyncio.sleep(HARM_S)


@action("half-open connections of clients")
async def half_open_clients(system: System) -> None:
    system.front.go_silent(half_open=True)
    await asyncio.sleep(HARM_S)


@action("kill -9 the store", has_server)
async def kill_store(system: System) -> None:
    server = system.servers[0]
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(0.3)
    await asyncio.to_thread(server.start)


@action("STOP and CONT the store", has_server)
async def pause_store(system: System) -> None:
    await _pause(_tree(system.servers[0]))


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


@action("black-holed connections of the store", has_server)
async def silence_store(system: System) -> None:
    system.ways[0].go_silent()
    await asyncio.sleep(HARM_S)


@action("half-open connections of the store", has_server)
async def half_open_store(system: System) -> None:
    system.ways[0].go_silent(half_open=True)
    await asyncio.sleep(HARM_S)


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


@action("an ACL without channels", is_redis)
async def forbid_channels(system: System) -> None:
    for channels in ("resetchannels", "allchannels"):
        for server in system.servers:
            _redis(server, "ACL", "SETUSER", "default", channels)
        await asyncio.sleep(HARM_S)


@action("MISCONF: no snapshot can be written", is_redis)
async def fail_snapshots(system: System) -> None:
    for server in system.servers:
        (server.folder / "dump.rdb").mkdir()  # which no snapshot can take the place of
        _redis(server, "CONFIG", "SET", "save", "3600 1")
        await _snapshot(server, "err")
    await asyncio.sleep(HARM_S)
    for server in system.servers:
        (server.folder / "dump.rdb").rmdir()
        await _snapshot(server, "ok")
        _redis(server, "CONFIG", "SET", "save", "")


@action("another session locks the jobs for 1.5 s", is_sql)
async def lock_jobs(system: System) -> None:
    with _locked(system):
        await asyncio.sleep(HARM_S)


@action("... and for longer than a lock timeout", is_sql)
async def lock_jobs_for_long(system: System) -> None:
    with _locked(system):
        await asyncio.sleep(LOCKED_S)


@action("the disk is full (store)", lambda system: is_sql(system) and system.data in system.disks)
async def fill_store_disk(system: System) -> None:
    await _fill(system.data)
    for server in system.servers:
        if isinstance(server, MysqlServer) and not await asyncio.to_thread(_is_running, server):
            await asyncio.to_thread(server.kill)  # MariaDB 10.11 ends itself where a rollback needs room
            await asyncio.to_thread(server.start)


@action("the disk is full (journal)", lambda system: system.journal in system.disks)
async def fill_journal_disk(system: System) -> None:
    await _fill(system.journal)


@action("the server's clock is an hour ahead", has_server)
async def clock_ahead(system: System) -> None:
    system.hosts[0].shift_clock(HOUR_S)
    await asyncio.sleep(HARM_S)
    system.hosts[0].shift_clock(0)


@action("the server's clock steps back an hour", has_server)
async def clock_back(system: System) -> None:
    system.hosts[0].shift_clock(-HOUR_S)
    await asyncio.sleep(HARM_S)
    system.hosts[0].shift_clock(0)


@action("one of two hosts is an hour ahead", has_server)
async def host_ahead(system: System) -> None:
    await _add_host(system, clock=HOUR_S)
    await asyncio.sleep(HARM_S)
    await _remove_host(system)


@action("rolling restart of two hosts", has_server)
async def rolling_restart(system: System) -> None:
    await _add_host(system)
    await system.stop_server()
    await system.start_server()
    await _remove_host(system)


@action("a member drains during a rolling restart", lambda system: system.kind == "group")
async def drain_member(system: System) -> None:
    store = await open_store(system.url)
    try:
        await set_drain(store.registry, "pair", "b", drains=True)
        await rolling_restart(system)
        await set_drain(store.registry, "pair", "b", drains=False)
    finally:
        await store.close()


@action("backups are killed, then one is made")
async def back_up(system: System) -> None:
    file = system.folder / f"{time.monotonic_ns()}.backup"
    command = [*COMMAND, "backup", str(file), "--url", system.url]
    for after_s in KILLED_AFTER_S:
        killed = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        await asyncio.sleep(after_s)
        with suppress(ProcessLookupError):  # it was quicker
            killed.kill()
        await killed.wait()
        if file.exists():  # under its name only if it is complete
            check_backup(file)
            file.unlink()
    made = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
    if await made.wait():
        raise RuntimeError(f"the backup ended with {made.returncode}")
    check_backup(file)


@action("many jobs due in the same second", lambda system: system.due_together)
async def push_together(system: System) -> None:
    assert system.load is not None
    await system.load.push_together(system.due_together)


@action("the store is wiped, then reconcile", lambda system: system.kind in STORES, forgets=True)
async def wipe(system: System) -> None:
    if is_sql(system):
        await system.stop_server()  # it would go on with the numbers of queues that it knows
        for name in ("jobs.db", "jobs.db-wal", "jobs.db-shm"):
            (system.data / name).unlink(missing_ok=True)
    for server in system.servers:
        match server:
            case RedisServer():
                _redis(server, "FLUSHALL")
            case PostgresServer():
                await asyncio.to_thread(postgres_server.empty_tables, server)
            case MysqlServer():
                await asyncio.to_thread(mysql_server.empty_tables, server)
    if is_sql(system):
        await system.start_server()


# --- the last: what the replica or the file does not have is lost


@action("power fails: the AOF ends 1 s ago", lambda system: system.kind == "everysec", forgets=True, undoes=True)
async def cut_power(system: System) -> None:
    [server] = system.servers
    [file] = server.folder.glob("appendonlydir/*.incr.aof")
    synced = file.stat().st_size
    await asyncio.sleep(1.0)
    await asyncio.to_thread(server.kill)
    os.truncate(file, synced)
    await asyncio.to_thread(server.start)


@action("planned failover", lambda system: system.topology or system.kind in MARIADBS, forgets=True, undoes=True)
async def fail_over(system: System) -> None:
    match system.topology:
        case None if system.kind == "replica":
            await _hand_over(system)
        case None:
            await _use_next(system)
        case SentinelSet() as servers:
            await asyncio.to_thread(ask, servers.sentinels[0], "SENTINEL", "FAILOVER", SERVICE)
            await asyncio.to_thread(servers.wait_for_failover)
        case RedisCluster() as servers:
            for replica in servers.replicas:
                await asyncio.to_thread(ask, replica, "CLUSTER", "FAILOVER")
            await asyncio.sleep(HARM_S)
            servers.primaries, servers.replicas = servers.replicas, servers.primaries


@action("kill -9 a primary whose replica lags", lambda system: system.kind in FAILOVERS[1:], forgets=True, undoes=True)
async def lose_primary(system: System) -> None:
    match system.topology:
        case SentinelSet() as servers:
            replica, primary = sorted((servers.primary, servers.replica), key=lambda one: "master" in _role(one))
            await _kill_lagging(primary, replica)
            await until(lambda: "master" in _role(replica))
            await asyncio.to_thread(primary.start)
        case RedisCluster() as servers:
            for number, primary in enumerate(servers.primaries):
                await _kill_lagging(primary, servers.replicas[number])
                await asyncio.to_thread(servers.fail_over, number)
                await asyncio.to_thread(primary.start)
        case None if system.kind == "galera":
            await asyncio.to_thread(system.servers[0].kill)
            await _use_next(system)
        case None if system.kind == "replica":
            primary, replica = system.servers
            assert isinstance(primary, MysqlServer)
            assert isinstance(replica, MysqlServer)
            _signal(_tree(replica), signal.SIGSTOP)
            _end_replication(primary)
            await asyncio.sleep(1.0)
            await asyncio.to_thread(primary.kill)
            _signal(_tree(replica), signal.SIGCONT)
            await asyncio.to_thread(replica.promote)
            await _use_next(system)
        case None:
            primary, standby = system.servers
            assert isinstance(primary, PostgresServer)
            assert isinstance(standby, PostgresServer)
            _signal(_tree(standby), signal.SIGSTOP)
            with psycopg.connect(primary.url, autocommit=True) as connection:
                connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
            await asyncio.sleep(1.0)
            await asyncio.to_thread(primary.kill)
            _signal(_tree(standby), signal.SIGCONT)
            await asyncio.to_thread(standby.promote)


async def _hand_over(system: System) -> None:
    """The primary of MariaDB refuses writes, the replica catches up and takes over, and the old primary follows it."""
    primary, replica = system.servers
    assert isinstance(primary, MysqlServer)
    assert isinstance(replica, MysqlServer)
    primary.administer("SET GLOBAL read_only = 1")
    [(file, position, *_)] = primary.administer("SHOW MASTER STATUS")
    await asyncio.to_thread(replica.administer, f"SELECT master_pos_wait('{file}', {position}, 60)")
    await asyncio.to_thread(replica.promote)
    primary.follow(replica)
    await _use_next(system)


async def _use_next(system: System) -> None:
    """Let the name that clients know lead to the next server."""
    system.servers.append(system.servers.pop(0))
    system.ways[0].target = system.servers[0].port
    system.ways[0].cut()


def _end_replication(primary: MysqlServer) -> None:
    rows = primary.administer("SELECT id FROM information_schema.processlist WHERE command = 'Binlog Dump'")
    for (session,) in rows:
        primary.administer(f"KILL {session}")


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


async def _pause(pids: list[int]) -> None:
    _signal(pids, signal.SIGSTOP)
    await asyncio.sleep(HARM_S)
    _signal(pids, signal.SIGCONT)


def _tree(server: StoreServer) -> list[int]:
    """The process of a server and those that it has started."""
    assert server._process is not None
    return [server._process.pid, *(pid for pid, parent, _ in processes() if parent == server._process.pid)]


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


async def _add_host(system: System, *, clock: int = 0) -> None:
    """Start a second server, and let every second connection lead to it."""
    system.hosts[1].shift_clock(clock)
    await system.start_server(1)
    system.front.second_target = system.hosts[1].port
    system.front.cut()


async def _remove_host(system: System) -> None:
    system.front.second_target = None
    await system.stop_server(1)


@contextmanager
def _locked(system: System) -> Iterator[None]:
    """Another session has locked the table of jobs, or the whole SQLite file."""
    match system.kind:
        case "sqlite":
            with closing(sqlite3.connect(system.data / "jobs.db", timeout=10, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                yield
                connection.execute("ROLLBACK")
        case "mysql":
            [server] = system.servers
            assert isinstance(server, MysqlServer)
            with closing(server.root()) as connection, connection.cursor() as cursor:
                cursor.execute("LOCK TABLES duetime.duetime_jobs WRITE")
                yield
                cursor.execute("UNLOCK TABLES")
        case _:
            with psycopg.connect(system.servers[0].url) as connection:
                connection.execute("LOCK TABLE duetime.jobs IN ACCESS EXCLUSIVE MODE")
                yield
                connection.rollback()


def _is_running(server: MysqlServer) -> bool:
    assert server._process is not None
    with suppress(subprocess.TimeoutExpired):
        server._process.wait(1.0)
    return server._process.poll() is None


async def _snapshot(server: RedisServer, status: str) -> None:
    """Have a snapshot end with this status; one that is under way (of the AOF) makes ours wait."""

    def has_ended() -> bool:
        with suppress(redis.ResponseError):
            _redis(server, "BGSAVE")
        return _redis(server, "INFO", "persistence")["rdb_last_bgsave_status"] == status

    await until(has_ended, every_s=0.1)


def _role(server: RedisServer) -> str:
    try:
        return str(ask(server, "ROLE"))
    except redis.RedisError:
        return ""


async def _kill_lagging(primary: RedisServer, replica: RedisServer) -> None:
    """For a second the replica gets nothing; then the primary dies with what the replica does not have."""
    replica.pause()
    _redis(primary, "CLIENT", "KILL", "TYPE", "replica")
    await asyncio.sleep(1.0)
    await asyncio.to_thread(primary.kill)
    replica.resume()

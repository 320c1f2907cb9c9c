"""Load and faults for a long time: `make soak MINUTES=10`. What a server holds after each drain must not grow.

The faults are those that leave the server's processes alive, in turn. After each one the queue is drained, and memory,
open files and threads of all processes of the server are measured, and the keys or rows that the store still has. The
first turn of all faults is the warm-up; later measurements may exceed its highest by little (`ALLOWED`). The exit code
is 1 if one exceeds it, or if a queue is not drained.
"""

import argparse
import asyncio
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psycopg
import pymysql
import redis

from duetime.model.names import Queue
from tests.faults.blackbox.clients import Load
from tests.faults.blackbox.nemesis import ACTIONS
from tests.faults.blackbox.rounds import NAMESPACE, run_round
from tests.faults.blackbox.system import STORES, System

FATAL = ("kill -9", "restart", "disk is full", "maxmemory", "clock", "hosts", "wiped", "timeout")
"""Parts of the names of actions that end processes, or whose end is not the same every time."""
LOAD_S, SETTLE_S = 1.0, 1.5


class Level(NamedTuple):
    """Sums over the processes of a server, and what is left in its store."""

    memory_mib: float
    files: int
    threads: int
    entries: int


ALLOWED = {"memory_mib": lambda warm: warm * 1.1, "files": lambda warm: warm + 4, "threads": lambda warm: warm + 2}
"""The highest value after the warm-up, given the highest in it. Entries may not exceed it at all."""


def find_growth(levels: Sequence[Level], warm_up: int) -> list[str]:
    """What is higher after the warm-up than it may be, by its last value: a peak in between is no leak."""
    last = levels[-1]
    problems: list[str] = []
    for name, value in last._asdict().items():
        most = max(getattr(level, name) for level in levels[:warm_up])
        if value > ALLOWED.get(name, float)(most):
            problems.append(f"{name}: {value:g} at the end, at most {most:g} in the warm-up")
    return problems


def measure(system: System) -> Level:
    pids = [system.server.process.pid, *system.server.workers()]
    status = [dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()) for pid in pids]
    return Level(
        sum(int(one["VmRSS"].split()[0]) for one in status) / 1024,
        sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        sum(int(one["Threads"]) for one in status),
        count_entries(system),
    )


def count_entries(system: System) -> int:
    """Keys in Redis without those that expire (marks); rows of jobs and bodies in a database."""
    counts = "SELECT (SELECT count(*) FROM {0}jobs) + (SELECT count(*) FROM {0}bodies)"
    match system.kind:
        case "redis" | "group":
            return sum(count_keys(server.port) for server in system.servers)
        case "postgres":
            with psycopg.connect(system.servers[0].url) as connection:
                [number] = connection.execute(counts.format("duetime.")).fetchone() or (0,)
        case "mysql":
            login = {"host": "127.0.0.1", "port": system.servers[0].port, "user": "duetime", "password": "secret"}
            with pymysql.connect(database="duetime", **login) as connection, connection.cursor() as cursor:
                cursor.execute(counts.format("duetime_"))
                [number] = cursor.fetchone()
        case _:
            with sqlite3.connect(f"file:{system.folder}/data/jobs.db?mode=ro", uri=True) as connection:
                [number] = connection.execute(counts.format("")).fetchone()
    return number


def count_keys(port: int) -> int:
    with redis.Redis(port=port) as client, client.pipeline(transaction=False) as pipeline:
        for key in client.scan_iter(count=1000):
            pipeline.ttl(key)
        return pipeline.execute().count(-1)


async def soak(kind: str, seconds: float, folder: Path) -> list[str]:
    queue, levels = Queue(NAMESPACE, "soak"), list[Level]()
    async with System(kind, folder) as system:
        names = [name for name, action in ACTIONS.items()
                 if action.applies(system) and not any(part in name for part in FATAL)]  # fmt: skip
        began = time.monotonic()
        while len(levels) <= len(names) or time.monotonic() - began < seconds:
            name = names[len(levels) % len(names)]
            load = Load(system.api, str(queue), seed=len(levels), prefix=f"{len(levels)}-")
            one = await run_round(system, name, queue, load, load_s=LOAD_S)
            await asyncio.sleep(SETTLE_S)
            levels.append(await asyncio.to_thread(measure, system))
            memory_mib, *others = levels[-1]
            print(f"{kind:<9} {time.monotonic() - began:6.0f} s {name:<42} {len(one.history.accepted):6} accepted "
                  f"{memory_mib:7.1f} MiB " + " ".join(f"{number:6}" for number in others), flush=True)  # fmt: skip
            if one.left:
                return [f"{kind}: {one.left} jobs were not drained after {name!r}"]
        await system.stop_server()
    return [f"{kind}: {problem}" for problem in find_growth(levels, len(names))]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="for all stores together; one turn each at least")
    parser.add_argument("--stores", default=",".join(STORES), help="comma-separated: %(default)s")
    given = parser.parse_args()
    kinds = given.stores.split(",")
    print(f"{'store':<9} {'':8} {'after':<42} {'':15} {'memory':>11}  files threads entries")
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="duetime-soak-", ignore_cleanup_errors=True) as base:
        for kind in kinds:
            problems += asyncio.run(soak(kind, given.minutes * 60 / len(kinds), Path(base) / kind))
    print("\n".join(problems) or "nothing grew")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

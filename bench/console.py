"""The console's pages on a large store: how long does the server take, and what do 50 open pages cost?

    make bench ARGS=console     or: make bench ARGS="console --store redis --queues 10000 --jobs 1000000"

Fills a store (SQLite in a temporary folder, or a Redis or PostgreSQL that it starts, or the one under a URL) with many
queues and one long one, starts a server with --dev beside it, and takes the time of each page's first answer and the
processor time that the server took for it. Then it reads the processor time of the server while nobody looks, and while
live streams are open whose pages are asked for whenever the stream says so, as a browser does.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

import duetime
from bench.report import median, table
from bench.sql import a_postgres
from tests.plugins.postgres_server import STORE
from tests.plugins.redis_server import RedisServer

QUEUE = "pool=default&namespace=bench&queue=long"
PAGES = {
    "overview": "",
    "queues": "queues",
    "queues by size": "queues?sort=delayed",
    "one queue": f"queue?{QUEUE}",
    "jobs": f"jobs?{QUEUE}&state=delayed",
    "jobs, a text": f"jobs?{QUEUE}&state=delayed&text=nowhere",
    "failures": "failures",
    "failures of a queue": f"failures?{QUEUE}",
    "search": "search?q=nowhere",
}


@contextmanager
def opened(name: str, folder: str) -> Iterator[str]:
    """The URL of the store to fill: of one that is started for this, or the one that was named."""
    if name == "sqlite":
        yield f"sqlite://{folder}/jobs.db"
    elif name == "redis":
        redis = RedisServer(Path(folder), appendonly="yes")
        redis.start()
        try:
            yield redis.url
        finally:
            redis.stop()
    elif name == "postgres":
        with a_postgres() as postgres:
            yield f"{postgres.url}?{STORE}"
    else:
        yield name


def fill(store: str, queues: int, jobs: int) -> None:
    with duetime.connect(store, namespace="bench") as client:
        for number in range(queues - 1):
            client.queue(f"q{number:05}").later("1d", "x")
        long = client.queue("long")
        for at in range(0, jobs, 10_000):
            long.bulk([b"x" * 100] * min(10_000, jobs - at), delay=f"{at % 86_400 + 60}s")


@contextmanager
def served(store: str, folder: str) -> Iterator[tuple[int, str]]:
    command = [str(Path(sys.executable).with_name("duetime")), "serve", "--dev", "--port", "0", "--admin-port", "0"]
    process = subprocess.Popen(
        [*command, "--store", store], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        address = next(line.split()[1] for line in lines if line.split()[:1] == ["console"])
        while not next(lines).startswith("  stop"):
            pass
        yield process.pid, address
    finally:
        process.terminate()
        process.wait(timeout=60)


def busy_s(pid: int) -> float:
    """The processor time of all threads of a process: what it costs, however busy the machine is."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def watch(address: str, until: float) -> None:
    """An open page: a live stream, and the page again at every tick."""
    with httpx.Client(timeout=600) as client, client.stream("GET", f"{address}live") as stream:
        for line in stream.iter_lines():
            if line == "event: tick":
                client.get(address, headers={"hx-request": "true"})
            if time.monotonic() > until:
                return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="sqlite", help="sqlite, redis, postgres or a URL")
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, opened(options.store, folder) as store:
        fill(store, options.queues, options.jobs)
        with served(store, folder) as (pid, address), httpx.Client(timeout=60) as client:
            rows: list[list[object]] = []
            for name, path in PAGES.items():
                times, busy = list[float](), list[float]()
                for _ in range(5):
                    before, began = busy_s(pid), time.perf_counter()
                    client.get(address + path).raise_for_status()
                    times.append((time.perf_counter() - began) * 1000)
                    busy.append((busy_s(pid) - before) * 1000)
                rows.append([name, times[0], median(times), busy[0], median(busy)])
            print(f"{options.queues:,} queues, {options.jobs:,} jobs in one of them\n")
            print(table(["page", "first, ms", "median of 5, ms", "first, ms of CPU", "median, ms of CPU"], rows))
            before, began = busy_s(pid), time.monotonic()
            time.sleep(options.seconds)
            idle = (busy_s(pid) - before) / (time.monotonic() - began)
            until = time.monotonic() + options.seconds
            before, began = busy_s(pid), time.monotonic()
            # Daemons: a stream without news may say its next word long after the measurement.
            threads = [threading.Thread(target=watch, args=(address, until), daemon=True) for _ in range(options.pages)]
            for thread in threads:
                thread.start()
            time.sleep(options.seconds)
            share = (busy_s(pid) - before) / (time.monotonic() - began)
            print(f"\n{options.pages} open pages: {share:.1%} of a core; nobody looks: {idle:.1%}")
    return 0

"""The console's pages on a large store: how long does the server take, and what do 50 open pages cost?

    make bench ARGS=console     or: make bench ARGS="console --store redis --queues 10000 --jobs 1000000"

Fills a store (SQLite in a temporary folder, or a Redis or PostgreSQL that it starts, or the one under a URL) with many
queues, one long one, and failures, starts a server with --dev on it, and measures the first answer of each page once
the templates are compiled: its time and the processor time of the server. Then it reads the processor time of the
server while no page is open, and while live streams are open whose pages are requested at every tick, as a browser
does. On a fresh server it views the pages again while a thread calls the API all the time, and reports the slowest
answer of the API during the first view, and the least of the slowest answers of more views, because the machine delays
some of them anyhow.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

import duetime
from bench.report import median, table
from bench.sql import a_postgres
from duetime.engine.engine import Engine
from duetime.model.job import Lease, NewJob
from duetime.model.names import Queue
from duetime.stores.open import open_store
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
    "failures of a queue": "failures?pool=default&namespace=bench&queue=failed",
    "search": "search?q=nowhere",
    "topics": "topics",
    "workers": "workers",
    "tasks": "tasks",
    "batches": "batches",
    "schedules": "schedules",
    "stores": "stores",
    "access": "access",
}
VIEWS = 5
ERRORS = ("GatewayTimeout: no answer for order {}", "KeyError: 'address' of order {}", "smtp: 550 no such user {}")


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


async def fail(store: str, jobs: int) -> None:
    """Dead letters with three errors in one queue."""
    queue = Queue("bench", "failed")
    async with Engine(await open_store(store)) as engine:
        for at in range(0, jobs, 500):
            await engine.push(queue, [NewJob(f"{at + number:08}", b"x" * 100) for number in range(min(500, jobs - at))])
            for number, delivery in enumerate(await engine.reserve([queue], limit=500)):
                one = delivery.lease
                error = ERRORS[number % len(ERRORS)].format(at + number)
                await engine.kill(Lease(queue, one.id, one.born, one.attempt), error=error)


@contextmanager
def served(store: str, folder: str) -> Iterator[tuple[int, str, str]]:
    """The server's process, the console's address and the API's."""
    command = [str(Path(sys.executable).with_name("duetime")), "serve", "--dev", "--port", "0", "--admin-port", "0"]
    process = subprocess.Popen(
        [*command, "--store", store], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        facts: dict[str, str] = {}
        while "stop" not in facts:
            label, _, value = next(lines).strip().partition(" ")
            facts[label] = value.split()[0] if value.split() else ""
        yield process.pid, facts["console"], facts["API"]
    finally:
        process.terminate()
        process.wait(timeout=60)


def busy_s(pid: int) -> float:
    """The processor time of all threads of a process: what it costs, however busy the machine is."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def calm_down(pid: int, longest_s: float = 300) -> None:
    """Wait until what the pages began in the background is done: reading all failures, searching all jobs."""
    until = time.monotonic() + longest_s
    while time.monotonic() < until:
        before = busy_s(pid)
        time.sleep(1)
        if busy_s(pid) - before < 0.1:
            return


class Pinger(threading.Thread):
    """Reads a job that does not exist over and over, and remembers the slowest answer."""

    def __init__(self, api: str) -> None:
        super().__init__(daemon=True)
        self._http = httpx.Client(base_url=api, timeout=60)
        self._slowest = 0.0
        self.is_over = False
        self.start()

    def run(self) -> None:
        while not self.is_over:
            began = time.perf_counter()
            self._http.get("/v1/queues/bench/q00001/jobs/none")
            self._slowest = max(self._slowest, time.perf_counter() - began)
            time.sleep(0.001)

    def slowest_ms(self, during: Callable[[], object]) -> float:
        self._slowest = 0.0
        during()
        time.sleep(0.02)  # for the answer that is under way
        return self._slowest * 1000


def watch(address: str, until: float) -> None:
    """An open page: a live stream, and the page again at every tick."""
    with httpx.Client(timeout=600) as client, client.stream("GET", f"{address}live") as stream:
        seen = ""
        for line in stream.iter_lines():
            if line == "event: tick":
                page = client.get(address, headers={"hx-request": "true", "x-seen": seen}).text
                seen = page.partition('"x-seen": "')[2].partition('"')[0] or seen
            if time.monotonic() > until:
                return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="sqlite", help="sqlite, redis, postgres or a URL")
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--dead", type=int, default=200_000)
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, opened(options.store, folder) as store:
        fill(store, options.queues, options.jobs)
        asyncio.run(fail(store, options.dead))
        print(f"{options.queues:,} queues, {options.jobs:,} jobs in one of them, {options.dead:,} dead in another\n")
        with served(store, folder) as (pid, address, _), httpx.Client(timeout=60) as client:
            before = busy_s(pid)
            client.get(f"{address}login")
            print(f"templates, compiled once after an upgrade: {(busy_s(pid) - before) * 1000:.0f} ms of CPU\n")
            rows = [costs(pid, client, name, address + path) for name, path in PAGES.items()]
            print(table(["page", "first, ms", "median of 5, ms", "first, ms of CPU", "median, ms of CPU"], rows))
            calm_down(pid)
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
            print(f"\n{options.pages} open pages: {share:.1%} of a core; nobody looks: {idle:.1%}\n")
        with served(store, folder) as (_, address, api), httpx.Client(timeout=60) as client:
            pinger = Pinger(api)
            time.sleep(2)
            rows = [waits(pinger, client, name, address + path) for name, path in PAGES.items()]
            pinger.is_over = True
            pinger.join()
            print(table(["API waits, ms", "first view", "least of 6 views", "without"], rows))
    return 0


def costs(pid: int, client: httpx.Client, name: str, address: str) -> list[object]:
    """What five views of a page take, and what they cost the server."""
    times, busy = list[float](), list[float]()
    calm_down(pid)
    for _ in range(VIEWS):
        before, began = busy_s(pid), time.perf_counter()
        client.get(address).raise_for_status()
        times.append((time.perf_counter() - began) * 1000)
        busy.append((busy_s(pid) - before) * 1000)
    return [name, times[0], median(times), busy[0], median(busy)]


def waits(pinger: Pinger, client: httpx.Client, name: str, address: str) -> list[object]:
    """The slowest answers of the API during views of a page, and for as long without any."""
    times: list[float] = []

    def view() -> None:
        began = time.perf_counter()
        client.get(address).raise_for_status()
        times.append(time.perf_counter() - began)

    slowest = [pinger.slowest_ms(view) for _ in range(VIEWS + 1)]
    without = [pinger.slowest_ms(lambda: time.sleep(median(times))) for _ in range(VIEWS + 1)]
    return [name, slowest[0], min(slowest[1:]), min(without)]

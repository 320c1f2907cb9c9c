"""5,000 long polls parked on one process, then 5,000 publishes: everyone gets one job, how fast, at what cost?

    make bench ARGS=polls           or: make bench ARGS="polls --polls 5000 --rounds 5 --store redis://127.0.0.1:6379/0"

The server is one process of its own with lmstfy's protocol; the clients are raw sockets in another. In turns with
it run servers with nothing behind them. `bare` is asyncio as it comes, with streams and a task per connection,
`floor` is the least that Python can do, a protocol on uvloop. With `same traffic` they answer every publish
and release one parked poll for each; with `fan-out` they write all answers at one signal.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench.report import ROOT, interleave, median, number, ratio, spread, table
from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.http.listener import Listener
from duetime.metrics.scraper import Scraper
from duetime.model.settings import load
from duetime.protocols.lmstfy import LmstfyApp, make_parts
from duetime.server.supervision.siblings import Alone
from duetime.stores.open import open_store

PUBLISHERS = 64
DEADLINE_S = 120.0
PAGE = os.sysconf("SC_PAGESIZE")

POLL = b"GET /api/bench/jobs?timeout=600 HTTP/1.1\r\nHost: localhost\r\n\r\n"
PUBLISH = b"PUT /api/bench/jobs?ttl=0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n" + b"x" * 100
SIGNAL = b"POST /fan-out HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
CREATED = b"HTTP/1.1 201 Created\r\ncontent-length: 60\r\n\r\n" + b"x" * 60
JOB = b"HTTP/1.1 200 OK\r\ncontent-length: 350\r\n\r\n" + b"x" * 350


# --- the servers


class Bare:
    """Just enough HTTP to be woken: no parser, no queue, no store."""

    def __init__(self) -> None:
        self._parked: list[asyncio.Future[bytes]] = []

    async def serve(self, listening: socket.socket) -> None:
        server = await asyncio.start_server(self._talk, sock=listening, backlog=2048)
        await server.serve_forever()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self._answer(await reader.readuntil(b"\r\n\r\n"), reader, writer)
        writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if head.startswith(b"GET"):
            waiting = asyncio.get_running_loop().create_future()
            self._parked.append(waiting)
            writer.write(await waiting)
        elif head.startswith(b"PUT"):
            await reader.readexactly(100)
            writer.write(CREATED)
            self._parked.pop().set_result(JOB)
        else:
            while self._parked:
                self._parked.pop().set_result(JOB)


class Floor(asyncio.Protocol):
    """The same without streams and tasks."""

    def __init__(self, parked: dict[Any, None]) -> None:
        self._parked = parked

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport  # of uvloop, which is no asyncio.Transport by name

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET"):
            self._parked[self._transport] = None
        elif data.startswith(b"PUT"):
            self._transport.write(CREATED)
            self._parked.popitem()[0].write(JOB)
        else:
            while self._parked:
                self._parked.popitem()[0].write(JOB)

    def connection_lost(self, exc: Exception | None) -> None:
        self._parked.pop(self._transport, None)


async def serve_floor(listening: socket.socket) -> None:
    parked: dict[Any, None] = {}
    server = await asyncio.get_running_loop().create_server(lambda: Floor(parked), sock=listening, backlog=2048)
    await server.serve_forever()


async def serve_duetime(listening: socket.socket, url: str) -> None:
    async with (
        Pools({"default": url}, open_store=open_store) as pools,
        RegistryCopy(lambda: pools.registry) as registry_copy,
    ):
        settings = load(flags={}, environment={}, file={"dev": True})
        parts = make_parts(settings, pools, registry_copy, Scraper(pools, Alone()))
        await Listener(LmstfyApp(parts), [listening]).start()
        await asyncio.get_running_loop().create_future()


class Process:
    """A server in a process of its own, and what /proc says about it."""

    def __init__(self, kind: str, store: str) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.port: int = self._listening.getsockname()[1]
        number = self._listening.fileno()
        command = [sys.executable, "-m", "bench.polls", "--serve", kind, "--socket", str(number), "--store", store]
        self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[number])

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._listening.close()

    def cpu_s(self) -> float:
        """The time that its threads have spent on a core, to the nanosecond."""
        threads = Path(f"/proc/{self._process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    def rss(self) -> int:
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * PAGE


@contextlib.contextmanager
def running(kind: str, store: str) -> Iterator[Process]:
    process = Process(kind, store)
    try:
        yield process
    finally:
        process.stop()


# --- the clients


class Client(asyncio.Protocol):
    """Counts whole answers by their heads, and keeps what it got for a look afterwards."""

    def __init__(self, answered: Callable[["Client"], None]) -> None:
        self._answered = answered
        self.received = b""
        self.heads = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport  # of uvloop, which is no asyncio.Transport by name

    def data_received(self, data: bytes) -> None:
        self.received = data
        heads = data.count(b"HTTP/1.1 ")
        self.heads += heads
        for _ in range(heads):
            self._answered(self)


async def connect(port: int, count: int, answered: Callable[[Client], None]) -> list[Client]:
    loop = asyncio.get_running_loop()
    clients: list[Client] = []
    for _ in range(count):
        _, client = await loop.create_connection(lambda: Client(answered), "127.0.0.1", port)
        clients.append(client)
    return clients


class Countdown:
    def __init__(self, count: int) -> None:
        self.left = count
        self.done = asyncio.Event()

    def __call__(self, client: Client) -> None:
        self.left -= 1
        if self.left == 0:
            self.done.set()


async def quiet(process: Process) -> None:
    """Return when the server has next to nothing to do any more: every poll is parked."""
    async with asyncio.timeout(DEADLINE_S):
        before = -1.0
        while (now := process.cpu_s()) - before > 0.02:
            before = now
            await asyncio.sleep(0.5)


@contextlib.asynccontextmanager
async def parked(process: Process, polls: int, answered: Callable[[Client], None]) -> AsyncIterator[list[Client]]:
    clients = await connect(process.port, polls, answered)
    for client in clients:
        client.transport.write(POLL)
    await quiet(process)
    try:
        yield clients
    finally:
        for client in clients:
            client.transport.close()


class Stopwatch:
    """Time on the wall, and on the server's cores: the second is the fairer one on a machine that has other work."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._cpu_s = process.cpu_s()
        self._started = time.perf_counter()

    def read(self) -> tuple[float, float]:
        wall_s = time.perf_counter() - self._started
        return wall_s, self._process.cpu_s() - self._cpu_s


async def time_fan_out(process: Process, polls: int) -> tuple[float, float]:
    countdown = Countdown(polls)
    async with parked(process, polls, countdown):
        [signal] = await connect(process.port, 1, lambda client: None)
        watch = Stopwatch(process)
        signal.transport.write(SIGNAL)
        async with asyncio.timeout(DEADLINE_S):
            await countdown.done.wait()
        return watch.read()


async def time_publishes(process: Process, polls: int) -> tuple[float, float]:
    """From the first publish to the last answer, of publishers and of polls."""
    countdown = Countdown(2 * polls)
    left = polls

    def publish_next(client: Client) -> None:
        nonlocal left
        if left:
            left -= 1
            client.transport.write(PUBLISH)

    def published(client: Client) -> None:
        countdown(client)
        publish_next(client)

    async with parked(process, polls, countdown) as clients:
        publishers = await connect(process.port, PUBLISHERS, published)
        watch = Stopwatch(process)
        for publisher in publishers:
            publish_next(publisher)
        async with asyncio.timeout(DEADLINE_S):
            await countdown.done.wait()
        times = watch.read()
        check_everyone_got_one(clients)
    return times


def check_everyone_got_one(clients: list[Client]) -> None:
    if any(client.heads != 1 for client in clients):
        raise SystemExit("a poll did not get exactly one answer")
    ids = {client.received.partition(b'"job_id":"')[2][:26] for client in clients}
    if ids != {b""} and len(ids) != len(clients):
        raise SystemExit(f"{len(clients)} polls got {len(ids)} different jobs")


async def cost_of_parking(process: Process, polls: int, watch_s: float) -> tuple[float, float]:
    """Bytes per parked poll, and the share of one core that all of them together take."""
    await quiet(process)
    before = process.rss()
    async with parked(process, polls, lambda client: None):
        each = (process.rss() - before) / polls
        busy = process.cpu_s()
        await asyncio.sleep(watch_s)
        return each, (process.cpu_s() - busy) / watch_s


# --- the report


def main() -> int:
    options = read_options()
    allow_many_files()
    if options.serve:
        serve(options.serve, socket.socket(fileno=options.socket), options.store)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        compare(options, options.store or f"sqlite://{folder}/polls.db")
    return 0


def serve(kind: str, listening: socket.socket, store: str) -> None:
    match kind:
        case "bare":
            asyncio.run(Bare().serve(listening))
        case "floor":
            uvloop.run(serve_floor(listening))
        case _:
            uvloop.run(serve_duetime(listening, store))


def compare(options: argparse.Namespace, store: str) -> None:
    polls, rounds = options.polls, options.rounds
    with running("duetime", store) as ours, running("bare", "-") as bare, running("floor", "-") as floor:
        each, idle = uvloop.run(cost_of_parking(ours, polls, options.watch))
        bare_each, bare_idle = uvloop.run(cost_of_parking(bare, polls, 1.0))
        cpu: dict[str, list[float]] = {}

        def contender(name: str, work: Callable[[], Coroutine[Any, Any, tuple[float, float]]]) -> Callable[[], float]:
            def run() -> float:
                wall_s, cpu_s = uvloop.run(work())
                cpu.setdefault(name, []).append(cpu_s)
                return wall_s

            return run

        works = {
            "duetime": lambda: time_publishes(ours, polls),
            "bare, same traffic": lambda: time_publishes(bare, polls),
            "bare, fan-out": lambda: time_fan_out(bare, polls),
            "floor, same traffic": lambda: time_publishes(floor, polls),
            "floor, fan-out": lambda: time_fan_out(floor, polls),
        }
        results = interleave({name: contender(name, work) for name, work in works.items()}, rounds=rounds)
    ours_s, ours_cpu = median(results["duetime"]), median(cpu["duetime"][-rounds:])
    rows: list[list[object]] = []
    for name, times in results.items():
        wall_s, cpu_s = median(times), median(cpu[name][-rounds:])
        rows.append([name, wall_s * 1000, spread(times), ratio(ours_s, wall_s), cpu_s * 1000, ratio(ours_cpu, cpu_s)])
    print(f"{number(polls)} polls on {store.partition(':')[0]}, median of {rounds} rounds\n")
    print(table(["", "ms for all", "spread", "duetime takes", "CPU ms of the server", "duetime takes"], rows))
    print(f"\nper parked poll   {number(each / 1024)} KiB (bare {number(bare_each / 1024)} KiB)")
    print(f"CPU while parked  {idle:.1%} of one core for all of them (bare {bare_idle:.1%})")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--polls", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--watch", type=float, default=10.0, help="seconds to watch the parked polls")
    parser.add_argument("--store", default="", help="a store URL; a SQLite file if not given")
    parser.add_argument("--serve", choices=["duetime", "bare", "floor"], help=argparse.SUPPRESS)
    parser.add_argument("--socket", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def allow_many_files() -> None:
    """A connection is a file; the soft limit is often 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    raise SystemExit(main())

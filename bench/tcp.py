"""php-delayqueue's TCP protocol: adds a second, compared with the 2,400 that its author published.

make bench ARGS=tcp                                     Redis and SQLite, one and two workers
make bench ARGS="tcp --stores redis --workers 1 --seconds 2 --rounds 1"

Bodies of 64 bytes, one topic, ids of their own, over loopback. `one at a time`: each connection waits for each reply,
as the PHP client does. `ten at a time`: it sends ten frames, then reads ten replies, as it allows. The clients
are processes of their own and use the same cores as the server. CPU is that of the serving processes alone: 1 second
divided by it is what one core would answer.
"""

import argparse
import contextlib
import multiprocessing
import selectors
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import duetime
from bench.http import a_store
from bench.http_parts.servers import Running
from bench.report import interleave, median, number, spread, table
from duetime.client.topics import Topics
from tests.plugins.served import ANY_PORT, launch_server

PUBLISHED = 2400
GOAL = 10 * PUBLISHED
TOPIC = "order"
BODY = '{"order":"1234567890","customer":"ann","amount":"12.50","n":"01"}'
DONE = b'0033{"code":1,"msg":"succ","data":[]}'


def add(number: str) -> bytes:
    text = f'{{"cmd":"add","topic":"{TOPIC}","id":"{number}","body":{BODY}}}'
    return f"{len(text):04}{text}".encode()


def clients(
    name: int, port: int, connections: int, at_once: int, seconds: float, answers: "multiprocessing.Queue[int]"
) -> None:
    """Connections in one process; puts how many adds were accepted."""
    selector, sent, done = selectors.DefaultSelector(), 0, 0
    deadline = time.monotonic() + seconds
    waiting: dict[socket.socket, int] = {}

    def send(sock: socket.socket) -> None:
        nonlocal sent
        sock.sendall(b"".join(add(f"{name}-{sent + n}") for n in range(at_once)))
        sent, waiting[sock] = sent + at_once, len(DONE) * at_once

    with contextlib.ExitStack() as stack:
        for _ in range(connections):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(sock, selectors.EVENT_READ)
            send(sock)
        while time.monotonic() < deadline:
            for key, _ in selector.select(1):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                data = sock.recv(65_536)
                if not data or b'"code":0' in data:
                    raise SystemExit("the server refused an add, or closed the connection")
                waiting[sock] -= len(data)
                if waiting[sock] == 0:
                    done += at_once
                    send(sock)
    answers.put(done)


def load(server: Running, port: int, at_once: int, options: argparse.Namespace) -> tuple[float, float]:
    """Adds a second, and microseconds of the server's CPU for each."""
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[int] = context.Queue()
    each = options.connections // options.clients
    processes = [
        context.Process(target=clients, args=(n, port, each, at_once, options.seconds, answers))
        for n in range(options.clients)
    ]
    before = server.cpu_s()
    for process in processes:
        process.start()
    done = sum(answers.get(timeout=options.seconds + 60) for _ in processes)
    for process in processes:
        process.join()
    return done / options.seconds, (server.cpu_s() - before) / done * 1e6


def measure(store: str, workers: int, at_once: int, options: argparse.Namespace) -> tuple[float, float]:
    with a_store(store) as (url, _), tempfile.TemporaryDirectory() as folder:
        with duetime.connect(url) as client:
            Topics(client).add(TOPIC, "http://127.0.0.1:9/", delay="1h")
        settings = {"DUETIME_TCP_ENABLED": "true", "DUETIME_TCP_PORT": "0", "DUETIME_LOG_LEVEL": "warning"}
        arguments = ["--store", url, "--workers", str(workers), "--journal", "off"]
        served = launch_server(Path(folder), *ANY_PORT, *arguments, **settings)
        try:
            server = Running(served.port, served.workers() or [served.process.pid])
            return load(server, int(served.address("TCP").rpartition(":")[2]), at_once, options)
        finally:
            code, errors = served.stop()
            if code or errors:
                raise SystemExit(f"the server ended with {code}: {errors}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", nargs="+", default=["redis", "sqlite"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--clients", type=int, default=2, help="client processes")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    cpu: dict[str, list[float]] = {}
    contenders = {}
    for store in options.stores:
        for workers in options.workers:
            for at_once, words in ((1, "one at a time"), (10, "ten at a time")):
                name = f"{store}, {workers} worker{'s' * (workers > 1)}, {words}"

                def once(name: str = name, store: str = store, workers: int = workers, at_once: int = at_once) -> float:
                    rate, micros = measure(store, workers, at_once, options)
                    cpu.setdefault(name, []).append(micros)
                    return rate

                contenders[name] = once
    rates = interleave(contenders, rounds=options.rounds, warmups=0)
    rows = [
        [name, median(one), spread(one), f"{median(one) / PUBLISHED:.1f}x", number(median(cpu[name]))]
        for name, one in rates.items()
    ]
    print(table(["", "adds/s", "spread", "compared with published", "CPU µs per add"], rows))
    print(f"\npublished: {PUBLISHED:,} adds/s on 8 cores with 2 Redis; the goal is {GOAL:,}")

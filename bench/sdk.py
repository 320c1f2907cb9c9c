"""Delayed pushes by the SDK beside celery, rq, dramatiq, huey, arq, saq and taskiq on the same Redis.

    make bench ARGS=sdk          or with sizes: make bench ARGS="sdk --jobs 2000 --rounds 3"

One Redis without persistence for all, so the same durability; 100-byte bodies due in an hour; one caller, 64 callers,
bulk. None of the peers has a bulk push of delayed jobs; ours is compared with their best single rate. Pop + ack stands
beside huey's dequeue, which is one call: a task taken is a task gone. What huey's worker does for each task is more, a
dequeue and a result that is stored; it has a line, too. The floor is what one caller cannot get below: a bare EVALSHA
of an empty script, and two of them, over a socket with hiredis.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import hiredis
import uvloop

import duetime
from bench.core_parts.setting import a_redis, meter
from bench.report import interleave, median, number, peer_python, ratio, spread, table
from duetime.stores.redis.pipe import pack

PEER = Path(__file__).parent / "peers" / "sdk_peer.py"
PEERS = ("celery", "rq", "dramatiq", "huey", "arq", "saq", "taskiq")
DEQUEUE = "huey, dequeue"
BODY = "x" * 100


def blocking(url: str, jobs: int) -> float:
    with duetime.connect(url) as client:
        queue = client.queue("bench")
        queue.later("1h", BODY)
        started = time.perf_counter()
        for _ in range(jobs):
            queue.later("1h", BODY)
        return jobs / (time.perf_counter() - started)


def asyncio_callers(url: str, jobs: int, callers: int) -> float:
    async def main() -> float:
        async with duetime.connect_async(url) as client:
            queue = client.queue("bench")
            await queue.later("1h", BODY)
            left = iter(range(jobs))

            async def caller() -> None:
                for _ in left:
                    await queue.later("1h", BODY)

            started = time.perf_counter()
            await asyncio.gather(*(caller() for _ in range(callers)))
            return jobs / (time.perf_counter() - started)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def blocking_pops(url: str, jobs: int) -> float:
    with duetime.connect(url) as client:
        queue = client.queue("bench")
        queue.bulk([BODY] * jobs)
        started = time.perf_counter()
        for _ in range(jobs):
            delivery = queue.pop()
            assert delivery is not None
            client.ack(delivery)
        return jobs / (time.perf_counter() - started)


def blocking_next_pops(url: str, jobs: int) -> float:
    with duetime.connect(url) as client:
        queue = client.queue("bench")
        queue.bulk([BODY] * (jobs + 1))
        job = queue.pop()
        started = time.perf_counter()
        for _ in range(jobs):
            assert job is not None
            job = queue.pop(ack=job)
        return jobs / (time.perf_counter() - started)


def bare_scripts(url: str, jobs: int, script: str, calls: int) -> float:
    """Calls of an empty script, one after the other, that together make a job."""
    parts, reader = urlsplit(url), hiredis.Reader()
    with socket.create_connection((parts.hostname, parts.port)) as bare:
        bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        packed = pack(("EVALSHA", script, 2, "{a}:1", "{a}:2", ""))
        started = time.perf_counter()
        for _ in range(jobs * calls):
            bare.sendall(packed)
            reader.feed(bare.recv(65_536))
            assert reader.gets() == 1
        return jobs / (time.perf_counter() - started)


def asyncio_pops(url: str, jobs: int) -> float:
    async def main() -> float:
        async with duetime.connect_async(url) as client:
            queue = client.queue("bench")
            await queue.bulk([BODY] * jobs)
            started = time.perf_counter()
            for _ in range(jobs):
                delivery = await queue.pop()
                assert delivery is not None
                await client.ack(delivery)
            return jobs / (time.perf_counter() - started)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def bulk(url: str, jobs: int) -> float:
    with duetime.connect(url) as client:
        started = time.perf_counter()
        client.queue("bench").bulk([BODY] * jobs, delay="1h")
        return jobs / (time.perf_counter() - started)


def peer(name: str, mode: str, jobs: int, url: str) -> float:
    command = [str(peer_python()), str(PEER), name, mode, str(jobs), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def contenders(url: str, jobs: int, script: str, flush: Callable[[], object]) -> dict[str, Callable[[], float]]:
    """`script` is the hash of an empty one."""

    def fresh(run: Callable[[], float]) -> Callable[[], float]:
        def clean() -> float:
            flush()
            return run()

        return clean

    runs: dict[str, Callable[[], float]] = {
        "duetime, one caller (blocking)": lambda: blocking(url, jobs),
        "duetime, one caller (asyncio)": lambda: asyncio_callers(url, jobs, 1),
        "duetime, 64 callers (asyncio)": lambda: asyncio_callers(url, jobs * 4, 64),
        "duetime, bulk (blocking)": lambda: bulk(url, jobs * 10),
        "duetime, pop + ack, one caller (blocking)": lambda: blocking_pops(url, jobs),
        "duetime, pop + ack, one caller (asyncio)": lambda: asyncio_pops(url, jobs),
        "duetime, pop(ack=...), one caller (blocking)": lambda: blocking_next_pops(url, jobs),
        "floor of pop + ack: two bare EVALSHA": lambda: bare_scripts(url, jobs, script, 2),
        "floor of pop(ack=...): a bare EVALSHA": lambda: bare_scripts(url, jobs, script, 1),
    }
    for name in PEERS:
        runs[f"{name}, one caller"] = lambda name=name: peer(name, "one", jobs, url)
        runs[f"{name}, 64 callers"] = lambda name=name: peer(name, "many", jobs, url)
    runs[DEQUEUE] = lambda: peer("huey", "take", jobs, url)
    runs[f"{DEQUEUE} + result (pop)"] = lambda: peer("huey", "work", jobs, url)
    return {name: fresh(run) for name, run in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with a_redis() as server:
        client = meter(server)
        script = client.script_load("return 1")
        runs = contenders(server.url, options.jobs, script, client.flushall)
        results = interleave(runs, rounds=options.rounds, warmups=0)
    rates = {name: median(values) for name, values in results.items()}
    one = max(rate for name, rate in rates.items() if "one caller" in name and not name.startswith("duetime"))
    many = max(rate for name, rate in rates.items() if "64 callers" in name and not name.startswith("duetime"))

    def best(name: str) -> float:
        if "pop" in name or name == DEQUEUE:
            return rates[DEQUEUE]
        return many if "64" in name else one

    rows = [[name, number(rate), spread(results[name]), ratio(rate, best(name))] for name, rate in rates.items()]
    print(f"{options.jobs} delayed pushes, medians of {options.rounds} interleaved rounds, no persistence")
    print(table(["contender", "jobs/s", "spread", "to the best peer"], rows))
    print("goals: one caller 1.0x, 64 callers 2.0x of the best peer; bulk 10x the best single")

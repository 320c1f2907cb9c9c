"""Relay of delayed jobs from Laravel, Redisson, lmstfy and php-delayqueue: rate, and how long Redis is blocked.

make bench ARGS=relay                                   1,000,000 delayed jobs from each
make bench ARGS="relay --jobs 50000 --systems laravel redisson"

Jobs are written as those systems write them, into a Redis of their own, and relayed to Duetime on another Redis. The
longest step is the longest entry of the slow log of either during the relay. The goal: at most 20 ms. A slow log counts
the time that other processes have the core, so both servers get real-time priority, if this program may set it.
"""

import argparse
import json
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import redis

import duetime
from bench.core_parts.setting import a_redis
from bench.report import table
from duetime.bridges.delayqueue import DelayQueue
from duetime.bridges.foreign import ForeignQueues
from duetime.bridges.laravel import LaravelRedis
from duetime.bridges.lmstfy import Lmstfy
from duetime.bridges.payload import make_payload
from duetime.bridges.redisson import QueueKeys, Redisson, pack
from duetime.bridges.relay import Relay
from duetime.model.names import Queue

GOAL_MS = 20
BATCH = 1000
DATA = {"order": "1234567890", "customer": "ann", "amount": "12.50"}
BODY = json.dumps(DATA).encode()
Pipe = Any


def laravel(pipe: Pipe, number: int, due: float) -> None:
    pipe.zadd("queues:mail:delayed", {make_payload("Job@fire", DATA, due, job_id=str(number)): int(due)})


def redisson(pipe: Pipe, number: int, due: float) -> None:
    keys, element = QueueKeys("mail"), pack(BODY)
    pipe.zadd(keys.timeouts, {element: int(due * 1000)})
    pipe.rpush(keys.elements, element)


def lmstfy(pipe: Pipe, number: int, due: float) -> None:
    name = f"{number:026}".encode()
    pipe.set(f"j/shop/mail/{name.decode()}", BODY, ex=864_000)
    pipe.zadd("timer_set", {struct.pack("<H4sH4sHH26s", 4, b"shop", 4, b"mail", 3, 26, name): int(due)})


def delayqueue(pipe: Pipe, number: int, due: float) -> None:
    pipe.hset("dq_job_info", f"mail:{number}", BODY)
    pipe.zadd(f"dq_bucket_{zlib.crc32(b'mail') % 2}", {f"mail:{number}": int(due)})


SYSTEMS: dict[str, tuple[Callable[[Pipe, int, float], None], Callable[[str], ForeignQueues], str]] = {
    "laravel": (laravel, LaravelRedis, "mail"),
    "redisson": (redisson, Redisson, "mail"),
    "lmstfy": (lmstfy, Lmstfy, "shop/mail"),
    "delayqueue": (delayqueue, DelayQueue, "mail"),
}


def fill(theirs: redis.Redis, system: str, jobs: int) -> None:
    write, began = SYSTEMS[system][0], time.time()
    for first in range(0, jobs, BATCH):
        pipe = theirs.pipeline(transaction=False)
        for number in range(first, min(first + BATCH, jobs)):
            write(pipe, number, began + 86_400 + number * 7919 % 86_400)
        pipe.execute()


def slowest(theirs: redis.Redis) -> Iterator[tuple[float, str]]:
    """Milliseconds and beginning of the command."""
    for entry in theirs.slowlog_get(-1):
        yield entry["duration"] / 1000, entry["command"][:40].decode(errors="replace")


def measure(system: str, jobs: int) -> list[object]:
    with a_redis() as source, a_redis() as target:
        both = [redis.Redis.from_url(server.url) for server in (source, target)]
        for server in (source, target):
            with suppress(PermissionError):
                os.sched_setscheduler(server.pid, os.SCHED_FIFO, os.sched_param(1))
        fill(both[0], system, jobs)
        for one in both:
            one.config_set("slowlog-log-slower-than", 1000)
            one.config_set("slowlog-max-len", 100_000)
            one.slowlog_reset()
        foreign = SYSTEMS[system][1](source.url)
        with duetime.connect(target.url, namespace="shop") as client:
            began = time.monotonic()
            moved = Relay(foreign, client).to_duetime(SYSTEMS[system][2], Queue("shop", "mail"), follow=False)
            took_s = time.monotonic() - began
            arrived = client.queue("mail").counts().delayed
        there, here = (sorted(slowest(one), reverse=True) or [(0.0, "")] for one in both)
        left = foreign.sizes(SYSTEMS[system][2]).total
        foreign.close()
        if not moved == arrived == jobs or left:
            raise SystemExit(f"{system}: {moved} of {jobs} moved, {arrived} arrived, {left} left")
        return [
            system,
            jobs,
            moved / took_s,
            f"{there[0][0]:.1f} ms",
            there[0][1],
            f"{here[0][0]:.1f} ms",
            sum(ms > GOAL_MS for ms, _ in there + here),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    options = parser.parse_args()
    rows = [measure(system, options.jobs) for system in options.systems]
    print(table(["from", "jobs", "jobs/s", "longest step there", "which", "here", f"over {GOAL_MS} ms"], rows))

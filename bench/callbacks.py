"""Callbacks a second: to a receiver that answers at once, beside a bare loop of the same client, and to a slow one.

    make bench ARGS=callbacks       or: make bench ARGS="callbacks --jobs 20000 --store redis://127.0.0.1:6379/0"
    make bench ARGS="callbacks slow --slow-in-flight 5000 --slow-s 5 --slow-rounds 4"     thousands at a time

The receiver is a process of its own, the same for both contenders. `courier` is a whole courier on a store: lease, call
back, write down, ack. `bare` sends as many requests through the same HTTP client with as many at a time and does
nothing else; with --clients also through httpx. Calls begin one after the other until the limit is reached, and the
clock begins when so many are done: so connections are there. Goals: 60 % of bare, and 95 % of in-flight limit / 0.5 s
where every answer takes 500 ms.
"""

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC
from ipaddress import ip_network
from multiprocessing.connection import Connection
from typing import Any

import httpx
import uvloop

from bench.report import interleave, median, number, ratio, table
from duetime.callbacks.caller import Caller
from duetime.callbacks.courier import Courier, CourierOptions
from duetime.callbacks.request import CallbackRequest
from duetime.callbacks.targets import AllowedTargets
from duetime.callbacks.topic_registry import TopicAddress, TopicRegistry
from duetime.engine.engine import Engine
from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.ids import IdMaker
from duetime.model.job import STEP_JOBS, NewJob
from duetime.model.names import Queue
from duetime.model.topic import Method, Topic
from duetime.stores.open import open_store

LOOPBACK = (ip_network("127.0.0.0/8"),)
BODY = b'{"order":"1234567890","customer":"ann","amount":"12.50"}'
ANSWER = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{"code":200}'
SLOW_S = 0.5
GOAL_OF_BARE = 0.6
GOAL_OF_LIMIT = 0.95
LOOK_EVERY_S = 0.02
TIMEOUT_MS = 60_000


# --- the receiver


class Receiver(asyncio.Protocol):
    """The least that answers HTTP: a request ends with its body, whose length is in its head.

    `open_calls` are those without an answer, now and at most so far.
    """

    def __init__(self, delay_s: float, open_calls: Any) -> None:
        self._delay_s = delay_s
        self._open = open_calls
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            _, found, rest = head.partition(b"content-length: ")
            length = int(rest.split(b"\r\n", 1)[0]) if found else 0
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            self._open[0] += 1
            self._open[1] = max(self._open)
            if self._delay_s:
                asyncio.get_running_loop().call_later(self._delay_s, self._answer)
            else:
                self._answer()

    def _answer(self) -> None:
        self._open[0] -= 1
        if not self._transport.is_closing():
            self._transport.write(ANSWER)


def receive(told: Connection, delay_s: float, open_calls: Any) -> None:
    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Receiver(delay_s, open_calls), "127.0.0.1", 0, backlog=4096)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(serve())


class Receiving:
    """A receiver in a process of its own. `most_at_once` is how many calls it had without an answer at a time."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._open = multiprocessing.get_context("spawn").Array("q", 2, lock=False)

    @property
    def most_at_once(self) -> int:
        most = self._open[1]
        self._open[1] = 0
        return most

    def __enter__(self) -> "Receiving":
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        self._process = context.Process(target=receive, args=(there, self._delay_s, self._open), daemon=True)
        self._process.start()
        self.url = f"http://127.0.0.1:{here.recv()}/callback"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()


# --- the contenders: each answers calls a second


async def courier(url: str, store: str, jobs: int, in_flight: int) -> float:
    """Until the last job is acked. Every run has a topic of its own."""
    place = TopicAddress("default", Queue("bench", IdMaker().make()))
    async with AsyncExitStack() as stack:
        pools = await stack.enter_async_context(Pools({"default": store}, open_store=open_store))
        registry_copy = await stack.enter_async_context(RegistryCopy(lambda: pools.registry))
        engine = pools.engine("default")
        made = [NewJob(str(number), BODY, tries=0) for number in range(in_flight + jobs)]
        for at in range(0, len(made), STEP_JOBS):
            await engine.push(place.queue, made[at : at + STEP_JOBS])
        options = CourierOptions(in_flight=in_flight, per_host=in_flight, allowed=LOOPBACK, zone=UTC)
        await stack.enter_async_context(Courier(pools, registry_copy, options=options))
        topics = TopicRegistry(lambda: pools.registry, registry_copy)
        topic = Topic(
            key=place.queue.name, callback=url, method=Method.POST, timeout_ms=TIMEOUT_MS, in_flight=in_flight
        )
        await topics.add(place, topic)
        first = await _left(engine, place.queue, jobs)
        began = time.perf_counter()
        await _left(engine, place.queue, 0)
        return first / (time.perf_counter() - began)


async def _left(engine: Engine, queue: Queue, jobs: int) -> int:
    """Wait until there are no more jobs than this; answers how many there are."""
    while True:
        [counts] = await engine.store.counts([queue])
        if counts.total <= jobs:
            return counts.total
        await asyncio.sleep(LOOK_EVERY_S)


async def bare(url: str, jobs: int, in_flight: int, delay_s: float = 0.0) -> float:
    request = CallbackRequest(
        "POST", url, {"content-type": "application/x-www-form-urlencoded"}, b"order=1234567890&customer=ann"
    )
    async with Caller(AllowedTargets(LOOPBACK)) as caller:

        async def call() -> None:
            answer = await caller.call(request, timeout_ms=TIMEOUT_MS, verify=True)
            while answer.unreachable:  # this machine was too busy; the courier would call again, too
                answer = await caller.call(request, timeout_ms=TIMEOUT_MS, verify=True)
            assert answer.status == 200, answer

        return await _many(call, jobs, in_flight, delay_s)


async def bare_httpx(url: str, jobs: int, in_flight: int) -> float:
    limits = httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight)
    async with httpx.AsyncClient(limits=limits, timeout=60, trust_env=False, verify=False) as client:

        async def call() -> None:
            reply = await client.post(url, data={"order": "1234567890", "customer": "ann"})
            assert reply.status_code == 200

        return await _many(call, jobs, in_flight)


async def _many(call: Callable[[], Awaitable[None]], jobs: int, in_flight: int, delay_s: float = 0.0) -> float:
    """Calls begin spread over the time that an answer takes, and over a millisecond each at least."""
    left = iter(range(in_flight + jobs))
    done, began = 0, 0.0

    async def work(place: int) -> None:
        nonlocal done, began
        await asyncio.sleep(place * max(0.001, delay_s / in_flight))
        for _ in left:
            await call()
            done += 1
            if done == in_flight:
                began = time.perf_counter()

    await asyncio.gather(*(work(place) for place in range(in_flight)))
    return jobs / (time.perf_counter() - began)


# --- the comparison


def main() -> int:
    options = read_options()
    with tempfile.TemporaryDirectory() as folder:
        stores = _stores(folder, options.store)
        for name in options.parts or PARTS:
            PARTS[name](options, stores)
    return 0


def _stores(folder: str, chosen: str) -> dict[str, str]:
    return {"store": chosen} if chosen else {"memory": "memory:", "sqlite": f"sqlite://{folder}/jobs.db"}


def fast(options: Any, stores: dict[str, str]) -> None:
    with Receiving(0) as receiver:
        url = receiver.url
        contenders: dict[str, Callable[[], float]] = {
            "bare": lambda: uvloop.run(bare(url, options.jobs, options.in_flight)),
            **{
                f"courier, {name}": lambda at=at: uvloop.run(courier(url, at, options.jobs, options.in_flight))
                for name, at in stores.items()
            },
        }
        if options.clients:
            contenders["bare httpx"] = lambda: uvloop.run(bare_httpx(url, options.jobs, options.in_flight))
        rates = interleave(contenders, rounds=options.rounds)
    best = median(rates["bare"])
    rows = [
        [name, number(median(found)), ratio(median(found), best), f"{GOAL_OF_BARE:.0%}" if "courier" in name else ""]
        for name, found in rates.items()
    ]
    print(f"A receiver that answers at once; {options.jobs:,} jobs, {options.in_flight} at a time\n")
    print(table(["", "calls/s", "of bare", "goal"], rows), end="\n\n", flush=True)


def slow(options: Any, stores: dict[str, str]) -> None:
    """Long enough that the last answers do not decide: many rounds of the whole limit."""
    limit, delay_s = options.slow_in_flight, options.slow_s
    most, jobs = limit / delay_s, options.slow_rounds * limit
    rows: list[list[str]] = []
    with Receiving(delay_s) as receiver:
        # What the machine lets the client alone do: where that is below the goal, the courier cannot show it either.
        alone = uvloop.run(bare(receiver.url, jobs, limit, delay_s))
        rows.append(["bare", number(alone), f"{alone / most:.0%}", number(receiver.most_at_once), ""])
        for name, at in stores.items():
            rate = uvloop.run(courier(receiver.url, at, jobs, limit))
            at_once = number(receiver.most_at_once)
            rows.append([f"courier, {name}", number(rate), f"{rate / most:.0%}", at_once, f"{GOAL_OF_LIMIT:.0%}"])
    print(f"A receiver that takes {delay_s} s; {limit} at a time can make {number(most)} a second\n")
    print(table(["", "calls/s", "of that", "most at once", "goal"], rows), flush=True)


PARTS = {"fast": fast, "slow": slow}


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="fast, slow; default both")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--in-flight", type=int, default=200)
    parser.add_argument("--slow-in-flight", type=int, default=500)
    parser.add_argument("--slow-s", type=float, default=SLOW_S, help="that an answer of the slow receiver takes")
    parser.add_argument(
        "--slow-rounds", type=int, default=20, help="calls to the slow receiver, as a multiple of the limit"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", default="", help="one store URL instead of memory and SQLite")
    parser.add_argument("--clients", action="store_true", help="also a bare loop of httpx")
    return parser.parse_args()

"""Producers and consumers over real sockets that write down what they are told.

Half of the producers repeat a push under an Idempotency-Key until it is answered; the others send it once. Most jobs
are delayed. Consumers ack most deliveries; some they release, forget, or ack only after the lease has ended.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import httpx

from tests.faults.blackbox.history import Delivery, Finish, History, Outcome, Push

TTR_S = 2.0
PATIENCE_S = 5.0
"""How long a client waits for an answer."""
PAUSE_S = 0.01
DELAYS_MS = (0, 0, 50, 300, 1000)
ACK_TRIES = 3
STEP_JOBS = 500
"""The most that a reserve may ask for."""
TOGETHER_MS = 15_000
"""How long 100,000 jobs that are due in the same second may take to be pushed."""
BODY = "x" * 200


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Load:
    """Clients of one queue. `stop_pushing` ends the producers; consumers go on until `is_over` is set. Two loads of one
    queue need different prefixes of ids, because the server remembers keys of the first one.
    """

    def __init__(self, api: str, queue: str, *, seed: int = 0, prefix: str = "") -> None:
        self._prefix = prefix
        self.history = History()
        self.is_over = asyncio.Event()
        self._is_full = asyncio.Event()
        self._url = f"{api}/v1/queues/{queue}"
        self._chance = random.Random(seed)
        self._limit = 5
        self._limits = httpx.Limits(max_keepalive_connections=None, max_connections=None)

    async def run(self, *, producers: int, consumers: int) -> None:
        async with httpx.AsyncClient(timeout=PATIENCE_S, limits=self._limits) as http, asyncio.TaskGroup() as tasks:
            for number in range(producers):
                tasks.create_task(self._produce(http, number))
            for _ in range(consumers):
                tasks.create_task(self._consume(http, tasks))

    def stop_pushing(self) -> None:
        self._is_full.set()

    async def push_together(self, count: int) -> None:
        """Push so many jobs that are due in the same second, and let consumers reserve many at a time."""
        self._limit = STEP_JOBS
        due_at = now_ms() + TOGETHER_MS * (1 + count // 100_000)
        async with httpx.AsyncClient(timeout=PATIENCE_S * 6) as http:
            for first in range(0, count, STEP_JOBS):
                ids = [f"{self._prefix}together-{number}" for number in range(first, min(first + STEP_JOBS, count))]
                jobs = [{"id": job_id, "body": BODY, "due_at": due_at, "tries": 0} for job_id in ids]
                outcome, reply = await self._ask(http, "batch", {"jobs": jobs})
                borns = (
                    [(one["moved"]["born"],) for one in reply["results"]] if outcome is Outcome.OK else [()] * len(ids)
                )
                self.history.pushes += [
                    Push(job_id, due_at, now_ms(), 0, outcome, born) for job_id, born in zip(ids, borns, strict=True)
                ]
        await asyncio.sleep(max(due_at - now_ms(), 0) / 1000)

    async def count_left(self, http: httpx.AsyncClient) -> int | None:
        """Jobs in the queue, in any state. None if the server does not say."""
        with suppress(httpx.TransportError):
            reply = await http.get(self._url)
            if reply.status_code == 200:
                counts = reply.json()["counts"]
                return sum(counts[state] for state in ("delayed", "ready", "leased", "dead"))
        return None

    async def _produce(self, http: httpx.AsyncClient, name: int) -> None:
        number = 0
        while not self._is_full.is_set():
            number += 1
            await self._push(http, f"{self._prefix}{name}-{number}", is_keyed=name % 2 == 0)
            await asyncio.sleep(PAUSE_S)

    async def _push(self, http: httpx.AsyncClient, job_id: str, *, is_keyed: bool) -> None:
        delay_ms = self._chance.choice(DELAYS_MS)
        job = {"id": job_id, "body": BODY, "delay": f"{delay_ms}ms", "tries": 0}
        headers = {"Idempotency-Key": job_id} if is_keyed else {}
        asked_at, was_unknown = now_ms(), False
        while True:
            outcome, reply = await self._ask(http, "jobs", job, headers)
            was_unknown = was_unknown or outcome is Outcome.UNKNOWN
            if not is_keyed or outcome is Outcome.OK or self.is_over.is_set():
                break
            await asyncio.sleep(PAUSE_S * 5)
        if outcome is Outcome.REFUSED and was_unknown:
            outcome = Outcome.UNKNOWN
        borns = (reply["moved"]["born"],) if outcome is Outcome.OK else ()
        self.history.pushes.append(Push(job_id, asked_at, now_ms(), delay_ms, outcome, borns))

    async def _consume(self, http: httpx.AsyncClient, tasks: asyncio.TaskGroup) -> None:
        while not self.is_over.is_set():
            asked_at = now_ms()
            outcome, reply = await self._ask(http, "reserve", {"limit": self._limit, "ttr": TTR_S, "wait": 0.5})
            if outcome is not Outcome.OK:
                await asyncio.sleep(PAUSE_S)
                continue
            at = now_ms()
            found = [
                Delivery(**one["lease"], asked_at=asked_at, received_at=at, lease_until=one["lease_until"])
                for one in reply["deliveries"]
            ]
            self.history.deliveries += found
            fates = [self._chance.random() if number < 5 else 0.0 for number in range(len(found))]
            await self._ack(http, [one for one, fate in zip(found, fates, strict=True) if fate < 0.88])
            for one, fate in zip(found, fates, strict=True):
                if 0.88 <= fate < 0.93:
                    await self._release(http, one)
                elif 0.93 <= fate < 0.97:
                    tasks.create_task(self._ack_late(http, one))  # the others are forgotten

    async def _ack_late(self, http: httpx.AsyncClient, one: Delivery) -> None:
        await asyncio.sleep(TTR_S * 1.2)
        await self._ack(http, [one])

    async def _ack(self, http: httpx.AsyncClient, deliveries: Sequence[Delivery]) -> None:
        for _ in range(ACK_TRIES if deliveries else 0):
            leases = [_lease(one) for one in deliveries]
            outcome, reply = await self._ask(http, "ack", {"leases": leases})
            answers = reply["results"] if outcome is Outcome.OK else [{} for _ in deliveries]
            for one, answer in zip(deliveries, answers, strict=True):
                self._finished("ack", one, _outcome_of_ack(answer) if outcome is Outcome.OK else outcome)
            if outcome is Outcome.OK:
                return
            await asyncio.sleep(PAUSE_S * 5)

    async def _release(self, http: httpx.AsyncClient, one: Delivery) -> None:
        outcome, _ = await self._ask(http, "release", {"lease": _lease(one)})
        self._finished("release", one, outcome)

    def _finished(self, verb: str, one: Delivery, outcome: Outcome) -> None:
        self.history.finishes.append(Finish(verb, one.id, one.born, one.attempt, now_ms(), outcome))

    async def _ask(
        self, http: httpx.AsyncClient, verb: str, message: dict[str, Any], headers: dict[str, str] | None = None
    ) -> tuple[Outcome, dict[str, Any]]:
        try:
            reply = await http.post(f"{self._url}/{verb}", json=message, headers=headers)
        except httpx.TransportError:
            return Outcome.UNKNOWN, {}
        answer: dict[str, Any] = reply.json()
        if reply.status_code < 300:
            return Outcome.OK, answer
        if answer.get("fields", {}).get("unknown"):
            return Outcome.UNKNOWN, answer
        return (Outcome.LOST if answer["code"] == "lease_lost" else Outcome.REFUSED), answer


def _lease(one: Delivery) -> dict[str, Any]:
    return {"id": one.id, "born": one.born, "attempt": one.attempt}


def _outcome_of_ack(answer: dict[str, Any]) -> Outcome:
    """One result of an ack of several leases."""
    if answer.get("moved"):
        return Outcome.OK
    if error := answer.get("error"):
        if error.get("fields", {}).get("unknown"):
            return Outcome.UNKNOWN
        return Outcome.LOST if error["code"] == "lease_lost" else Outcome.REFUSED
    return Outcome.GONE

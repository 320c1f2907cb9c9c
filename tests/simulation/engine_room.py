"""The words that the engine's tests are written in: engines and stores in virtual time.

`given_store()` is a memory store on the loop's own clock behind the fault wrapper. `waiting(engine)` starts a consumer
and returns once it is parked. `elapsed()` measures virtual time.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from duetime.engine import Engine
from duetime.model.clock import Duration, duration_ms
from duetime.model.job import Delivery, NewJob
from duetime.model.names import Queue
from duetime.stores.memory.store import MemoryStore
from tests.faults.store_faults import FaultyStore
from tests.simulation.virtual_loop import LoopClock

QUEUE = Queue("shop", "mail")
OTHER = Queue("shop", "sms")
THIRD = Queue("shop", "fax")

LONG_MS = 86_400_000
"""A wait that no test sits out."""


def given_store(clock: LoopClock | None = None) -> FaultyStore:
    return FaultyStore(MemoryStore(clock or LoopClock()))


def job(job_id: str, *, delay: Duration = 0, ttl: Duration = 0, **options: Any) -> NewJob:
    return NewJob(job_id, b"hello", delay_ms=duration_ms(delay), ttl_ms=duration_ms(ttl), **options)


async def push(engine: Engine, *job_ids: str, queue: Queue = QUEUE, **options: Any) -> None:
    await engine.push(queue, [job(job_id, **options) for job_id in job_ids])


async def settle() -> None:
    """Let everything that can run now run."""
    await asyncio.sleep(0.001)


async def waiting(
    engine: Engine, *queues: Queue, wait_ms: int = LONG_MS, **options: Any
) -> "asyncio.Task[list[Delivery]]":
    """A consumer that has looked, found nothing, and waits."""
    task = asyncio.create_task(engine.reserve(queues or [QUEUE], wait_ms=wait_ms, **options))
    await settle()
    assert not task.done(), task
    return task


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.lease.id for delivery in deliveries]


class Stopwatch:
    def __init__(self) -> None:
        self._start = asyncio.get_running_loop().time()

    @property
    def ms(self) -> float:
        return round((asyncio.get_running_loop().time() - self._start) * 1000, 3)

"""A process of its own that works on a store, for test_concurrency. Run as a script: contender.py ROLE URL NAME.

It opens the store, says "ready", waits for a line, does its role, and prints what it got as JSON.
"""

import asyncio
import json
import sys

from duetime.model.job import STEP_JOBS, Lease, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Store
from duetime.stores.open import open_store

QUEUE = Queue("race", "jobs")
TTR_MS = 600_000


async def grab(store: Store, name: str) -> list[list[object]]:
    """Reserve until nothing is left; keep everything."""
    leases: list[Lease] = []
    while True:
        [deliveries] = (await store.reserve(QUEUE, [Ask(7, TTR_MS)])).deliveries
        if not deliveries:
            return [[lease.id, lease.born, lease.attempt] for lease in leases]
        leases += [delivery.lease for delivery in deliveries]


async def work(store: Store, name: str) -> dict[str, list[str]]:
    """Push, reserve, release the first delivery of each job, ack the second, until the queue stays empty."""
    pushed: list[str] = []
    acked: list[str] = []
    idle, batch = 0, 0
    while idle < 20:
        if batch < 10:
            jobs = [NewJob(f"{name}-{batch}-{n}", name.encode()) for n in range(5)]
            [answer] = await store.push(QUEUE, [Push(jobs)])
            assert isinstance(answer, Pushed), answer
            pushed += [moved.id for moved in answer.jobs]
            batch += 1
        [deliveries] = (await store.reserve(QUEUE, [Ask(3, TTR_MS)])).deliveries
        idle = 0 if deliveries or batch < 10 else idle + 1
        for delivery in deliveries:
            if delivery.lease.attempt == 1:
                await store.release(delivery.lease, 0, name)
            else:
                [moved] = await store.ack(QUEUE, [delivery.lease])
                acked.append(getattr(moved, "id", repr(moved)))
        if idle:
            await asyncio.sleep(0.005)
    return {"pushed": pushed, "acked": acked}


async def fill(store: Store, name: str) -> int:
    """Push the same ids as everybody else; count those that were accepted from us."""
    answers = await store.push(QUEUE, [Push([NewJob(f"{n}", name.encode())]) for n in range(STEP_JOBS)])
    return sum(moved.event == "accepted" for answer in answers if isinstance(answer, Pushed) for moved in answer.jobs)


async def main(role: str, url: str, name: str) -> None:
    store = await open_store(url)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    result = await {"grab": grab, "work": work, "fill": fill}[role](store, name)
    await store.close()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

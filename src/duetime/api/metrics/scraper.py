"""Answers /metrics for the whole server, whichever of its processes is asked.

Each process tells what it counted; the one that was asked reads the stores, adds all up and writes the text. What
processes had counted that are no more is the supervisor's to remember (`ledger.py`), and comes with the others.
"""

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from duetime.api.metrics.exposition import render
from duetime.api.metrics.ledger import METRICS
from duetime.api.metrics.levels import StoreLevels
from duetime.api.metrics.process import PER_WORKER, watch_process
from duetime.api.supervision.crew import Crew, Reply, Worker
from duetime.engine import snapshots
from duetime.engine.meters import Meters, Snapshot
from duetime.engine.pools import Pools

log = logging.getLogger("duetime.metrics")


class Scraper:
    """One per process: it answers for the process, and for all of them."""

    def __init__(self, pools: Pools, crew: Crew) -> None:
        self.meters = pools.meters
        self.levels = StoreLevels(pools, self.meters.names)
        self._crew = crew
        watch_process(self.meters, crew.name)
        crew.handle(METRICS, self._tell)

    async def _tell(self, question: bytes) -> bytes:
        return snapshots.encode(self.meters.snapshot())

    async def text(self) -> bytes:
        """Everything there is to know. A large server's takes a while to write, so a thread does that."""
        levels, replies, workers = await asyncio.gather(
            self.levels.read(), self._crew.ask_all(METRICS), self._crew.workers()
        )
        return await asyncio.to_thread(_write, replies, [levels, _crew_levels(workers)])


def _crew_levels(workers: Sequence[Worker]) -> Snapshot:
    meters = Meters()
    restarts = meters.counter(
        "duetime_worker_restarts_total", "Unexpected ends of a worker process since the server's start.", PER_WORKER
    )
    up = meters.level("duetime_worker_up", "1 while the worker process serves.", PER_WORKER, shared=True)
    for worker in workers:
        restarts.of(worker.name).value = worker.restarts
        up.of(worker.name).value = worker.state == "ready"
    return meters.snapshot()


def _write(replies: Sequence[Reply], more: Sequence[Snapshot]) -> bytes:
    found: list[Snapshot] = []
    for reply in replies:
        try:
            found.append(snapshots.decode(reply.body))
        except msgspec.MsgspecError:
            log.warning("metrics_unreadable", extra={"worker": reply.worker})
    return render(snapshots.merge([*found, *more]))

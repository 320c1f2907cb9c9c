"""Reads the metrics of the whole server in any of its processes: for /metrics, and for OTLP.

Each process sends a snapshot of its counters. The process that was asked adds the snapshots up, and reads the numbers
of jobs and the totals from the stores. The supervisor remembers the counters of processes that ended
(`EndedProcesses`) and sends them with the others.
"""

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from duetime.engine.pools import Pools
from duetime.metrics import snapshots
from duetime.metrics.meters import Meters, Snapshot
from duetime.metrics.process_meters import PER_WORKER, watch_process
from duetime.metrics.siblings import Siblings, WorkerInfo, WorkerReply
from duetime.metrics.snapshots import METRICS, render
from duetime.metrics.store_metrics import StoreLevels, StoreTotals

log = logging.getLogger("duetime.metrics")


class Scraper:
    """One per process. It writes /metrics for the whole server, and sends its snapshot when another process asks."""

    def __init__(self, pools: Pools, siblings: Siblings, meters: Meters | None = None) -> None:
        """`meters` holds all metrics of this process."""
        self.meters = meters or Meters()
        self.levels = StoreLevels(pools, self.meters.names)
        self._totals = StoreTotals(pools)
        self._siblings = siblings
        watch_process(self.meters, siblings.name)
        siblings.handle(METRICS, self._send_snapshot)

    async def _send_snapshot(self, question: bytes) -> bytes:
        return snapshots.encode(self.meters.snapshot())

    async def text(self) -> bytes:
        """The text of /metrics. A thread adds up and writes, because that takes a while on a large server."""
        return await asyncio.to_thread(render, await self.snapshot())

    async def snapshot(self) -> Snapshot:
        """The metrics of all processes and of the stores."""
        levels, replies, workers = await asyncio.gather(
            self.levels.read(), self._siblings.ask_all(METRICS), self._siblings.workers()
        )
        everything = await asyncio.to_thread(_add_up, replies, [levels, _sibling_levels(workers)])
        await self._totals.put_into(everything, self.levels.shown)
        return everything


def _sibling_levels(workers: Sequence[WorkerInfo]) -> Snapshot:
    meters = Meters()
    restarts = meters.counter(
        "duetime_worker_restarts_total", "Unexpected ends of a worker process since the server's start.", PER_WORKER
    )
    up = meters.level("duetime_worker_up", "1 while the worker process serves.", PER_WORKER, shared=True)
    for worker in workers:
        restarts.of(worker.name).value = worker.restarts
        up.of(worker.name).value = worker.state == "ready"
    return meters.snapshot()


def _add_up(replies: Sequence[WorkerReply], more: Sequence[Snapshot]) -> Snapshot:
    found: list[Snapshot] = []
    for reply in replies:
        try:
            found.append(snapshots.decode(reply.body))
        except msgspec.MsgspecError:
            log.warning("metrics_unreadable", extra={"worker": reply.worker})
    return snapshots.merge([*found, *more])

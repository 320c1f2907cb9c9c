"""The stores' exact totals by day, added up over all queues, in the background and at most every half a minute."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import date

from duetime.console.queue_looks import MOST_QUEUES
from duetime.engine.pools import Pools
from duetime.model.errors import DuetimeError
from duetime.model.job import STEP_JOBS, Totals

log = logging.getLogger("duetime.console")

TOTALS_S = 30.0


class DayTotals:
    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._totals: dict[tuple[str, str], dict[date, Totals]] = {}
        self._running: dict[str, Totals] = {}
        self._totals_at = -TOTALS_S
        self._adding_up: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._adding_up is not None:
            self._adding_up.cancel()
            await asyncio.gather(self._adding_up, return_exceptions=True)

    async def days(self, sees: Callable[[str, str], bool], *, within_s: float = 0.25) -> dict[date, Totals] | None:
        """The totals of all queues by day; None while they are being added up for the first time."""
        if not await self._totals_known(within_s):
            return None
        found: dict[date, Totals] = {}
        for (pool, namespace), by_day in self._totals.items():
            if sees(pool, namespace):
                for day, totals in by_day.items():
                    found[day] = add_totals(found.get(day, Totals()), totals)
        return found

    async def pool_totals(self, *, within_s: float = 0.25) -> Mapping[str, Totals]:
        """The running totals of each pool; empty while they are being added up for the first time."""
        return self._running if await self._totals_known(within_s) else {}

    async def _totals_known(self, within_s: float) -> bool:
        if time.monotonic() - self._totals_at >= TOTALS_S and (self._adding_up is None or self._adding_up.done()):
            self._adding_up = asyncio.create_task(self._add_up())
        if self._adding_up is not None:
            await asyncio.wait({self._adding_up}, timeout=within_s)
        return self._totals_at >= 0

    async def _add_up(self) -> None:
        sums: dict[tuple[str, str], dict[date, Totals]] = {}
        running: dict[str, Totals] = {}
        for pool in self._pools.names:
            try:
                store = self._pools.engine(pool).store
                queues = (await store.queues())[:MOST_QUEUES]
                for at in range(0, len(queues), STEP_JOBS):
                    chunk = queues[at : at + STEP_JOBS]
                    for queue, totals in zip(chunk, await store.totals(chunk), strict=True):
                        running[pool] = add_totals(running.get(pool, Totals()), totals.running)
                        into = sums.setdefault((pool, queue.namespace), {})
                        for day, one in totals.days.items():
                            into[day] = add_totals(into.get(day, Totals()), one)
            except DuetimeError as error:
                log.info("console_totals_failed", extra={"pool": pool, "error": error.message})
                return
        self._totals, self._running, self._totals_at = sums, running, time.monotonic()


def add_totals(one: Totals, other: Totals) -> Totals:
    return Totals(*[getattr(one, name) + getattr(other, name) for name in Totals.__struct_fields__])

"""The counters of jobs as the stores keep them, read at each scrape to replace what the processes counted.

A process counts what passes through it from its start to its end. The totals of a store are exact, outlive every
process, and are the same whichever server reads them; so they are shown for every queue that is shown by name. Queues
that are shown together as `other` come and go, and a sum of their totals would go backwards: for these the counts of
the server's own processes are shown. A pool that does not answer in time shows no counters of its queues, because the
counts of the processes would be smaller numbers under the same names.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping

from duetime.engine.pools import Pools
from duetime.metrics.meters import OTHER, Labels, Snapshot
from duetime.model.errors import DuetimeError
from duetime.model.job import Totals, chunks
from duetime.model.names import Queue

WITHIN_S = 3.0
STEP = 100
"""How many queues one call asks about; between two calls the store can serve other requests."""

TOTALS_BY_COUNTER = {
    "duetime_jobs_pushed_total": "accepted",
    "duetime_jobs_delivered_total": "delivered",
    "duetime_jobs_acked_total": "acked",
    "duetime_jobs_released_total": "released",
    "duetime_jobs_lapsed_total": "lapsed",
    "duetime_jobs_dead_total": "dead",
    "duetime_jobs_cancelled_total": "cancelled",
    "duetime_jobs_expired_total": "expired",
    "duetime_jobs_respawned_total": "respawned",
}


class StoreTotals:
    """Reads the totals of the queues that are shown by name."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    async def put_into(self, counted: Snapshot, queues: Iterable[Labels]) -> None:
        """Replace the counters in `counted`, which is the sum of all processes. `queues` are the labels of further
        queues to show, of which no process may have counted anything; those that are shown as `other` are left out.
        """
        readings = [one for one in counted.readings if one.description.name in TOTALS_BY_COUNTER]
        named = {labels for reading in readings for labels in reading.series if _is_named(labels)}
        named |= set(filter(_is_named, queues))
        pools = {pool: [labels for labels in named if labels[0] == pool] for pool in self._pools.names}
        found = await asyncio.gather(*(self._read(pool, queues) for pool, queues in pools.items()))
        totals = {labels: one for answer in found for labels, one in answer.items()}
        for reading in readings:
            field = TOTALS_BY_COUNTER[reading.description.name]
            reading.series = {labels: value for labels, value in reading.series.items() if not _is_named(labels)}
            reading.series |= {labels: [getattr(one, field)] for labels, one in totals.items()}

    async def _read(self, pool: str, queues: Collection[Labels]) -> Mapping[Labels, Totals]:
        found: dict[Labels, Totals] = {}
        try:
            async with asyncio.timeout(WITHIN_S):
                store = self._pools.engine(pool).store
                for some in chunks(list(queues), STEP):
                    answers = await store.totals([Queue(namespace, name) for _, namespace, name in some])
                    found |= {labels: one.running for labels, one in zip(some, answers, strict=True)}
        except (DuetimeError, TimeoutError):
            return {}
        return found


def _is_named(labels: Labels) -> bool:
    return labels[1:] != (OTHER, OTHER)

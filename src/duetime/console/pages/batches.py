"""The page Batches: how far each batch of tasks is. A batch is a queue of its own, so its page is that queue's."""

from typing import NamedTuple

import msgspec
from msgspec import Struct
from starlette.responses import Response

from duetime.console.visit import Visit
from duetime.model.errors import DuetimeError
from duetime.model.job import Counts, State, Totals
from duetime.model.names import Queue, check_queue

KEEPERS = "duetime.batches"
"""The queue with one job per batch of a namespace that has not ended; its body says what the batch is."""
MOST = 200
MAX_BODY = 65_536


class BatchRecord(Struct):
    """The fields of a batch that the page shows."""

    queue: str
    name: str = ""
    opened_at: int = 0
    closed: bool = False
    cancelled: bool = False


class KeeperBody(Struct):
    batch: BatchRecord


class BatchRow(NamedTuple):
    pool: str
    queue: Queue
    record: BatchRecord
    counts: Counts
    totals: Totals
    paused: bool

    @property
    def state(self) -> str:
        if self.record.cancelled:
            return "cancelled"
        return "paused" if self.paused else "closed" if self.record.closed else "open"

    @property
    def ended(self) -> int:
        """Jobs that are not to be run any more."""
        return max(self.totals.accepted - self.counts.ready - self.counts.delayed - self.counts.leased, 0)


async def show_batches(visit: Visit) -> Response:
    look = await visit.parts.live.looks.look_for_page(is_partial=visit.is_partial)
    places = [
        (line.pool, line.queue)
        for line in look.lines
        if line.queue.name == KEEPERS and visit.sees(line.pool, line.queue.namespace)
    ]
    rows: list[BatchRow] = []
    for pool, queue in places:
        store = visit.parts.pools.engine(pool).store
        for state in (State.LEASED, State.READY, State.DELAYED):
            for job in (await store.list_jobs(queue, state, limit=MOST)).jobs:
                row = await _row(visit, pool, queue.namespace, job.id, job.body)
                if row is not None and len(rows) < MOST:
                    rows.append(row)
    rows.sort(key=lambda row: -row.record.opened_at)
    return visit.page("batches.html", rows=rows)


async def _row(visit: Visit, pool: str, namespace: str, batch_id: str, body: bytes) -> BatchRow | None:
    """None for a job that is no batch: anybody may push to the queue."""
    if len(body) > MAX_BODY:
        return None
    try:
        record = msgspec.json.decode(body, type=KeeperBody).batch
        queue = check_queue(namespace, batch_id)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, DuetimeError):
        return None
    engine = visit.parts.pools.engine(pool)
    [counts], [totals] = await engine.store.counts([queue]), await engine.store.totals([queue])
    return BatchRow(pool, queue, record, counts, totals.running, (await engine.configure(queue)).paused)

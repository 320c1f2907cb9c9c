"""The page Batches: how far each batch of tasks is, and how to pause, shift or cancel it.

A batch is a queue of its own, so its page is that queue's. What is known about it is the body of a job, its keeper,
which workers check; a change replaces that job, with a mark made of the `born` of the one that was read.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct
from starlette.responses import Response

from duetime.console.forms import FormReader
from duetime.console.visit import Visit
from duetime.engine.engine import Engine
from duetime.model.clock import MAX_INSTANT, duration_ms
from duetime.model.errors import NOT_JSON, Conflict, DuetimeError, InvalidRequest, MarkMismatch, NotFound
from duetime.model.job import Counts, IfExists, Moved, NewJob, State, Totals
from duetime.model.names import Queue, check_queue
from duetime.stores.base import Mark

KEEPERS = "duetime.batches"
"""The queue with one job per batch of a namespace that has not ended; its body says what the batch is."""
MOST = 200
MAX_BODY = 65_536
WAITING = (State.READY, State.DELAYED)
PAGE = 500
MOST_SHIFTED = 50_000
"""A batch with more waiting jobs is shifted by the CLI, which nobody waits for in a browser."""
MOST_REMOVED = 20_000
"""Waiting jobs that a click removes; workers remove the rest of a cancelled batch."""
MARK_LIFE_MS = 600_000
MAX_CHANGES = 20


class BatchRecord(Struct):
    """The fields of a batch that the page shows."""

    queue: str
    name: str = ""
    opened_at: int = 0
    closed: bool = False
    cancelled: bool = False


class KeeperBody(Struct):
    batch: BatchRecord


class RawKeeperBody(Struct):
    """The same, with every field of the batch as it was written."""

    batch: dict[str, Raw]


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


SORTS: Mapping[str, Callable[[BatchRow], Any]] = {
    "opened": lambda row: -row.record.opened_at,
    "name": lambda row: (row.record.name or row.queue.name).casefold(),
    "done": lambda row: -row.ended,
    "leased": lambda row: -row.counts.leased,
    "dead": lambda row: -row.counts.dead,
    "state": lambda row: row.state,
}


async def show_batches(visit: Visit) -> Response:
    snapshot = await visit.parts.live.snapshots.for_page(is_partial=visit.is_partial)
    places = [
        (line.pool, line.queue)
        for line in snapshot.lines
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
    return await visit.page("batches.html", rows=visit.sort(rows, SORTS))


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
    return BatchRow(pool, queue, record, counts, totals.running, (await engine.store.configure(queue)).paused)


async def cancel_batch(visit: Visit) -> Response:
    """Remove the waiting jobs and accept no more. Running jobs end, and are not tried again."""
    queue, engine = visit.queue(), visit.engine()
    await _set_cancelled(engine, queue)
    removed = 0
    for state in WAITING:
        while removed < MOST_REMOVED and (jobs := (await engine.store.list_jobs(queue, state, limit=PAGE)).jobs):
            removed += sum(moved is not None for moved in await engine.cancel(queue, [job.id for job in jobs]))
    await visit.log("cancel-batch", str(queue), f"{removed} jobs")
    return visit.go(text=visit.say("batch.cancelled", count=removed))


async def _set_cancelled(engine: Engine, queue: Queue) -> None:
    keepers = check_queue(queue.namespace, KEEPERS)
    for _ in range(MAX_CHANGES):
        [keeper] = await engine.store.get(keepers, [queue.name])
        if keeper is None:
            raise NotFound(f"batch {queue} cannot be cancelled: it is over or does not exist")
        try:
            known = msgspec.json.decode(keeper.body, type=RawKeeperBody)
        except NOT_JSON:
            raise InvalidRequest(f"{queue} cannot be cancelled: it is not a batch") from None
        known.batch["cancelled"] = Raw(b"true")
        body = msgspec.json.encode(known)
        mark = Mark(f"/batch/{queue.name}~{keeper.born}", hashlib.blake2b(body, digest_size=16).digest(), MARK_LIFE_MS)
        try:
            await engine.push(keepers, [NewJob(queue.name, body, tries=0)], if_exists=IfExists.REPLACE, mark=mark)
        except MarkMismatch:
            continue  # a worker or somebody else has changed what was read
        return
    raise Conflict(f"batch {queue} cannot be changed, because others keep changing it; try again")


async def shift_batch(visit: Visit) -> Response:
    """Move every waiting job later, or earlier if the time begins with a minus. Jobs that begin meanwhile stay."""
    queue, engine = visit.queue(), visit.engine()
    form = FormReader(visit)
    by_ms = form.read("by", signed_ms, 0)
    form.check()
    by_due: dict[int, dict[str, None]] = {}
    found = 0
    for state in WAITING:
        cursor = None
        while True:
            page = await engine.store.list_jobs(queue, state, cursor=cursor, limit=PAGE)
            for job in page.jobs:
                by_due.setdefault(job.due_at, {})[job.id] = None
            found += len(page.jobs)
            cursor = page.cursor
            if cursor is None:
                break
            if found > MOST_SHIFTED:
                raise InvalidRequest(visit.say("batch.too_many", count=MOST_SHIFTED, queue=queue.name))
    moved = 0
    for due_at, ids in by_due.items():
        answers = await engine.reschedule(queue, list(ids), due_at=min(max(0, due_at + by_ms), MAX_INSTANT))
        moved += sum(isinstance(one, Moved) for one in answers)
    await visit.log("shift-batch", str(queue), visit.field("by"))
    return visit.go(text=visit.say("batch.shifted", count=moved, by=visit.field("by").strip()))


def signed_ms(text: str) -> int:
    """`10m` or `-1h`, in milliseconds. Raises InvalidTime."""
    stripped = text.strip()
    return -duration_ms(stripped[1:].strip()) if stripped.startswith("-") else duration_ms(stripped)

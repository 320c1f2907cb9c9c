"""The task that carries out a reconcile's plan: ask the store, push what is still missing, draft the entries.

Runs on executors, 500 jobs of a queue at a time. Each push carries a mark for its job's born and attempt, so that a job
is put back once, also if a task runs again or several reconciles run at a time, and also after it was delivered and
acked. A row of RESULTS per job has the entry that the journal needs.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
from msgspec import UNSET

from duetime.errors import Conflict
from duetime.job import STEP_BYTES, STEP_JOBS, Event, Job, Moved, NewJob, Priority
from duetime.journal.events import REPEATED, Draft, body_fields
from duetime.names import Queue
from duetime.spark.audit.store import StoreView, open_view
from duetime.spark.reconcile import transform as reconcile
from duetime.spark.schemas import KEY
from duetime.stores.base import Push, Pushed
from duetime.stores.repair_mark import REPAIR_LIFE_MS, repair_mark

SUPERSEDED = "superseded"
RESULTS = (
    "pool string, namespace string, queue string, id string, born long, result string, problem string, entry string"
)
MARGIN_MS = REPAIR_LIFE_MS // 24

Row = dict[str, Any]
Result = tuple[Row, str, str, Draft | None]
"""The plan's row, what became of it, why it was refused, and the entry."""


class StoreChanged(Conflict):
    """The store is not the one that was scanned, or the scan is too old."""

    code = "store_changed"


class RepairTask:
    """Pickled to executors. `epoch` and `scanned_at` are those of the scan that the plan rests on."""

    def __init__(self, address: tuple[str, str | None], pool: str, epoch: str, scanned_at: int) -> None:
        self._address, self._pool = address, pool
        self._epoch, self._scanned_at = epoch, scanned_at

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Rows of PLAN, sorted by queue -> RESULTS."""
        view = open_view(*self._address)
        try:
            rows = (row for batch in batches for row in batch.to_pylist())
            for chunk in _chunks(rows):
                yield _batch(self._carry_out(view, _queue(chunk[0]), chunk))
        finally:
            view.close()

    def _now(self, view: StoreView) -> int:
        """The store's time. Raises StoreChanged if marks that another run may have set cannot be relied on."""
        info = view.info()
        if info.epoch != self._epoch:
            raise StoreChanged("the store was wiped since it was scanned: run reconcile again")
        if info.now - self._scanned_at > REPAIR_LIFE_MS - MARGIN_MS:
            raise StoreChanged("the scan of the store is nearly a day old: run reconcile again")
        return info.now

    def _carry_out(self, view: StoreView, queue: Queue, rows: Sequence[Row]) -> Iterator[Result]:
        """Asks the store before pushing, because much may have changed since the scan."""
        now = self._now(view)
        push: list[Row] = []
        for row, held in zip(rows, view.get(queue, [row["id"] for row in rows]), strict=True):
            is_there = held is not None and held.born == row["born"]
            if row["action"] == reconcile.ADOPT:
                if held and is_there:
                    yield row, "adopted", "", _adopted(row["pool"] or self._pool, queue, held, now)
                else:
                    yield row, "gone", "", None
            elif is_there:
                yield row, "present", "", None
            elif held is not None or row["action"] == reconcile.SUPERSEDE:
                yield row, SUPERSEDED, "", _end(queue, row, Event.CANCELLED, now, SUPERSEDED)
            elif row["action"] == reconcile.EXPIRE or 0 < row["expires_at"] <= now:
                yield row, "expired", "", _end(queue, row, Event.EXPIRED, now)
            elif row["body"] is None:
                yield row, "no_body", "", None
            else:
                push.append(row)
        if push:
            yield from _push(view, queue, push, now)


def _push(view: StoreView, queue: Queue, rows: Sequence[Row], now: int) -> Iterator[Result]:
    jobs = [_new_job(row, now) for row in rows]
    answers = view.push(queue, [Push([job], mark=repair_mark(job)) for job in jobs])
    for row, job, answer in zip(rows, jobs, answers, strict=True):
        if not isinstance(answer, Pushed):
            yield row, "refused", f"{queue} {row['id']}: {answer.message}", None
        elif answer.jobs[0].event is Event.KEPT:
            # Somebody else has pushed a job with this id since we asked; the next run sees which one it is.
            yield row, "present", "", None
        else:
            entry = None if view.journals else _begun(row["pool"], queue, job, answer)
            yield row, "repeated" if answer.repeated else "pushed", "", entry


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Cuts the rows into lists of one queue each, within the bounds of a call."""
    chunk: list[Row] = []
    size = 0
    for row in rows:
        bytes_more = len(row["body"] or b"")
        if chunk and (_queue(chunk[0]) != _queue(row) or len(chunk) == STEP_JOBS or size + bytes_more > STEP_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += bytes_more
    if chunk:
        yield chunk


def _batch(results: Iterable[Result]) -> Any:
    arrow: Any = pa  # its annotations are incomplete
    found = list(results)
    columns: dict[str, Any] = {name: [row[name] for row, _, _, _ in found] for name in KEY}
    columns["born"] = arrow.array(columns["born"], arrow.int64())
    columns["result"] = [result for _, result, _, _ in found]
    columns["problem"] = arrow.array([problem or None for _, _, problem, _ in found], arrow.string())
    entries = [msgspec.json.encode(draft).decode() if draft else None for _, _, _, draft in found]
    columns["entry"] = arrow.array(entries, arrow.string())
    return arrow.RecordBatch.from_pydict(columns)


def _queue(row: Row) -> Queue:
    return Queue(row["namespace"], row["queue"])


def _new_job(row: Row, now: int) -> NewJob:
    expires_at = row["expires_at"]
    return NewJob(
        row["id"],
        bytes(row["body"]),
        due_at=min(row["due_at"], expires_at) if expires_at else row["due_at"],
        ttl_ms=expires_at - now if expires_at else 0,
        tries=row["tries"],
        priority=Priority(row["priority"]),
        attributes=dict(row["attributes"] or {}),
        born=row["born"],
        attempt=row["attempt"],
    )


def _end(queue: Queue, row: Row, event: Event, ts: int, reason: str = "") -> Draft:
    return Draft(
        ts=ts,
        event=event,
        pool=row["pool"],
        namespace=queue.namespace,
        queue=queue.name,
        id=row["id"],
        born=row["born"],
        attempt=row["attempt"],
        reason=reason,
    )


def _adopted(pool: str, queue: Queue, job: Job, now: int) -> Draft:
    ttl_ms = max(job.expires_at - now, 0) if job.expires_at else 0
    again = NewJob(job.id, job.body, ttl_ms=ttl_ms, tries=job.tries, priority=job.priority, attributes=job.attributes)
    moved = Moved(Event.ADOPTED, job.id, job.born, job.attempt, job.due_at)
    return _begun(pool, queue, again, Pushed([moved], now))


def _begun(pool: str, queue: Queue, job: NewJob, answer: Pushed) -> Draft:
    """The entry of a push: enough to push the job again."""
    [moved] = answer.jobs
    body = body_fields(job.body)
    return Draft(
        ts=answer.now,
        event=moved.event,
        pool=pool,
        namespace=queue.namespace,
        queue=queue.name,
        id=job.id,
        born=moved.born,
        attempt=moved.attempt,
        due_at=moved.due_at,
        priority=job.priority,
        ttl=job.ttl_ms,
        tries=job.tries,
        reason=REPEATED if answer.repeated else moved.reason,
        body=body.get("body", UNSET),
        body_b64=body.get("body_b64", UNSET),
        attributes=job.attributes,
    )

"""The task that carries out a reconcile's plan: push what is still missing, draft the entries.

Runs on executors, 500 jobs of a queue at a time. Each push carries a mark for its job's born and attempt, so that a job
is put back once, also if a task runs again or several reconciles run at a time, and also after it was delivered and
acked. Jobs that are simply gone, which are nearly all after a store was wiped, go by columns. If the store knows any of
500 already, each of them is asked for and pushed by itself. While the store works on the next requests, the task writes
the entries of an answered one into the journal, as a node of its own, and has one row of RESULTS for all jobs of a
request that were put back; where it cannot reach the journal, a row for each job brings the entry to the driver.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import count, islice, pairwise, repeat
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from duetime.client.event_loop import LoopThread
from duetime.journal.events import REPEATED, Draft, body_fields, write_text
from duetime.model.errors import Conflict, DuetimeError
from duetime.model.job import STEP_BYTES, STEP_JOBS, Event, Job, Moved, NewJob, Priority
from duetime.model.names import Queue
from duetime.spark.load.job_columns import arrow, kernels
from duetime.spark.load.options import LoadOptions
from duetime.spark.load.task_entries import TaskEntries
from duetime.spark.load.task_push import open_destination
from duetime.spark.reconcile import transform as reconcile
from duetime.spark.schemas import KEY
from duetime.spark.store_view import StoreView
from duetime.stores.base import REPAIR_LIFE_MS, Push, Pushed, repair_mark
from duetime.stores.bulk import Bulk, LostColumns

SUPERSEDED = "superseded"
RESULTS = (
    "pool string, namespace string, queue string, id string, born long, result string, problem string, jobs long, "
    "node string, entry binary"
)
RESULT_KINDS = {"long": arrow.int64(), "string": arrow.string(), "binary": arrow.binary()}
RESULT_SCHEMA = arrow.schema([(name, RESULT_KINDS[kind]) for name, kind in map(str.split, RESULTS.split(", "))])
NUMBERS = ("born", "due_at", "expires_at", "tries", "priority", "attempt")
MARGIN_MS = REPAIR_LIFE_MS // 24
PLAIN_MS = 60_000
"""A job that expires sooner than this is checked by itself."""
UNDER_WAY = 2
"""Requests that are sent and not answered, as in a load (see `stores.redis.bulk`)."""
CHECK_EVERY_S = 0.1
"""How long the answer to the question is believed whether the store is still the one that was scanned."""

Row = dict[str, Any]
Result = tuple[Row, str, str, Draft | None]
"""The plan's row, what became of it, why it was refused, and the entry."""


class StoreChanged(Conflict):
    """The store is not the one that was scanned, or the scan is too old."""

    code = "store_changed"


class UnderWay(NamedTuple):
    """Rows of the plan that are being put back."""

    queue: Queue
    rows: Any
    jobs: LostColumns
    answer: asyncio.Task[int | Sequence[Pushed | DuetimeError]]


class RepairTask:
    """Pickled to executors. `epoch` and `scanned_at` are those of the scan that the plan rests on.

    `journal` is the journal's folder, empty if executors cannot write there. The names of its nodes there begin with
    `instance`.
    """

    def __init__(
        self, address: tuple[str, str | None], epoch: str, scanned_at: int, *, instance: str, journal: str = ""
    ) -> None:
        self._address, self._instance, self._journal = address, instance, journal
        self._epoch, self._scanned_at = epoch, scanned_at
        self._checked_s, self._checked_at = 0.0, 0

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Rows of PLAN, sorted by queue -> RESULTS."""
        with ExitStack() as stack:
            view = stack.enter_context(closing(StoreView(*self._address)))
            entries = None
            if self._journal:
                entries = stack.enter_context(closing(TaskEntries(Path(self._journal), view, instance=self._instance)))
            url, token = self._address
            loop = stack.enter_context(LoopThread())
            bulk = loop.run(open_destination(LoadOptions(url, token=token)))
            stack.callback(lambda: loop.run(bulk.close()))
            for batch in batches:
                plain, others = _split(arrow.Table.from_batches([batch]), self._now(view))
                yield from loop.run(self._put_back(view, bulk, plain, entries))
                for rows in _chunks(others.to_pylist()):
                    yield _told(self._carry_out(view, _queue(rows[0]), rows), entries)

    def _now(self, view: StoreView) -> int:
        """The store's time. Raises StoreChanged if marks that another run may have set cannot be relied on."""
        clock = time.monotonic()
        if not self._checked_s or clock - self._checked_s >= CHECK_EVERY_S:
            info = view.info()
            if info.epoch != self._epoch:
                raise StoreChanged("the store was wiped since it was scanned: run reconcile again")
            if info.now - self._scanned_at > REPAIR_LIFE_MS - MARGIN_MS:
                raise StoreChanged("the scan of the store is nearly a day old: run reconcile again")
            self._checked_s, self._checked_at = clock, info.now
        return self._checked_at

    async def _put_back(self, view: StoreView, bulk: Bulk, plain: Any, entries: TaskEntries | None) -> Sequence[Any]:
        """Push lost jobs by columns. Returns RESULTS, in one batch: Spark takes long for many small ones."""
        results: list[Any] = []
        waiting: deque[UnderWay] = deque()
        try:
            for rows in _plain_chunks(plain):
                queue = Queue(rows.column("namespace")[0].as_py(), rows.column("queue")[0].as_py())
                jobs = _lost_columns(rows, self._now(view))
                waiting.append(UnderWay(queue, rows, jobs, asyncio.create_task(bulk.put_back(queue, jobs))))
                await asyncio.sleep(0)  # the request is on its way before an answer is worked on
                if len(waiting) > UNDER_WAY:
                    results.append(await _answered(view, waiting.popleft(), entries))
            while waiting:
                results.append(await _answered(view, waiting.popleft(), entries))
        finally:
            for request in waiting:
                request.answer.cancel()
        return arrow.Table.from_batches(results, RESULT_SCHEMA).combine_chunks().to_batches()

    def _carry_out(self, view: StoreView, queue: Queue, rows: Sequence[Row]) -> Iterator[Result]:
        """Asks the store before pushing, because much may have changed since the scan."""
        now = self._now(view)
        push: list[Row] = []
        for row, held in zip(rows, view.get(queue, [row["id"] for row in rows]), strict=True):
            is_there = held is not None and held.born == row["born"]
            if row["action"] == reconcile.ADOPT:
                if held and is_there:
                    yield row, "adopted", "", _adopted(row["pool"], queue, held, now)
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


async def _answered(view: StoreView, done: UnderWay, entries: TaskEntries | None) -> Any:
    """RESULTS, one row for all if they were put back and this task writes the journal: which jobs they are is in the
    plan, and in the journal.
    """
    queue, rows, jobs, under_way = done
    now, size = await under_way, rows.num_rows
    if not isinstance(now, int):
        return _told(_settled(view, queue, rows.to_pylist(), jobs.jobs(), now), entries)
    pool = rows.column("pool")[0].as_py()
    if entries is None:
        drafts = arrow.array(_drafts(pool, queue, jobs, now), arrow.binary())
        common = (arrow.scalar("pushed"), arrow.scalar(None, arrow.string()), arrow.scalar(1, arrow.int64()))
        constants = [arrow.repeat(value, size) for value in (*common, arrow.scalar(None, arrow.string()))]
        return arrow.RecordBatch.from_arrays([*map(rows.column, KEY), *constants, drafts], schema=RESULT_SCHEMA)
    try:
        entries.append(lambda place, seq: _lines(pool, queue, jobs, now, place, seq))
    except arrow.ArrowInvalid:  # not all of the bodies are text
        entries.write(_drafts(pool, queue, jobs, now))
    summed = {"pool": pool, "namespace": queue.namespace, "queue": queue.name, "result": "pushed", "jobs": size}
    return arrow.RecordBatch.from_pylist([{**summed, "node": entries.node}], schema=RESULT_SCHEMA)


def _told(results: Iterable[Result], entries: TaskEntries | None) -> Any:
    """RESULTS. If this task writes the journal, the entries go there, and the rows name the node."""
    found = [(row, result, problem, draft and msgspec.json.encode(draft)) for row, result, problem, draft in results]
    if entries and (drafts := [draft for _, _, _, draft in found if draft]):
        entries.write(drafts)
    rows_out = [
        {
            **{name: row[name] for name in KEY},
            "result": result,
            "problem": problem or None,
            "jobs": 1,
            "node": entries.node if entries else None,
            "entry": None if entries else draft,
        }
        for row, result, problem, draft in found
    ]
    return arrow.RecordBatch.from_pylist(rows_out, schema=RESULT_SCHEMA)


def _push(view: StoreView, queue: Queue, rows: Sequence[Row], now: int) -> Iterator[Result]:
    jobs = [_new_job(row, now) for row in rows]
    return _settled(view, queue, rows, jobs, view.push(queue, [Push([job], mark=repair_mark(job)) for job in jobs]))


def _settled(
    view: StoreView,
    queue: Queue,
    rows: Sequence[Row],
    jobs: Sequence[NewJob],
    answers: Sequence[Pushed | DuetimeError],
) -> Iterator[Result]:
    for row, job, answer in zip(rows, jobs, answers, strict=True):
        if not isinstance(answer, Pushed):
            yield row, "refused", f"{queue} {row['id']}: {answer.message}", None
        elif answer.jobs[0].event is Event.KEPT and answer.jobs[0].born == row["born"]:
            yield row, "present", "", None
        elif answer.jobs[0].event is Event.KEPT:
            yield row, SUPERSEDED, "", _end(queue, row, Event.CANCELLED, answer.now or job.born, SUPERSEDED)
        else:
            entry = None if view.journals else _begun(row["pool"], queue, job, answer)
            yield row, "repeated" if answer.repeated else "pushed", "", entry


def _split(plan: Any, now: int) -> tuple[Any, Any]:
    """The rows that are to be pushed and have nothing unusual about them, and the others."""
    expires_at = plan.column("expires_at")
    lives = kernels.or_(kernels.equal(expires_at, 0), kernels.greater(expires_at, now + PLAIN_MS))
    is_plain = kernels.and_(kernels.equal(plan.column("action"), reconcile.PUSH), kernels.is_valid(plan.column("body")))
    is_plain = kernels.and_(is_plain, kernels.is_null(plan.column("attributes")))
    is_plain = kernels.fill_null(kernels.and_(is_plain, lives), fill_value=False)
    return plan.filter(is_plain), plan.filter(kernels.invert(is_plain))


def _plain_chunks(plain: Any) -> Iterator[Any]:
    """Runs of rows of one pool and queue, within the bounds of a call."""
    if not plain.num_rows:
        return
    [rows] = plain.combine_chunks().to_batches()
    differs = None
    for name in ("pool", "namespace", "queue"):
        column = rows.column(name)
        changed = kernels.not_equal(column.slice(1), column.slice(0, len(column) - 1))
        differs = changed if differs is None else kernels.or_(differs, changed)
    starts = [0, *(at + 1 for at in kernels.indices_nonzero(differs).to_pylist()), rows.num_rows]
    sizes: list[int] = kernels.binary_length(rows.column("body")).to_pylist()
    for first, last in pairwise(starts):
        at, size = first, 0
        for row in range(first, last):
            if row > at and (row - at == STEP_JOBS or size + sizes[row] > STEP_BYTES):
                yield rows.slice(at, row - at)
                at, size = row, 0
            size += sizes[row]
        yield rows.slice(at, last - at)


def _lost_columns(rows: Any, now: int) -> LostColumns:
    numbers = {name: rows.column(name).cast(arrow.int64()) for name in NUMBERS}
    due_at, expires_at = numbers.pop("due_at"), numbers.pop("expires_at")
    ends = kernels.greater(expires_at, 0)
    return LostColumns(
        ids=rows.column("id"),
        bodies=rows.column("body"),
        due_at=kernels.if_else(ends, kernels.min_element_wise(due_at, expires_at), due_at),
        ttl_ms=kernels.if_else(ends, kernels.subtract(expires_at, now), 0),
        **numbers,
    )


def _lines(pool: str, queue: Queue, jobs: LostColumns, now: int, place: bytes, seq: int) -> list[bytes]:
    """The journal's lines for jobs that were all put back at this time. Raises ArrowInvalid if a body is not text."""
    heads = (b"%b%d," % (place, at) for at in count(seq))
    return [write_text(text) for text in _texts(pool, queue, jobs, now, heads)]


def _drafts(pool: str, queue: Queue, jobs: LostColumns, now: int) -> list[bytes]:
    """Such entries as JSON, before they get their place."""
    try:
        return list(_texts(pool, queue, jobs, now, repeat(b"{")))
    except arrow.ArrowInvalid:  # not all of the bodies are text
        moved = ((job, Moved(Event.ACCEPTED, job.id, job.born, job.attempt, job.due_at or 0)) for job in jobs.jobs())
        return [msgspec.json.encode(_begun(pool, queue, job, Pushed([one], now))) for job, one in moved]


def _texts(pool: str, queue: Queue, jobs: LostColumns, now: int, heads: Iterable[bytes]) -> Iterator[bytes]:
    """What `_begun` drafts, put together from bytes: encoding a million drafts would take as long as the pushes."""
    encode = msgspec.json.Encoder().encode
    own = (jobs.born, jobs.due_at, jobs.ids, jobs.bodies.cast(arrow.string()))
    rows = zip(heads, *(column.to_pylist() for column in own), strict=False)
    for first, last, (ttl, tries, priority, attempt) in jobs.runs():
        common = Draft(
            ts=now,
            event=Event.ACCEPTED,
            pool=pool,
            namespace=queue.namespace,
            queue=queue.name,
            attempt=attempt,
            priority=priority,
            ttl=ttl,
            tries=tries,
        )
        middle = encode(common)[1:-1]
        for head, born, due_at, name, body in islice(rows, last - first):
            yield b'%b%b,"born":%d,"due_at":%d,"id":%b,"body":%b}' % (
                *(head, middle, born, due_at),
                *(encode(name), encode(body)),
            )


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
        attributes=msgspec.json.decode(row["attributes"] or "{}", type=dict[str, str]),
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

"""The task that carries out a reconcile's plan: push what is still missing, draft the entries.

Runs on executors, 500 jobs of a queue at a time. Each push carries a mark for its job's born and attempt, so that a job
is put back once, also if a task runs again or several reconciles run at a time, and also after it was delivered and
acked. Jobs that are simply gone, which are nearly all after a store was wiped, go by columns. If the store knows any of
500 already, each of them is asked for and pushed by itself. While the store works on one request, the task writes the
entries of the one before into the journal, as a node of its own, and has one row of RESULTS for all jobs of a request
that were put back; where it cannot reach the journal, a row for each job brings the entry to the driver.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from duetime.errors import Conflict, DuetimeError
from duetime.job import STEP_BYTES, STEP_JOBS, Event, Job, Moved, NewJob, Priority
from duetime.journal.events import REPEATED, Draft, body_fields
from duetime.names import Queue
from duetime.spark.audit.store import StoreView, open_view
from duetime.spark.load.job_columns import arrow, kernels
from duetime.spark.reconcile import transform as reconcile
from duetime.spark.reconcile.entries import RepairEntries
from duetime.spark.schemas import KEY
from duetime.stores.base import Push, Pushed
from duetime.stores.bulk import LostColumns
from duetime.stores.repair_mark import REPAIR_LIFE_MS, repair_mark

SUPERSEDED = "superseded"
RESULTS = (
    "pool string, namespace string, queue string, id string, born long, result string, problem string, jobs long, "
    "node string, entry binary"
)
RESULT_NAMES = [*KEY, "result", "problem", "jobs", "node", "entry"]
NUMBERS = ("born", "due_at", "expires_at", "tries", "priority", "attempt")
MARGIN_MS = REPAIR_LIFE_MS // 24
PLAIN_MS = 60_000
"""A job that expires sooner than this is looked at by itself."""
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
    answer: Future[int | Sequence[Pushed | DuetimeError]]


class RepairAnswer(NamedTuple):
    """The columns of RESULTS up to `problem`, the entries as JSON, and whether all jobs were put back."""

    columns: Sequence[Any]
    drafts: Sequence[bytes | None]
    is_whole: bool = False


class RepairTask:
    """Pickled to executors. `epoch` and `scanned_at` are those of the scan that the plan rests on.

    `journal` is the journal's folder, empty if executors cannot write there.
    """

    def __init__(
        self, address: tuple[str, str | None], pool: str, epoch: str, scanned_at: int, *, journal: str = ""
    ) -> None:
        self._address, self._pool, self._journal = address, pool, journal
        self._epoch, self._scanned_at = epoch, scanned_at
        self._checked_s, self._checked_at = 0.0, 0

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Rows of PLAN, sorted by queue -> RESULTS."""
        with ExitStack() as stack:
            view = stack.enter_context(closing(open_view(*self._address)))
            entries = None
            if self._journal:
                entries = stack.enter_context(closing(RepairEntries(Path(self._journal), view)))
            for batch in batches:
                plain, others = _split(arrow.Table.from_batches([batch]), self._now(view))
                for done in self._put_back(view, plain):
                    yield _told(done, entries)
                for rows in _chunks(others.to_pylist()):
                    yield _told(_batch(self._carry_out(view, _queue(rows[0]), rows)), entries)

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

    def _put_back(self, view: StoreView, plain: Any) -> Iterator[RepairAnswer]:
        """Push lost jobs by columns, one request under way while the answer to the one before is worked on."""
        before: UnderWay | None = None
        for rows in _plain_chunks(plain):
            queue = Queue(rows.column("namespace")[0].as_py(), rows.column("queue")[0].as_py())
            jobs = _lost_columns(rows, self._now(view))
            begun = UnderWay(queue, rows, jobs, view.put_back(queue, jobs))
            if before:
                yield _answered(view, before)
            before = begun
        if before:
            yield _answered(view, before)

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


def _answered(view: StoreView, done: UnderWay) -> RepairAnswer:
    answer = done.answer.result()
    if isinstance(answer, int):
        return _pushed_batch(done.rows, done.jobs, answer)
    return _batch(_settled(view, done.queue, done.rows.to_pylist(), done.jobs.jobs(), answer))


def _told(done: RepairAnswer, entries: RepairEntries | None) -> Any:
    """RESULTS. If this task writes the journal, the entries go there, and the rows name the node."""
    columns, size = [*done.columns], len(done.drafts)
    jobs, node = arrow.repeat(arrow.scalar(1, arrow.int64()), size), arrow.nulls(size, arrow.string())
    entry = arrow.array([None] * size if entries else done.drafts, arrow.binary())
    if entries:
        if found := [draft for draft in done.drafts if draft]:
            entries.write(found)
        node = arrow.repeat(arrow.scalar(entries.node), size)
    batch = arrow.RecordBatch.from_arrays([*columns, jobs, node, entry], RESULT_NAMES)
    return _sum_of(batch) if entries and done.is_whole else batch


def _sum_of(batch: Any) -> Any:
    """One row for all: which jobs they are is in the plan, and in the journal."""
    told = {**batch.slice(0, 1).to_pydict(), "id": [None], "born": [None], "jobs": [batch.num_rows]}
    return arrow.RecordBatch.from_pydict(told, schema=batch.schema)


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


def _pushed_batch(rows: Any, jobs: LostColumns, now: int) -> RepairAnswer:
    """Jobs that were all put back at this time."""
    size = rows.num_rows
    columns = [rows.column(name) for name in KEY]
    constants = [arrow.repeat(arrow.scalar("pushed"), size), arrow.nulls(size, arrow.string())]
    try:
        entries = _entries(rows, jobs, now)
    except arrow.ArrowInvalid:  # not all of the bodies are text
        entries = [msgspec.json.encode(draft) for draft in _drafts(rows, jobs, now)]
    return RepairAnswer([*columns, *constants], entries, is_whole=True)


def _entries(rows: Any, jobs: LostColumns, now: int) -> list[bytes]:
    """What `_begun` drafts, put together from bytes: encoding a million drafts would take as long as the pushes.

    Raises ArrowInvalid if a body is not text.
    """
    first = rows.slice(0, 1).select(["pool", "namespace", "queue"]).to_pylist()[0]
    heads: dict[tuple[int, ...], bytes] = {}

    def head(options: tuple[int, ...]) -> bytes:
        attempt, priority, ttl, tries = options
        numbers: dict[str, Any] = {"attempt": attempt, "priority": priority, "ttl": ttl, "tries": tries}
        heads[options] = encode(Draft(ts=now, event=Event.ACCEPTED, **first, **numbers))[:-1]
        return heads[options]

    encode = msgspec.json.Encoder().encode
    options = zip(
        *(column.to_pylist() for column in (jobs.attempt, jobs.priority, jobs.ttl_ms, jobs.tries)), strict=True
    )
    texts: list[str] = jobs.bodies.cast(arrow.string()).to_pylist()
    columns = (column.to_pylist() for column in (jobs.born, jobs.due_at, jobs.ids))
    return [
        b'%b,"born":%d,"due_at":%d,"id":%b,"body":%b}'
        % (heads.get(option) or head(option), born, due, encode(name), encode(text))
        for option, born, due, name, text in zip(options, *columns, texts, strict=True)
    ]


def _drafts(rows: Any, jobs: LostColumns, now: int) -> Iterator[Draft]:
    queue = Queue(rows.column("namespace")[0].as_py(), rows.column("queue")[0].as_py())
    pool = rows.column("pool")[0].as_py()
    for job in jobs.jobs():
        moved = Moved(Event.ACCEPTED, job.id, job.born, job.attempt, job.due_at or 0)
        yield _begun(pool, queue, job, Pushed([moved], now))


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


def _batch(results: Iterable[Result]) -> RepairAnswer:
    found = list(results)
    kinds = {"born": arrow.int64()}
    columns = [arrow.array([row[name] for row, _, _, _ in found], kinds.get(name, arrow.string())) for name in KEY]
    columns.append(arrow.array([result for _, result, _, _ in found], arrow.string()))
    columns.append(arrow.array([problem or None for _, _, problem, _ in found], arrow.string()))
    return RepairAnswer(columns, [msgspec.json.encode(draft) if draft else None for _, _, _, draft in found])


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

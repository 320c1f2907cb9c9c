"""Batches: many jobs that are watched, paused, moved in time and cancelled as one.

    with app.batch("newsletter", queue="mail", then=report.step(PREVIOUS)).open() as batch:
        send.options(queue=batch.queue).bulk([("ann",), ("bob",)], delay="1h")

A batch is a queue of its own, so its progress is that queue's exact counts and totals, however jobs were pushed: tasks,
`bulk`, a load by Spark. Workers of the queue that it was opened for run its jobs, too. What else there is to know about
a batch (closed, cancelled, what to run at its end) is the body of one job, its keeper, which `batch_keeper.py`
checks. A change of the body replaces the job, with a mark made of the `born` of the one that was read.
"""

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from duetime.client.calls import cancel, configure, get, list_jobs, push, reschedule, results, status, totals
from duetime.model.clock import MAX_INSTANT, Duration, duration_ms
from duetime.model.errors import NOT_JSON, Conflict, InvalidRequest, MarkMismatch, NotFound
from duetime.model.ids import LENGTH
from duetime.model.job import Counts, IfExists, Job, Moved, NewJob, State, Totals, chunks
from duetime.model.names import FOLLOWS, MAX_ID, Queue, check_id, check_queue
from duetime.stores.base import Mark, RulesChange
from duetime.worker.chains import ChainedStep, TaskStep, chained
from duetime.worker.current_job import INFIX, running_queue
from duetime.worker.handle import TaskHandle
from duetime.worker.pusher import Work, both, renamed

if TYPE_CHECKING:
    from duetime.worker.app import App

KEEPERS = "duetime.batches"
"""The queue of the keepers of a namespace: one job per batch that has not ended."""
MARK_LIFE_MS = 600_000
MAX_QUEUE_NAME = MAX_ID - len(INFIX) - LENGTH - len(FOLLOWS) - LENGTH
"""The id of a callback's carrier begins with the name of its batch, and that with the name of the queue."""
MAX_CHANGES = 20
"""How often a change of a batch is tried against changes by others."""
PAGE = 500
WAITING = (State.READY, State.DELAYED)


class BatchRecord(Struct, frozen=True, omit_defaults=True):
    """What a keeper says. `queue` is the one whose workers run the jobs. Of the callbacks, `then` runs when all of them
    are done, `catch` when the first one fails, `finally` when there is nothing left to run.
    """

    queue: str
    name: str = ""
    opened_at: int = 0
    ended_at: int = 0
    allow_failures: bool = False
    closed: bool = False
    cancelled: bool = False
    caught: bool = False
    callbacks: dict[str, ChainedStep] = {}


class KeeperBody(Struct, frozen=True):
    batch: BatchRecord


class BatchStatus(Struct, frozen=True):
    """How far a batch is. `total` are all jobs that were ever in it; `done`, `cancelled` and `expired` those that are
    gone; `failed` its dead letters. While jobs move, one may be seen in two of these, or in none.
    """

    id: str
    name: str
    state: str
    paused: bool
    total: int
    waiting: int
    running: int
    done: int
    failed: int
    cancelled: int
    expired: int
    opened_at: int
    ended_at: int

    @property
    def percent(self) -> int:
        """Of the jobs, how many are not to be run any more."""
        return 100 * (self.total - self.waiting - self.running) // self.total if self.total else 0


def describe_batch(batch_id: str, record: BatchRecord, counts: Counts, totals: Totals, *, paused: bool) -> BatchStatus:
    words = {"ended": record.ended_at, "cancelled": record.cancelled, "closed": record.closed, "open": True}
    return BatchStatus(
        id=batch_id,
        name=record.name,
        state=next(word for word, holds in words.items() if holds),
        paused=paused,
        total=totals.accepted,
        waiting=counts.ready + counts.delayed,
        running=counts.leased,
        done=totals.acked,
        failed=counts.dead,
        cancelled=totals.cancelled,
        expired=totals.expired,
        opened_at=record.opened_at,
        ended_at=record.ended_at,
    )


def keeper_job(batch_id: str, record: BatchRecord, delay_ms: int = 0) -> NewJob:
    return NewJob(batch_id, msgspec.json.encode(KeeperBody(record)), delay_ms=delay_ms, tries=0)


def read_keeper(body: bytes) -> BatchRecord | None:
    """None if this is no keeper: anybody may push to its queue."""
    try:
        return msgspec.json.decode(body, type=KeeperBody).batch
    except NOT_JSON:
        return None


class BatchPlan:
    """A batch that is not open yet."""

    def __init__(self, app: "App", queue: str, record: BatchRecord) -> None:
        self.app = app
        self._id = f"{queue}{INFIX}{app.make_id().lower()}"
        if len(queue) > MAX_QUEUE_NAME:
            raise InvalidRequest(f"queue name of a batch must have at most {MAX_QUEUE_NAME} characters: {queue!r}")
        self._record = record

    def _open(self) -> Work["TaskBatch"]:
        """Open it; as a context manager it is closed at the end of the block, and cancelled if the block raises."""
        batch = TaskBatch(self.app, self._id)
        record = msgspec.structs.replace(self._record, opened_at=self.app.clock.now_ms())
        yield push(batch.keepers, [keeper_job(self._id, record)], IfExists.KEEP)
        return batch

    open, open_async = both(_open)


def plan_batch(
    app: "App",
    queue: str,
    name: str,
    callbacks: dict[str, TaskStep[Any] | None],
    *,
    allow_failures: bool,
) -> BatchPlan:
    steps = {
        word: chained(step.previous, renamed(step.outgoing, app.make_id()))
        for word, step in callbacks.items()
        if step is not None
    }
    queue = check_queue(app.namespace, queue).name
    return BatchPlan(app, queue, BatchRecord(queue, name, allow_failures=allow_failures, callbacks=steps))


class TaskBatch:
    """`id` names the batch, and the queue that its jobs are in. The methods block; each has a twin with `_async`."""

    def __init__(self, app: "App", batch_id: str) -> None:
        self.id = check_id(batch_id)
        self.keepers = check_queue(app.namespace, KEEPERS)
        self._queue = check_queue(app.namespace, batch_id)
        self.app = app

    def __repr__(self) -> str:
        return f"<batch {self.id}>"

    def __enter__(self) -> "TaskBatch":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close() if kind is None else self.cancel()

    async def __aenter__(self) -> "TaskBatch":
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await (self.close_async() if kind is None else self.cancel_async())

    @property
    def queue(self) -> str:
        """Where its jobs are: `task.options(queue=batch.queue)`, `client.queue(batch.queue)`, the target of a load."""
        return self._queue.name

    def _add(self, *steps: TaskStep[Any]) -> Work[list[TaskHandle[Any]]]:
        """Push tasks into the batch; a handle each. Also from a task of the batch while that runs. Raises Conflict if
        the batch is closed, cancelled or over.
        """
        if found := next((step for step in steps if step.previous), None):
            raise InvalidRequest(f"task of a batch cannot use PREVIOUS: {found.task.name}")
        jobs = [renamed(step.outgoing, self.app.make_id(), self._queue) for step in steps]
        yield from self._check_open()
        moved = yield from self.app.pusher.push(jobs)
        yield from self._check_still(moved)
        return [TaskHandle(step.task, self._queue, one) for step, one in zip(steps, moved, strict=True)]

    def _close(self) -> Work[None]:
        """Say that nobody but its own tasks adds jobs any more: it ends when none is left to run."""
        yield from self.change(closed=True)

    def _pause(self) -> Work[None]:
        """Begin no job of it until it is resumed."""
        yield from self._set_paused(paused=True)

    def _resume(self) -> Work[None]:
        """Begin jobs again."""
        yield from self._set_paused(paused=False)

    def _cancel(self) -> Work[BatchStatus]:
        """Remove its waiting jobs, and accept no more. Running jobs end, and are not tried again."""
        yield from self.change(cancelled=True)
        while (yield from cancel_waiting(self._queue)):
            pass
        return (yield from self._status())

    def _status(self) -> Work[BatchStatus]:
        """How far it is; for seven days after its end, how it ended. Raises NotFound."""
        found = yield from self._find()
        if found is None:
            [kept] = yield results(self.keepers, [self.id], 0)
            if kept is None:
                raise self._no_batch()
            return msgspec.json.decode(kept.result, type=BatchStatus)
        _, record = found
        seen = yield status(self._queue)
        counted = yield totals(self._queue)
        return describe_batch(self.id, record, seen.counts, counted.running, paused=seen.rules.paused)

    def change(self, **fields: bool) -> Work[None]:
        """Change the record. Raises NotFound when the batch is over."""
        for _ in range(MAX_CHANGES):
            found = yield from self._find()
            if found is None:
                raise self._no_batch()
            job, record = found
            changed = keeper_job(self.id, msgspec.structs.replace(record, **fields))
            if changed.body == job.body:
                return
            digest = hashlib.blake2b(changed.body, digest_size=16).digest()
            try:
                yield push(
                    self.keepers,
                    [changed],
                    IfExists.REPLACE,
                    Mark(f"/batch/{self.id}~{job.born}", digest, MARK_LIFE_MS),
                )
            except MarkMismatch:
                continue  # somebody else has changed what was seen
            return
        raise Conflict(f"{self.id} cannot be changed, because others change it all the time; try again")

    def _set_paused(self, *, paused: bool) -> Work[None]:
        if (yield from self._find()) is None:
            raise self._no_batch()
        yield configure(self._queue, RulesChange(paused=paused))

    def _shift(self, by: Duration) -> Work[int]:
        """Shift the due time of every waiting job by this much, earlier if negative; returns how many were moved. Jobs
        that begin meanwhile are left alone. If it is interrupted, some jobs are moved and others are not.
        """
        if (yield from self._find()) is None:
            raise self._no_batch()
        by_ms = _signed_ms(by)
        by_due: dict[int, list[str]] = {}
        seen: set[str] = set()
        for state in WAITING:
            cursor = None
            while True:
                page = yield list_jobs(self._queue, state, cursor, PAGE)
                for job in page.jobs:
                    if job.id not in seen:
                        seen.add(job.id)
                        by_due.setdefault(job.due_at, []).append(job.id)
                cursor = page.cursor
                if cursor is None:
                    break
        moved = 0
        for due_at, ids in by_due.items():
            for some in chunks(ids):
                to = min(max(0, due_at + by_ms), MAX_INSTANT)
                moved += sum(isinstance(one, Moved) for one in (yield reschedule(self._queue, some, None, to)))
        return moved

    add, add_async = both(_add)
    close, close_async = both(_close)
    pause, pause_async = both(_pause)
    resume, resume_async = both(_resume)
    cancel, cancel_async = both(_cancel)
    shift, shift_async = both(_shift)
    status, status_async = both(_status)

    def _find(self) -> Work[tuple[Job, BatchRecord] | None]:
        [job] = yield get(self.keepers, [self.id])
        record = None if job is None else read_keeper(job.body)
        return None if job is None or record is None else (job, record)

    def _check_open(self) -> Work[None]:
        found = yield from self._find()
        record = None if found is None else found[1]
        inside = running_queue() == self.queue
        if record is None or record.cancelled or (record.closed and not inside):
            raise Conflict(f"{self.id} cannot accept jobs: it is closed, cancelled or over")

    def _check_still(self, moved: Sequence[Moved]) -> Work[None]:
        """A batch that was cancelled during a push has none of its jobs."""
        found = yield from self._find()
        if found is None or found[1].cancelled:
            for some in chunks([one.id for one in moved]):
                yield cancel(self._queue, some)
            raise Conflict(f"{self.id} was cancelled during the push")

    def _no_batch(self) -> NotFound:
        return NotFound(f"there is no batch {self.id!r} in {self._queue.namespace}, or it is over")


def _signed_ms(by: Duration) -> int:
    if isinstance(by, str):
        text = by.strip()
        return -duration_ms(text[1:]) if text.startswith("-") else duration_ms(text)
    if isinstance(by, timedelta):
        return -duration_ms(-by) if by < timedelta(0) else duration_ms(by)
    return -duration_ms(-by) if by < 0 else duration_ms(by)


def cancel_waiting(queue: Queue) -> Work[int]:
    """Remove a page of the jobs that wait; answers how many were found."""
    found = 0
    for state in WAITING:
        page = yield list_jobs(queue, state, None, PAGE)
        if page.jobs:
            yield cancel(queue, [job.id for job in page.jobs])
            found += len(page.jobs)
    return found


def list_keepers(keepers: Queue) -> Work[dict[str, BatchRecord]]:
    """The batches of a namespace that are not over, the oldest first. One that moves between two states at this moment
    may be missing.
    """
    found: dict[str, BatchRecord] = {}
    for state in (State.LEASED, State.READY, State.DELAYED):
        cursor = None
        while True:
            page = yield list_jobs(keepers, state, cursor, PAGE)
            found.update((job.id, record) for job in page.jobs if (record := read_keeper(job.body)))
            cursor = page.cursor
            if cursor is None:
                break
    return dict(sorted(found.items(), key=lambda one: one[1].opened_at))

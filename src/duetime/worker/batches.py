"""Batches: many jobs that are watched, paused, moved in time and cancelled as one.

    with app.batch("newsletter", queue="mail", then=report.step(PREVIOUS)).open() as batch:
        send.options(queue=batch.queue).bulk([("ann",), ("bob",)], delay="1h")

A batch is a queue of its own, so its progress is that queue's exact counts and totals, however jobs were pushed: tasks,
`bulk`, a load by Spark. Workers of the queue that it was opened for run its jobs, too. Everything else about
a batch (closed, cancelled, what to run at its end) is the body of one job, its keeper, which `batch_keeper.py`
checks. A change of the body replaces the job, with a mark made of the `born` of the one that was read.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from duetime.client.calls import (
    ack,
    cancel,
    configure,
    finish,
    get,
    give_back,
    kill,
    list_jobs,
    push,
    release,
    reschedule,
    reserve,
    results,
    status,
    totals,
)
from duetime.model.clock import MAX_INSTANT, Duration, duration_ms
from duetime.model.errors import (
    NOT_JSON,
    Conflict,
    DuetimeError,
    Forbidden,
    InvalidRequest,
    LeaseLost,
    MarkMismatch,
    NotFound,
)
from duetime.model.ids import LENGTH
from duetime.model.job import DAY_MS, Counts, Delivery, IfExists, Job, Moved, NewJob, State, Totals, chunks
from duetime.model.names import FOLLOWS, MAX_ID, Queue, check_id, check_queue
from duetime.stores.base import Mark, RulesChange
from duetime.stores.finishes import Finish
from duetime.worker.chains import FORWARD, ChainedStep, TaskStep, chained, check_steps, filled_body, forward
from duetime.worker.current_job import INFIX, running_queue
from duetime.worker.handle import TaskHandle
from duetime.worker.pusher import Work, both, renamed, send_work_async

if TYPE_CHECKING:
    from duetime.worker.app import App

KEEPERS = "duetime.batches"
"""The queue of the keepers of a namespace: one job per batch that has not ended."""
MARK_LIFE_MS = 600_000
MAX_QUEUE_NAME = MAX_ID - len(INFIX) - LENGTH - len(FOLLOWS) - LENGTH
"""The id of a callback's carrier begins with the name of its batch, and that with the name of the queue."""
MAX_CHANGES = 20
"""How often a change of a batch is tried again after changes by others."""
PAGE = 500
WAITING = (State.READY, State.DELAYED)


class BatchRecord(Struct, frozen=True, omit_defaults=True):
    """The body of a keeper. `queue` is the one whose workers run the jobs. Of the callbacks, `then` runs when all jobs
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
    """The progress of a batch. `total` counts all jobs that were ever in it; `done`, `cancelled` and `expired` those
    that are gone; `failed` its dead letters. While jobs change their state, one may be counted twice, or not at all.
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
        """The percentage of jobs that have ended."""
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
    """Returns None if this is not a keeper: any program may push to its queue."""
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
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(f"batch name must be text, got {name!r:.60}")
    check_steps("batch", [step for step in callbacks.values() if step is not None])
    steps = {
        word: chained(step.previous, renamed(step.outgoing, app.make_id()))
        for word, step in callbacks.items()
        if step is not None
    }
    queue = check_queue(app.namespace, queue).name
    return BatchPlan(app, queue, BatchRecord(queue, name, allow_failures=allow_failures, callbacks=steps))


class TaskBatch:
    """A batch of jobs. `id` is its name. Each method has an async version whose name ends in `_async`."""

    def __init__(self, app: "App", batch_id: str) -> None:
        self.id = check_id(batch_id, "batch id")
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
        """The queue of its jobs, for `task.options(queue=batch.queue)`, `client.queue(batch.queue)` and `duetime
        pipeline schedule`.
        """
        return self._queue.name

    def _add(self, *steps: TaskStep[Any]) -> Work[list[TaskHandle[Any]]]:
        """Push tasks into the batch. Returns one handle per task. A task of the batch can call it, too, while it runs.
        Raises Conflict if the batch is closed, cancelled or over.
        """
        check_steps("batch", steps)
        if found := next((step for step in steps if step.previous), None):
            raise InvalidRequest(f"task of a batch cannot use PREVIOUS: {found.task.name}")
        jobs = [renamed(step.outgoing, self.app.make_id(), self._queue) for step in steps]
        yield from self._check_open()
        moved = yield from self.app.pusher.push(jobs)
        yield from self._check_still(moved)
        return [TaskHandle(step.task, self._queue, one) for step, one in zip(steps, moved, strict=True)]

    def _close(self) -> Work[None]:
        """From now on only the batch's own tasks can add jobs. It ends when no job is left to run."""
        yield from self.change(closed=True)

    def _pause(self) -> Work[None]:
        """Start none of its jobs until `resume`."""
        yield from self._set_paused(paused=True)

    def _resume(self) -> Work[None]:
        """Start its jobs again."""
        yield from self._set_paused(paused=False)

    def _cancel(self) -> Work[BatchStatus]:
        """Remove its waiting jobs, and accept no more. Running jobs finish, and are not tried again."""
        yield from self.change(cancelled=True)
        while (yield from cancel_waiting(self._queue)):
            pass
        return (yield from self._status())

    def _status(self) -> Work[BatchStatus]:
        """Return the progress of the batch, or how it ended, for seven days after its end. Raises NotFound."""
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
                continue  # another process has changed it since it was read
            return
        raise Conflict(f"{self.id} cannot be changed, because others change it all the time; try again")

    def _set_paused(self, *, paused: bool) -> Work[None]:
        if (yield from self._find()) is None:
            raise self._no_batch()
        yield configure(self._queue, RulesChange(paused=paused))

    def _shift(self, by: Duration) -> Work[int]:
        """Move the due time of every waiting job later, or earlier if negative. Returns how many were moved. Jobs that
        start meanwhile are not moved. If it is interrupted, some jobs are moved and others are not.
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
    negative = by < timedelta(0) if isinstance(by, timedelta) else isinstance(by, int | float) and by < 0  # pyright: ignore[reportUnnecessaryIsInstance]
    return -duration_ms(-by) if negative else duration_ms(by)


def cancel_waiting(queue: Queue) -> Work[int]:
    """Remove a page of the waiting jobs; returns how many were found."""
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


# --- keepers

log = logging.getLogger("duetime.worker")

CHECK_MS = 900
CALM_CHECK_MS = 5_000
"""The pause between two checks of a batch in which nothing runs or is due, or that has nothing but dead letters."""
REFUSED_MS = 5_000
"""The pause before a refused change is tried again."""
TTR_S = 30
MOST = 100
"""Batches that one worker serves, and keepers that it checks in a second."""
KEPT_MS = 7 * DAY_MS
"""How long the status of a batch is kept after its end."""


class KeeperForward(Struct):
    """The body of a job that brings a callback to its queue."""

    job: str
    data: "ForwardData"


class ForwardData(Struct):
    step: ChainedStep


class BatchKeeper:
    """Manages batches in a worker: which jobs run, and what follows from their ends.

    The keeper of a batch is a job in the queue `duetime.batches`. The worker that gets it reads the counts of the batch
    and gives it back for the next check. What follows (`catch`, `then`, `finally`) is pushed by the keeper's `finish`:
    in the same atomic step the keeper is gone, or is there again with what it now knows. So a worker that is killed at
    any point loses nothing; and since each callback has an id and a mark of its own, nothing is pushed twice.
    `batches` are those that are not over, as last seen.
    """

    def __init__(self, app: "App") -> None:
        self._app = app
        self._keepers = check_queue(app.namespace, KEEPERS)
        self.batches: Mapping[str, BatchRecord] = {}

    def queues(self, served: Sequence[str]) -> tuple[str, ...]:
        """The queues with their batches: each queue before its batches, an older batch before a younger one."""
        of = {name: list[str]() for name in served}
        for batch_id, record in list(self.batches.items())[:MOST]:
            if record.queue in of:
                of[record.queue].append(batch_id)
        return tuple(one for name in served for one in (name, *of[name]))

    async def check(self) -> bool:
        """List the batches, and check those that are due. Returns whether anything changed. A batch that is refused,
        because the queue of its callback is full for example, waits without holding up the others. Raises
        DuetimeError.
        """
        seen = await self._app.send_async(status(self._keepers))
        if not seen.counts.total:
            self.batches = {}
            return False
        await self._refresh()
        call = reserve(self._keepers.namespace, [self._keepers], MOST, TTR_S, 0)
        acted = False
        for delivery in await self._app.send_async(call):
            try:
                acted = await self._handle(delivery) or acted
            except LeaseLost:  # the batch was changed meanwhile; its new keeper is due
                acted = True
            except NOT_JSON as error:
                await self._app.send_async(kill(delivery, f"this is no batch: {error}"))
            except DuetimeError as error:
                log.warning("batch_waits", extra={"batch": delivery.lease.id, "error": error.message})
                with suppress(LeaseLost):
                    await self._app.send_async(release(delivery, f"{REFUSED_MS}ms", error.message))
        return acted

    async def check_now(self) -> bool:
        """Check every batch, whenever its next check is due."""
        await self._refresh()
        for some in chunks(list(self.batches)):
            await self._app.send_async(reschedule(self._keepers, some, 0, None))
        return await self.check()

    async def _refresh(self) -> None:
        found = await send_work_async(self._app, list_keepers(self._keepers))
        missing = [batch_id for batch_id in self.batches if batch_id not in found]
        for some in chunks(missing):  # they may have moved from one state to another meanwhile
            for job in await self._app.send_async(get(self._keepers, some)):
                if job is not None and (record := read_keeper(job.body)):
                    found[job.id] = record
        self.batches = dict(sorted(found.items(), key=lambda one: one[1].opened_at))

    async def _handle(self, delivery: Delivery) -> bool:
        record = read_keeper(delivery.body)
        if record is not None:
            return await self._keep(delivery, record)
        carried = msgspec.json.decode(delivery.body, type=KeeperForward)
        await forward(self._app, carried.data.step)
        await self._app.send_async(ack(self._keepers, [delivery]))
        return True

    async def _keep(self, delivery: Delivery, record: BatchRecord) -> bool:
        batch_id = delivery.lease.id
        queue = check_queue(self._keepers.namespace, batch_id)
        if record.cancelled and await send_work_async(self._app, cancel_waiting(queue)):
            await self._again(delivery, 0)
            return True
        seen = await self._app.send_async(status(queue))
        counts, counted = seen.counts, (await self._app.send_async(totals(queue))).running
        if counted.dead and not record.caught:
            caught = replace(record, caught=True, cancelled=record.cancelled or not record.allow_failures)
            summary = describe_batch(batch_id, caught, counts, counted, paused=seen.rules.paused)
            await self._finish(delivery, ["catch"], caught, summary, is_kept=True)
            return True
        is_empty = counts.ready + counts.delayed + counts.leased == 0
        is_over = is_empty and (record.closed or record.cancelled)
        if not is_over or (record.ended_at and counts.dead):
            busy = counts.ready or counts.leased or (is_over and not record.ended_at)
            await self._again(delivery, CHECK_MS if busy else CALM_CHECK_MS)
            return False
        ended = record if record.ended_at else replace(record, ended_at=counts.now)
        all_done = not record.cancelled and counted.dead == counted.respawned
        all_done = all_done and not counted.cancelled and not counted.expired
        words = [*(["then"] if all_done else []), *([] if record.ended_at else ["finally"])]
        summary = describe_batch(batch_id, ended, counts, counted, paused=False)
        if seen.rules.paused:  # a queue with rules is never forgotten
            with suppress(Forbidden):
                await self._app.send_async(configure(queue, RulesChange(paused=False)))
        await self._finish(delivery, words, ended, summary, is_kept=counts.dead > 0)
        return True

    async def _finish(
        self,
        delivery: Delivery,
        words: Sequence[str],
        record: BatchRecord,
        summary: BatchStatus,
        *,
        is_kept: bool,
    ) -> None:
        """Push the callbacks of these names, and the keeper anew if it goes on."""
        text = msgspec.json.encode(summary)
        steps = [record.callbacks[word] for word in words if word in record.callbacks]
        jobs = [_carrier(summary.id, step, text) for step in steps]
        if is_kept:
            jobs.append(keeper_job(summary.id, record))
        one = Finish(delivery.lease, jobs, None if is_kept else text, 0 if is_kept else KEPT_MS)
        for answer in await self._app.send_async(finish(self._keepers, [one])):
            if isinstance(answer, Exception):
                raise answer

    async def _again(self, delivery: Delivery, after_ms: int) -> None:
        await self._app.send_async(give_back([delivery], f"{after_ms}ms"))


def _carrier(batch_id: str, step: ChainedStep, summary: bytes) -> NewJob:
    """The job that brings a callback to its queue, with the status of the batch as PREVIOUS."""
    filled = replace(step, body=Raw(filled_body(step, summary)), previous="")
    body: dict[str, Any] = {"job": FORWARD, "data": {"step": filled}}
    return NewJob(f"{batch_id}{FOLLOWS}{step.id}", msgspec.json.encode(body), tries=0)

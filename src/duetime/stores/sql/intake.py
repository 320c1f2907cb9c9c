"""Moves jobs that other programs have committed with `push_in` from the table `incoming` into their queues.

A step takes some jobs of one queue, pushes them and leaves a receipt: a mark that belongs to no queue and names the
jobs. The receipt is deleted when the engine says that the jobs are on record. If it never does, because its process
died or the answer of the commit was lost, some process finds the receipt half a minute later and tells of the jobs
again.
"""

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Struct

from duetime.model.errors import DuetimeError, InvalidRequest
from duetime.model.ids import ThreadedIdMaker
from duetime.model.job import MAX_BODY, Event, IfExists, Moved, NewJob, Priority
from duetime.model.job_checks import check_job
from duetime.model.names import Queue, check_queue
from duetime.stores.base import Push, Pushed
from duetime.stores.sql import verbs
from duetime.stores.sql.locked_queues import QueueRound
from duetime.stores.sql.rows import attributes
from duetime.stores.sql.step import Step

log = logging.getLogger("duetime.stores")

T = TypeVar("T")

INCOMING_JOBS = 100
"""How many of these jobs one step takes; their bodies may be large."""
QUEUES_AT_ONCE = 100
"""How many queues one round takes jobs of; the next round follows at once."""
MAX_QUEUES = 10_000

RECEIPTS = {"namespace": "", "queue": "push_in"}
"""Where receipts are among the marks: no queue has an empty namespace."""
RECEIPT_LIFE_MS = 7 * 86_400_000
LATE_MS = 30_000
"""The process that took jobs deletes their receipt within about a second; an older one has been abandoned."""
LATE_RECEIPTS = 20
LOOK_EVERY_S = 10.0
"""How often a process looks for abandoned receipts."""

_make_id = ThreadedIdMaker().make


class IncomingRow(Struct, frozen=True):
    """A row of `take_incoming`; its fields are in the order of the query."""

    number: int
    id: str
    if_exists: str
    priority: int
    due_at: int
    ttl_ms: int
    tries: int
    attributes: str | None
    body: bytes

    def request(self, now: int) -> Push:
        """Raises DuetimeError or ValueError for a row that is no job: whoever may insert can write anything."""
        if_exists = IfExists(self.if_exists)
        if if_exists is IfExists.ERROR:
            raise InvalidRequest("a job of push_in is kept or replaced if its id exists")
        job = NewJob(
            self.id,
            self.body,
            due_at=self.due_at,
            # A ttl that the wait for the commit made too short is no reason to lose the job.
            ttl_ms=max(self.ttl_ms, self.due_at - now) if self.ttl_ms else 0,
            tries=self.tries,
            priority=Priority(self.priority),
            attributes=attributes(self.attributes),
        )
        check_job(job, max_body=MAX_BODY)
        return Push([job], if_exists)


class TakenJobs(Struct, frozen=True, array_like=True):
    """What a receipt says: the queue, and id, born, due_at, event and was of each job."""

    namespace: str
    queue: str
    jobs: list[tuple[str, int, int, Event, int]]


class Look(NamedTuple):
    """What there is to do: queues of incoming jobs, rows under names that no queue has, abandoned receipts."""

    now: int
    queues: list[Queue]
    misnamed: list[tuple[str, str]]
    abandoned: list[tuple[str, TakenJobs]]


class RunStep(Protocol):
    """Runs a step that writes; those of one queue run one after the other."""

    async def __call__(self, operation: Callable[[Step], T], *, queue: Queue | None = None) -> T: ...


class TakenIn:
    """What one round took in: jobs by queue, and the receipts that the engine is to give back."""

    def __init__(self) -> None:
        self.pushed: dict[Queue, list[tuple[Push, Pushed]]] = {}
        self.receipts: list[str] = []
        self.has_more = False


class Intake:
    def __init__(self, read: Callable[[Callable[[Step], Look]], Awaitable[Look]], write: RunStep) -> None:
        self._read, self._write = read, write
        self._looks_at = 0.0

    async def take(self, round_: QueueRound, recorded: Sequence[str]) -> TakenIn:
        """Never raises: what was taken must reach the journal, whatever happens after it."""
        taken = TakenIn()
        try:
            await self._take(taken, round_, recorded)
        except DuetimeError as error:
            log.warning("incoming_jobs_not_taken", extra={"error": error.message})
        except Exception:
            log.exception("incoming_jobs_not_taken")
        return taken

    async def _take(self, taken: TakenIn, round_: QueueRound, recorded: Sequence[str]) -> None:
        if recorded:
            await self._write(partial(_delete_receipts, names=list(recorded)))
        looks_back = monotonic() >= self._looks_at
        if looks_back:  # also if it fails: a receipt that cannot be read must not keep every round from taking jobs in
            self._looks_at = monotonic() + LOOK_EVERY_S * random.uniform(0.8, 1.2)
        found = await self._read(partial(_look, looks_back=looks_back))
        for receipt, jobs in found.abandoned:
            taken.pushed.setdefault(Queue(jobs.namespace, jobs.queue), []).append(_told_again(jobs, found.now))
            taken.receipts.append(receipt)
        for namespace, name in found.misnamed:
            await self._write(partial(_set_aside_queue, namespace=namespace, name=name))
        queues = found.queues
        random.shuffle(queues)
        taken.has_more = len(queues) > QUEUES_AT_ONCE

        async def take_some(queue: Queue) -> bool:
            receipt = _make_id()
            jobs = await self._write(partial(take_incoming, queue=queue, receipt=receipt), queue=queue)
            if jobs:
                taken.pushed.setdefault(queue, []).extend(jobs)
                taken.receipts.append(receipt)
                taken.has_more |= len(jobs) == INCOMING_JOBS
            return True

        await round_.visit(queues[:QUEUES_AT_ONCE], take_some)


def _look(step: Step, *, looks_back: bool) -> Look:
    queues, misnamed = list[Queue](), list[tuple[str, str]]()
    for namespace, name in step.fetch("incoming_queues", limit=MAX_QUEUES):
        try:
            queues.append(check_queue(namespace, name))
        except DuetimeError:
            misnamed.append((namespace, name))
    abandoned: list[tuple[str, TakenJobs]] = []
    if looks_back:
        until = step.now + RECEIPT_LIFE_MS - LATE_MS
        rows = step.fetch("late_receipts", **RECEIPTS, until=until, limit=LATE_RECEIPTS)
        abandoned = [(name, msgspec.msgpack.decode(answer, type=TakenJobs)) for name, answer in rows]
    return Look(step.now, queues, misnamed, abandoned)


def _told_again(taken: TakenJobs, now: int) -> tuple[Push, Pushed]:
    """Jobs of an abandoned receipt, as a push that was repeated. The request has no bodies: they are in the store."""
    moved = [Moved(event, job_id, born, due_at=due_at, was=was) for job_id, born, due_at, event, was in taken.jobs]
    return Push([NewJob(one.id, b"") for one in moved]), Pushed(moved, now, repeated=True)


def take_incoming(step: Step, queue: Queue, receipt: str) -> list[tuple[Push, Pushed]]:
    """Move some of these jobs into their queue. Whatever happened to the queue since, they are not refused.

    The queue is locked before its rows are read: so a process that reads later pushes later.
    """
    step.lock_queue(queue, create=True)
    rows = step.fetch("take_incoming", namespace=queue.namespace, name=queue.name, limit=INCOMING_JOBS)
    requests = _requests(step, queue, sorted(rows))
    if not requests:
        return []
    answers = verbs.push(step, queue, list(requests.values()), capped=False)
    pushed: list[tuple[Push, Pushed]] = []
    done: list[int] = []
    for (number, request), answer in zip(requests.items(), answers, strict=True):
        if isinstance(answer, Pushed):
            pushed.append((request, answer))
            done.append(number)
        else:  # the clock has stepped back since the ttl was looked at; the row stays for the next round
            log.warning("incoming_job_put_off", extra={"queue": str(queue), "error": answer.message})
    if done:
        step.execute("delete_incoming", numbers=done)
        _leave_receipt(step, queue, receipt, [moved for _, answer in pushed for moved in answer.jobs])
    return pushed


def _requests(step: Step, queue: Queue, rows: Sequence[tuple[Any, ...]]) -> dict[int, Push]:
    """Requests by the numbers of their rows. Rows that are no jobs are set aside: they would block all others."""
    requests: dict[int, Push] = {}
    bad: list[int] = []
    for row in rows:
        number = row[0]
        try:
            requests[number] = IncomingRow(*row).request(step.now)
        except (DuetimeError, ValueError) as error:
            bad.append(number)
            log.error("incoming_row_set_aside", extra={"queue": str(queue), "row": number, "error": str(error)})
    if bad:
        step.execute("set_aside_incoming", numbers=bad)
    return requests


def _set_aside_queue(step: Step, namespace: str, name: str) -> None:
    log.error("incoming_rows_set_aside", extra={"queue": f"{namespace}/{name}", "error": "no queue has this name"})
    step.execute("set_aside_incoming_queue", namespace=namespace, name=name)


def rows_set_aside(step: Step) -> list[str]:
    """What `check` says about them; they stay until a person deletes them."""
    rows = step.fetch("check_incoming")
    return [
        f"{queue}: {job_id!r}, row {number} of incoming, is no job and was set aside" for number, queue, job_id in rows
    ]


def _leave_receipt(step: Step, queue: Queue, name: str, moved: Sequence[Moved]) -> None:
    told = [(one.id, one.born, one.due_at, one.event, one.was) for one in moved]
    jobs = TakenJobs(queue.namespace, queue.name, told)
    expires_at = step.now + RECEIPT_LIFE_MS
    step.execute(
        "set_mark", **RECEIPTS, name=name, digest=b"", expires_at=expires_at, answer=msgspec.msgpack.encode(jobs)
    )


def _delete_receipts(step: Step, names: list[str]) -> None:
    step.execute("delete_receipts", **RECEIPTS, names=names)

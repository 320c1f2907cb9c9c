"""The transactional outbox: other programs write jobs in transactions of their own (`client/push_in.py`), to the table
`outbox`, and a server imports them into their queues.

`outbox_statements` are the statements of the other programs. `OutboxImporter` runs in each round of the reaper. A step
imports some jobs of one queue, as a push, and leaves a receipt: a mark that belongs to no queue and names the jobs. The
receipt is deleted when the engine has recorded the jobs. If it never does, because its process died or the answer of
the commit was lost, some process finds the receipt half a minute later and announces the jobs again.
"""

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Struct

from duetime.model.errors import DuetimeError, InvalidRequest
from duetime.model.ids import ThreadedIdMaker
from duetime.model.job import MAX_BODY, Event, IfExists, Moved, NewJob, Priority, check_job
from duetime.model.names import Queue, check_queue
from duetime.stores.base import Push, Pushed
from duetime.stores.sql import verbs
from duetime.stores.sql.locked_queues import QueueRound
from duetime.stores.sql.queries import (
    DEFAULT_MYSQL_PREFIX,
    DEFAULT_SCHEMA,
    channel,
    load_queries,
    mysql_table_names,
    named_tables,
    table_names,
)
from duetime.stores.sql.rows import attributes
from duetime.stores.sql.step import Step

log = logging.getLogger("duetime.stores")

T = TypeVar("T")

IMPORT_JOBS = 100
"""How many jobs one step imports; their bodies may be large."""
QUEUES_PER_ROUND = 100
"""How many queues one round imports jobs of; the next round follows immediately."""
MAX_QUEUES = 10_000

RECEIPTS = {"namespace": "", "queue": "push_in"}
"""Where receipts are among the marks: no queue has an empty namespace."""
RECEIPT_LIFE_MS = 7 * 86_400_000
LATE_MS = 30_000
"""The process that imported jobs deletes their receipt within about a second; an older one was abandoned."""
MAX_ABANDONED = 20
RECEIPT_CHECK_S = 10.0
"""How often a process checks for abandoned receipts."""

_make_id = ThreadedIdMaker().make

OUTBOX_NOTICE = '["push_in",0,null]'
"""A notification upon which the servers check every queue; an `Announcement` as JSON."""


class OutboxStatements(Struct, frozen=True):
    """`rules` and `insert` take named values, `insert` one row at a time; `notify` takes none."""

    rules: str
    insert: str
    notify: str


@cache
def outbox_statements(dialect: str, *, schema: str | None = None, prefix: str | None = None) -> OutboxStatements:
    """Without a schema or a prefix, those of a URL without them."""
    if dialect == "mysql":
        names = mysql_table_names(schema or "", DEFAULT_MYSQL_PREFIX if prefix is None else prefix)
        announcements = named_tables("dt.announcements", *names)
        notify = f"INSERT INTO {announcements} (message) VALUES ('{OUTBOX_NOTICE}')"
    else:
        schema, prefix = DEFAULT_SCHEMA if schema is None else schema, prefix or ""
        names = table_names(schema, prefix)
        notify = f"SELECT pg_notify('{channel(schema, prefix)}', '{OUTBOX_NOTICE}')"
    queries = load_queries(dialect)
    rules, insert = (named_tables(queries[name], *names) for name in ("outbox_rules", "insert_outbox_job"))
    return OutboxStatements(rules, insert, notify)


class OutboxRow(Struct, frozen=True):
    """A row of `next_outbox_jobs`; its fields are in the order of the query."""

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
        """Raises DuetimeError or ValueError for a row that is no job: any program may insert anything."""
        if_exists = IfExists(self.if_exists)
        if if_exists is IfExists.ERROR:
            raise InvalidRequest("if_exists of a job in the outbox must be keep or replace, got error")
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


class ImportedJobs(Struct, frozen=True, array_like=True):
    """What a receipt says: the queue, and id, born, due_at, event and was of each job."""

    namespace: str
    queue: str
    jobs: list[tuple[str, int, int, Event, int]]


class OutboxScan(NamedTuple):
    """What there is to do: queues with jobs in the outbox, rows under names that no queue has, abandoned receipts."""

    now: int
    queues: list[Queue]
    misnamed: list[tuple[str, str]]
    abandoned: list[tuple[str, ImportedJobs]]


class RunStep(Protocol):
    """Runs a step that writes; those of one queue run one after the other."""

    async def __call__(self, operation: Callable[[Step], T], *, queue: Queue | None = None) -> T: ...


class Imported:
    """What one round imported: jobs by queue, and the receipts that the engine is to give back."""

    def __init__(self) -> None:
        self.pushed: dict[Queue, list[tuple[Push, Pushed]]] = {}
        self.receipts: list[str] = []
        self.has_more = False


class OutboxImporter:
    def __init__(self, read: Callable[[Callable[[Step], OutboxScan]], Awaitable[OutboxScan]], write: RunStep) -> None:
        self._read, self._write = read, write
        self._check_receipts_at = 0.0

    async def run(self, round_: QueueRound, recorded: Sequence[str]) -> Imported:
        """Import some jobs of each queue. Never raises: what was imported must reach the journal."""
        imported = Imported()
        try:
            await self._run(imported, round_, recorded)
        except DuetimeError as error:
            log.warning("outbox_import_failed", extra={"error": error.message})
        except Exception:
            log.exception("outbox_import_failed")
        return imported

    async def _run(self, imported: Imported, round_: QueueRound, recorded: Sequence[str]) -> None:
        if recorded:
            await self._write(lambda step: step.execute("delete_receipts", **RECEIPTS, names=list(recorded)))
        checks_receipts = monotonic() >= self._check_receipts_at
        if checks_receipts:  # even if it fails: a receipt that cannot be read must not stop every round
            self._check_receipts_at = monotonic() + RECEIPT_CHECK_S * random.uniform(0.8, 1.2)
        found = await self._read(partial(_scan, checks_receipts=checks_receipts))
        for receipt, jobs in found.abandoned:
            imported.pushed.setdefault(Queue(jobs.namespace, jobs.queue), []).append(_reannounced(jobs, found.now))
            imported.receipts.append(receipt)
        for namespace, name in found.misnamed:
            await self._write(partial(_set_aside_queue, namespace=namespace, name=name))
        queues = found.queues
        random.shuffle(queues)
        imported.has_more = len(queues) > QUEUES_PER_ROUND

        async def import_some(queue: Queue) -> bool:
            receipt = _make_id()
            jobs = await self._write(partial(import_jobs, queue=queue, receipt=receipt), queue=queue)
            if jobs:
                imported.pushed.setdefault(queue, []).extend(jobs)
                imported.receipts.append(receipt)
                imported.has_more |= len(jobs) == IMPORT_JOBS
            return True

        await round_.visit(queues[:QUEUES_PER_ROUND], import_some)


def _scan(step: Step, *, checks_receipts: bool) -> OutboxScan:
    queues, misnamed = list[Queue](), list[tuple[str, str]]()
    for namespace, name in step.fetch("outbox_queues", limit=MAX_QUEUES):
        try:
            queues.append(check_queue(namespace, name))
        except DuetimeError:
            misnamed.append((namespace, name))
    abandoned: list[tuple[str, ImportedJobs]] = []
    if checks_receipts:
        until = step.now + RECEIPT_LIFE_MS - LATE_MS
        rows = step.fetch("abandoned_receipts", **RECEIPTS, until=until, limit=MAX_ABANDONED)
        abandoned = [(name, msgspec.msgpack.decode(answer, type=ImportedJobs)) for name, answer in rows]
    return OutboxScan(step.now, queues, misnamed, abandoned)


def _reannounced(imported: ImportedJobs, now: int) -> tuple[Push, Pushed]:
    """Jobs of an abandoned receipt, as a push that was repeated. The request has no bodies: they are in the store."""
    moved = [Moved(event, job_id, born, due_at=due_at, was=was) for job_id, born, due_at, event, was in imported.jobs]
    return Push([NewJob(one.id, b"") for one in moved]), Pushed(moved, now, repeated=True)


def import_jobs(step: Step, queue: Queue, receipt: str) -> list[tuple[Push, Pushed]]:
    """Move some jobs into their queue. They are not refused, whatever happened to the queue since.

    The queue is locked before its rows are read: so a process that reads later pushes later.
    """
    step.lock_queue(queue, create=True)
    rows = step.fetch("next_outbox_jobs", namespace=queue.namespace, name=queue.name, limit=IMPORT_JOBS)
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
        else:  # the clock has stepped back since the ttl was read; the row stays for the next round
            log.warning("outbox_job_deferred", extra={"queue": str(queue), "error": answer.message})
    if done:
        step.execute("delete_outbox_jobs", numbers=done)
        _leave_receipt(step, queue, receipt, [moved for _, answer in pushed for moved in answer.jobs])
    return pushed


def _requests(step: Step, queue: Queue, rows: Sequence[tuple[Any, ...]]) -> dict[int, Push]:
    """Requests by the numbers of their rows. Rows that are no jobs are set aside: they would block all others."""
    requests: dict[int, Push] = {}
    bad: list[int] = []
    for row in rows:
        number = row[0]
        try:
            requests[number] = OutboxRow(*row).request(step.now)
        except (DuetimeError, ValueError) as error:
            bad.append(number)
            log.error("outbox_row_set_aside", extra={"queue": str(queue), "row": number, "error": str(error)})
    if bad:
        step.execute("set_aside_outbox_jobs", numbers=bad)
    return requests


def _set_aside_queue(step: Step, namespace: str, name: str) -> None:
    log.error("outbox_rows_set_aside", extra={"queue": f"{namespace}/{name}", "error": "no queue has this name"})
    step.execute("set_aside_outbox_queue", namespace=namespace, name=name)


def rows_set_aside(step: Step) -> list[str]:
    """What `check` says about them; they stay until a person deletes them."""
    rows = step.fetch("check_outbox")
    return [
        f"{queue}: {job_id!r}, row {number} of outbox, is no job and was set aside" for number, queue, job_id in rows
    ]


def _leave_receipt(step: Step, queue: Queue, name: str, moved: Sequence[Moved]) -> None:
    moves = [(one.id, one.born, one.due_at, one.event, one.was) for one in moved]
    jobs = ImportedJobs(queue.namespace, queue.name, moves)
    expires_at = step.now + RECEIPT_LIFE_MS
    step.execute(
        "set_mark", **RECEIPTS, name=name, digest=b"", expires_at=expires_at, answer=msgspec.msgpack.encode(jobs)
    )

"""Carrying out a reconcile's plan: ask the store, push what is still missing, write down what ends or begins.

Runs on the driver, 500 jobs of a queue at a time: one question and one push for each, each of which may be repeated.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET

from duetime.job import STEP_BYTES, STEP_JOBS, Event, Job, Moved, NewJob, Priority
from duetime.journal.events import Draft, body_fields
from duetime.names import Queue
from duetime.spark.audit import transform as audit
from duetime.spark.audit.journal import JournalProblem
from duetime.spark.audit.store import StoreView
from duetime.spark.lake.lake import Lake
from duetime.spark.reconcile import transform as reconcile
from duetime.spark.reconcile.entries import RepairEntries
from duetime.stores.base import Push, Pushed

RESULTS_PER_FILE = 50_000
TELL_EVERY = 100_000
SUPERSEDED = "superseded"

Row = dict[str, Any]


@dataclass
class Reconciled:
    """How many jobs ended in which way.

    pushed: put back. expired: closed. adopted: taken into the books. present: it was there after all. superseded: a
    newer job has its id, and the old one is closed. no_body: the journal lost its body. refused: the store did not
    take it. gone: what was to be adopted is no longer there.
    """

    run: str
    folder: str
    dry_run: bool
    lost: int = 0
    counts: dict[str, int] = field(default_factory=dict[str, int])
    refusals: list[str] = field(default_factory=list[str])
    assumed: list[JournalProblem] = field(default_factory=list[JournalProblem])
    node: str = ""

    @property
    def is_repaired(self) -> bool:
        return not any(self.counts.get(name) for name in ("refused", "no_body"))


class Repair:
    """Carries out a plan, 500 jobs of a queue at a time."""

    def __init__(self, lake: Lake, view: StoreView, entries: RepairEntries, done: Reconciled, pool: str) -> None:
        self._lake, self._view, self._entries, self._done, self._pool = lake, view, entries, done, pool
        self._results: list[Row] = []
        self._files = 0

    def run(self, told: Callable[[str], None]) -> None:
        plan = self._lake.spark.read.parquet(f"{self._done.folder}/plan")
        total, said = plan.count(), 0
        told(f"repairing {total:,} jobs")
        order = ("pool", "namespace", "queue", "due_at", "id")
        for rows in _chunks(row.asDict() for row in plan.orderBy(*order).toLocalIterator()):
            self._done.lost += len(rows)
            self._repair(_queue(rows[0]), rows)
            if self._done.lost >= said + TELL_EVERY:
                said = self._done.lost
                told(f"{said:,} of {total:,} done")
        adopt = self._lake.spark.read.parquet(f"{self._done.folder}/adopt")
        for rows in _chunks(row.asDict() for row in adopt.orderBy(*audit.KEY).toLocalIterator()):
            self._adopt(_queue(rows[0]), rows)
        self._flush_results()
        self._done.node = self._entries.node

    def _repair(self, queue: Queue, rows: Sequence[Row]) -> None:
        """Ask before pushing: the scan is older than this."""
        now = self._view.now()
        push: list[Row] = []
        drafts: list[Draft] = []
        for row, held in zip(rows, self._view.get(queue, [row["id"] for row in rows]), strict=True):
            if held is not None and held.born == row["born"]:
                self._note(row, "present")
            elif held is not None or row["action"] == reconcile.SUPERSEDE:
                drafts.append(self._end(queue, row, Event.CANCELLED, now, SUPERSEDED))
                self._note(row, SUPERSEDED)
            elif row["action"] == reconcile.EXPIRE or 0 < row["expires_at"] <= now:
                drafts.append(self._end(queue, row, Event.EXPIRED, now))
                self._note(row, "expired")
            elif row["body"] is None:
                self._note(row, "no_body")
            else:
                push.append(row)
        if push:
            drafts += self._push(queue, push, now)
        if drafts:
            self._entries.write(drafts)

    def _push(self, queue: Queue, rows: Sequence[Row], now: int) -> list[Draft]:
        requests = [Push([_new_job(row, now)]) for row in rows]
        answers = self._view.push(queue, requests)
        for row, answer in zip(rows, answers, strict=True):
            if not isinstance(answer, Pushed):
                self._note(row, "refused")
                self._done.refusals = [*self._done.refusals, f"{queue} {row['id']}: {answer.message}"][:20]
            elif answer.jobs[0].event is Event.KEPT:
                # Pushed by somebody else since we asked; the next run sees which one it is.
                self._note(row, "present")
            else:
                self._note(row, "pushed")
        if self._view.journals:
            return []
        return [
            _begun(row["pool"], queue, request.jobs[0], answer)
            for row, request, answer in zip(rows, requests, answers, strict=True)
            if isinstance(answer, Pushed) and answer.jobs[0].event is Event.ACCEPTED
        ]

    def _adopt(self, queue: Queue, rows: Sequence[Row]) -> None:
        drafts: list[Draft] = []
        now = self._view.now()
        for row, held in zip(rows, self._view.get(queue, [row["id"] for row in rows]), strict=True):
            if held is None or held.born != row["born"]:
                self._note(row, "gone")
                continue
            drafts.append(_adopted(row["pool"] or self._pool, queue, held, now))
            self._note(row, "adopted")
        if drafts:
            self._entries.write(drafts)

    def _end(self, queue: Queue, row: Row, event: Event, ts: int, reason: str = "") -> Draft:
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

    def _note(self, row: Row, result: str) -> None:
        self._done.counts[result] = self._done.counts.get(result, 0) + 1
        self._results.append({**{name: row[name] for name in audit.KEY}, "result": result})
        if len(self._results) >= RESULTS_PER_FILE:
            self._flush_results()

    def _flush_results(self) -> None:
        if self._results:
            lines = b"".join(msgspec.json.encode(one) + b"\n" for one in self._results)
            self._lake.files.create(f"{self._done.folder}/results/{self._files:06d}.json", lines)
            self._files, self._results = self._files + 1, []


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows of one queue, within the bounds of a call."""
    chunk: list[Row] = []
    size = 0
    for row in rows:
        bytes_more = len(row.get("body") or b"")
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
        attributes=row["attributes"] or {},
        born=row["born"],
        attempt=row["attempt"],
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
        reason=moved.reason,
        body=body.get("body", UNSET),
        body_b64=body.get("body_b64", UNSET),
        attributes=job.attributes,
    )

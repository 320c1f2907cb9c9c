"""A step on a SQLite connection: lists are passed as JSON, and nothing is locked, because SQLite has one writer."""

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any

import msgspec

from duetime.model.job import DAY_MS, Delivery, Event, IfExists, Lease, Moved, Priority
from duetime.model.names import Queue
from duetime.stores.base import IDLE_MS, Ask, Push, Pushed, Reserved, Wake
from duetime.stores.sql.queries import for_one_id, for_rows
from duetime.stores.sql.rows import (
    PRIORITIES,
    JobRow,
    Payload,
    QueueRow,
    ReadyRow,
    as_json,
    attributes,
    damaged_ready,
    payloads_by_id,
    read_queue_row,
    ready_rows,
)
from duetime.stores.sql.step import TOTALS, QueueNumbers, Step, set_aside
from duetime.stores.sqlite.connection import QUERIES
from duetime.stores.sqlite.wake import NumberedAnnouncement, numbered

_INSERTS = [(size, for_rows(QUERIES["insert_job"], size)) for size in (64, 16, 4, 1)]
_FOR_ONE_ID = {name: for_one_id(query) for name, query in QUERIES.items() if "json_each(:ids)" in query}
"""SQLite takes twice as long for a list of one id as for the id itself."""


INLINE_BYTES = 800
"""A larger body has a row of its own: with it a row of `jobs` would not fit into a page of SQLite (4 KiB) four times,
and then SQLite spreads the row, which every move of the job writes anew, over several pages."""
FIRST_COUNT, COUNT_GROWTH = 256, 8
"""How many jobs of each stretch of time are counted first, and the factor for each further round."""
FIRST_INSTANT, BEYOND_INSTANTS = -(2**62), 2**62
_at = itemgetter(0)
"""The place of a queue among those that were asked for, in the rows of `heads_of` and `counts_of`."""


class SqliteStep(Step):
    """Runs in the writer's transaction or on the reader's snapshot."""

    def __init__(self, connection: sqlite3.Connection, now: int) -> None:
        self.wakes = []
        self.connection, self._changes = connection, connection.total_changes
        self._now = now
        self.announcements: list[NumberedAnnouncement] = []
        """Announcements that a fast path has counted already."""

    @property
    def has_written(self) -> bool:
        return self.connection.total_changes != self._changes

    @property
    def now(self) -> int:
        return self._now

    def fetch(self, query: str, **parameters: object) -> list[tuple[Any, ...]]:
        return self._run(query, parameters).fetchall()

    def fetch_one(self, query: str, **parameters: object) -> Any:
        return self._run(query, parameters).fetchone()

    def execute(self, query: str, **parameters: object) -> None:
        self._run(query, parameters)

    def _run(self, query: str, parameters: dict[str, Any]) -> sqlite3.Cursor:
        ids = parameters.get("ids")
        if ids is None:
            return self.connection.execute(QUERIES[query], parameters)
        if len(ids) == 1 and type(ids[0]) is str:
            parameters["ids"] = ids[0]
            return self.connection.execute(_FOR_ONE_ID[query], parameters)
        parameters["ids"] = as_json(ids)
        return self.connection.execute(QUERIES[query], parameters)

    # --- verbs on one plain job (`sql/fast_path.sql`)

    def fast_push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed] | None:
        if len(requests) != 1:
            return None
        request, now = requests[0], self._now
        if not request.is_single or request.if_exists is IfExists.REPLACE:
            return None
        job = request.jobs[0]
        due_at, expires_at = job.due(now), now + job.ttl_ms if job.ttl_ms else 0
        if job.born or job.attempt or 0 < expires_at < due_at:
            return None
        execute = self.connection.execute
        found = execute(QUERIES["find_plain_queue"], (queue.namespace, queue.name, now // DAY_MS)).fetchone()
        if found is None:
            return None
        queue_id, floor = found
        born, is_large = max(now, floor + 1), len(job.body) > INLINE_BYTES
        options = int(job.priority), due_at, expires_at, job.tries, as_json(job.attributes) if job.attributes else None
        row = (queue_id, job.id, born, *options, None if is_large else job.body)
        if not execute(QUERIES["push_plain_job"], row).rowcount:
            return None
        if is_large:
            self._insert_body(job.body)
        reap_by = expires_at and expires_at + 1
        execute(QUERIES["count_plain_push"], {"queue": queue_id, "born": born, "now": now, "reap_by": reap_by})
        if not execute(QUERIES["has_earlier"], {"queue": queue_id, "due_at": due_at, "id": job.id}).fetchone()[0]:
            (number,) = execute(QUERIES["count_wake"]).fetchone()
            self.announcements.append(numbered(number, 0, [Wake(queue, due_at)]))
        return (Pushed((Moved(Event.ACCEPTED, job.id, born, 0, due_at),), now),)

    def fast_reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved | None:
        if len(asks) != 1 or asks[0].limit != 1 or sum(asks[0].quotas) > 1:
            return None
        ask, now = asks[0], self._now
        execute, names = self.connection.execute, {"namespace": queue.namespace, "name": queue.name}
        first_priority = ask.quotas.index(1) + 1 if 1 in ask.quotas else 0
        wanted = {**names, "day": now // DAY_MS, "now": now, "first_priority": first_priority}
        found = execute(QUERIES["next_plain_job"], wanted).fetchone()
        if found is None:
            return None
        queue_id, job_id, born, attempt, body, due_at, priority, tries, used, expires_at, packed, error = found
        deliveries: list[Delivery] = []
        if job_id is not None:
            until = now + ask.ttr_ms
            execute(_FOR_ONE_ID["lease_jobs"], {"queue": queue_id, "lease_until": until, "ids": job_id})
            execute(QUERIES["count_plain_lease"], {"queue": queue_id, "lease_until": until})
            extra: Mapping[str, str] = attributes(packed) if packed else {}
            lease, rest = Lease(queue, job_id, born, attempt), (tries, used, expires_at, extra, error)
            deliveries = [Delivery(lease, body, due_at, until, Priority(priority), *rest)]
        heads = execute(QUERIES["heads"], {"queue": queue_id}).fetchone()
        return Reserved([deliveries], min([head for head in heads if head is not None], default=None), now)

    def fast_ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved] | None:
        if len(leases) != 1 or leases[0].queue != queue:
            return None
        lease, now, execute = leases[0], self._now, self.connection.execute
        names = {"namespace": queue.namespace, "name": queue.name, "born": lease.born}
        fence = {**names, "id": lease.id, "attempt": lease.attempt, "day": now // DAY_MS}
        if not execute(QUERIES["delete_leased_job"], fence).rowcount:
            return None
        execute(QUERIES["count_plain_ack"], {**names, "now": now, "idle_ms": IDLE_MS})
        return (lease.acked(),)

    # --- locks

    def lock_queue(self, queue: Queue, *, create: bool) -> tuple[QueueRow, bool]:
        row = self.connection.execute(QUERIES["load_queue"], queue._asdict()).fetchone()
        queue_row = read_queue_row(queue, row) if row else QueueRow()
        if row or not create:
            return queue_row, False
        queue_row.id, queue_row.floor = self.fetch_one("new_queue")
        self.execute("insert_queue", id=queue_row.id, namespace=queue.namespace, name=queue.name)
        return queue_row, True

    def new_queue_id(self) -> int:
        return self.fetch_one("new_queue")[0]

    def lock_name(self, queue: Queue) -> None:
        """Neither this nor the other locks have anything to do: no other transaction writes at the same time."""

    def lock_registry(self) -> None: ...

    def lock_counter(self, name: str) -> None: ...

    def ready_jobs(
        self, queue: Queue, queue_row: QueueRow, priority: Priority, after: tuple[int, str], limit: int
    ) -> Sequence[ReadyRow]:
        place = {"queue": queue_row.id, "priority": int(priority), "after_at": after[0], "after_id": after[1]}
        while True:
            (answer,) = self.fetch_one("ready_jobs", **place, now=self.now, limit=limit)
            try:
                return ready_rows(answer)
            except msgspec.ValidationError:
                if not (damaged := damaged_ready(answer)):
                    raise
                set_aside(self, queue, queue_row, damaged)

    def payloads(self, queue_row: QueueRow, ids: Sequence[str]) -> Mapping[str, Payload]:
        (answer,) = self.fetch_one("get_payloads", queue=queue_row.id, ids=list(ids))
        return payloads_by_id(answer)

    def count_held(self, queue_row: QueueRow, leases: Sequence[Lease]) -> int:
        if len(leases) == 1:
            fence = (queue_row.id, leases[0].id, leases[0].born, leases[0].attempt)
            return self.connection.execute(QUERIES["is_held"], fence).fetchone()[0]
        fences = as_json([(lease.id, lease.born, lease.attempt) for lease in leases])
        return self.fetch_one("count_held", queue=queue_row.id, leases=fences)[0]

    def heads(self, queues: Sequence[Queue]) -> list[int | None]:
        """One statement for all of them, which takes a fifth of the time of one for each."""
        found = self.fetch("heads_of", names=as_json(queues))
        return [min((head for head in heads if head is not None), default=None) for _, *heads in sorted(found, key=_at)]

    def queue_numbers(self, queues: Sequence[Queue]) -> list[QueueNumbers]:
        """One statement for all of them, and more only for those in which jobs are due."""
        found = self.fetch("counts_of", names=as_json(queues), now=self.now)
        numbers: list[QueueNumbers] = []
        for queue, row in zip(queues, sorted(found, key=_at), strict=True):
            heads, (expired, damaged, *columns) = row[1:4], row[4:]
            queue_row = read_queue_row(queue, columns) if columns[0] else QueueRow()
            is_due = any(head is not None and head <= self.now for head in heads)
            due = self._count_between(queue_row, (0, self.now + 1), heads)[0] if is_due else 0
            numbers.append(QueueNumbers(queue_row, due, expired, damaged))
        return numbers

    def count_between(self, queue_row: QueueRow, edges: Sequence[int]) -> list[int]:
        return self._count_between(queue_row, edges, self.fetch_one("heads", queue=queue_row.id))

    def _count_between(self, queue_row: QueueRow, edges: Sequence[int], heads: Sequence[int | None]) -> list[int]:
        """The number of all jobs that wait is known. So the most crowded stretch of time need not be walked: it holds
        what is left when the others are counted. Mostly that is what is ready, or what is far away. A stretch that ends
        before the earliest job of a priority holds none.
        """
        if len(edges) > 2 and [*edges] != sorted(edges):
            return [self._count_between(queue_row, pair, heads)[0] for pair in pairwise(edges)]
        left = queue_row.jobs - queue_row.leased - queue_row.dead
        counts = [0] * (len(edges) + 1)
        bounds = [*pairwise((FIRST_INSTANT, *edges, BEYOND_INSTANTS))] if left else []
        present = [(int(priority), head) for priority, head in zip(PRIORITIES, heads, strict=True) if head is not None]
        stretches = [
            (at, first, last, priority)
            for at, (first, last) in enumerate(bounds)
            if first < last
            for priority, head in present
            if head < last
        ]
        limit = FIRST_COUNT
        while len(stretches) > 1:
            crowded: list[tuple[int, int, int, int]] = []
            for stretch in stretches:
                at, first, last, priority = stretch
                place = {"queue": queue_row.id, "priority": priority, "first": first, "last": last}
                (count,) = self.fetch_one("count_waiting", **place, limit=limit)
                if count == limit:
                    crowded.append(stretch)
                else:
                    counts[at] += count
                    left -= count
            stretches, limit = crowded, limit * COUNT_GROWTH
        for at, *_ in stretches:
            counts[at] += left
        return counts[1:-1]

    def insert_jobs(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Uses statements for a few fixed numbers of rows, so that each of them stays prepared."""
        rows = [row if len(row[-1]) <= INLINE_BYTES else (*row[:-1], self._insert_body(row[-1])) for row in rows]
        start = 0
        for size, insert in _INSERTS:
            while len(rows) - start >= size:
                self.connection.execute(insert, list(chain.from_iterable(rows[start : start + size])))
                start += size

    def _insert_body(self, body: bytes) -> int | None:
        return self.connection.execute(QUERIES["insert_body"], (body,)).lastrowid

    def move_jobs(self, queue_row: QueueRow, jobs: Sequence[JobRow]) -> None:
        rows = [{"queue": queue_row.id, **msgspec.structs.asdict(job)} for job in jobs]
        self.connection.executemany(QUERIES["move_job"], rows)

    def update_queue(self, queue_row: QueueRow) -> None:
        self.connection.execute(QUERIES["update_queue"], (*queue_row.columns(), queue_row.id))

    def write_queue(self, queue: Queue, queue_row: QueueRow, *, is_changed: bool) -> None:
        """One statement for both: the totals of the day are in the queue's row, which most steps change anyway."""
        happened = queue_row.happened
        if not happened:
            return self.update_queue(queue_row) if is_changed else None
        if queue_row.today != (day := self.now // DAY_MS):
            self.execute("close_days", ids=[queue_row.id])
            self.execute("begin_day", namespace=queue.namespace, name=queue.name, day=day)
        numbers = [happened.get(what, 0) for what in TOTALS]
        self.connection.execute(QUERIES["update_queue_and_today"], (*queue_row.columns(), *numbers, queue_row.id))
        return None

    def remove_queues(self, ids: Sequence[int]) -> None:
        self.execute("close_days", ids=ids)
        super().remove_queues(ids)

    def delete_totals(self, queue: Queue) -> None:
        super().delete_totals(queue)
        self.execute("begin_day", namespace=queue.namespace, name=queue.name, day=0)

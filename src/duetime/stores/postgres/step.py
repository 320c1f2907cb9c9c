"""A step on a connection to PostgreSQL: lists are passed as arrays, the queue's row is locked before anything else."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import psycopg

from duetime.clock import Clock
from duetime.job import Lease, Priority
from duetime.names import Queue
from duetime.stores.sql.rows import JobRow, Payload, QueueRow, ReadyRow
from duetime.stores.sql.step import Step


class PostgresStep(Step):
    """A `clock` replaces the server's clock."""

    def __init__(self, connection: "psycopg.Connection[Any]", queries: Mapping[str, str], clock: Clock | None) -> None:
        super().__init__()
        self._connection, self._queries, self._clock = connection, queries, clock
        self._now: int | None = None

    @property
    def now(self) -> int:
        if self._now is None:
            self._now = self._clock.now_ms() if self._clock else int(self.fetch_one("clock")[0])
        return self._now

    def fetch(self, query: str, **parameters: object) -> list[tuple[Any, ...]]:
        return self._run(query, parameters).fetchall()

    def fetch_one(self, query: str, **parameters: object) -> Any:
        return self._run(query, parameters).fetchone()

    def execute(self, query: str, **parameters: object) -> None:
        self.has_written = True
        self._run(query, parameters)

    def _run(self, query: str, parameters: Mapping[str, object]) -> "psycopg.Cursor[Any]":
        return self._connection.execute(self._queries[query], parameters, binary=True)  # pyright: ignore

    # --- locks

    def lock_queue(self, queue: Queue, *, create: bool) -> tuple[QueueRow, bool]:
        is_new = False
        while True:
            now, queue_id, *fields = self.fetch_one("lock_queue", namespace=queue.namespace, name=queue.name)
            self._now = self._clock.now_ms() if self._clock else now
            if queue_id is not None or not create:
                break
            # The reaper may remove an unused row between the two statements; then both run once more.
            is_new = bool(self.fetch("insert_queue", namespace=queue.namespace, name=queue.name))
            self.has_written = True
        line = QueueRow(queue_id, *fields) if queue_id is not None else QueueRow()
        if is_new:
            (line.floor,) = self.fetch_one("forgotten_floor")
        return line, is_new

    def new_queue_id(self) -> int:
        return self.fetch_one("new_queue_id")[0]

    def lock_name(self, queue: Queue) -> None:
        self.lock_queue(queue, create=True)

    def lock_registry(self) -> None:
        self.fetch_one("lock_registry")

    def lock_counter(self, name: str) -> None:
        while self.fetch_one("lock_counter", name=name) is None:
            self.execute("touch_counter", name=name)

    # --- many rows at once

    def ready_jobs(
        self, queue: Queue, line: QueueRow, priority: Priority, after: tuple[int, str], limit: int
    ) -> Sequence[ReadyRow]:
        place = {"queue": line.id, "priority": int(priority), "after_at": after[0], "after_id": after[1]}
        return [ReadyRow(*row) for row in self.fetch("ready_jobs", **place, now=self.now, limit=limit)]

    def payloads(self, line: QueueRow, ids: Sequence[str]) -> Mapping[str, Payload]:
        rows = self.fetch("get_payloads", queue=line.id, ids=list(ids))
        return {job_id: (body, attributes) for job_id, body, attributes in rows}

    def count_held(self, line: QueueRow, leases: Sequence[Lease]) -> int:
        ids, borns = [lease.id for lease in leases], [lease.born for lease in leases]
        attempts = [lease.attempt for lease in leases]
        return self.fetch_one("count_held", queue=line.id, ids=ids, borns=borns, attempts=attempts)[0]

    def insert_jobs(self, rows: Sequence[tuple[Any, ...]]) -> None:
        if not rows:
            return
        queues, ids, borns, priorities, due_ats, expires_ats, tries, attempts, attributes, bodies = map(
            list, zip(*rows, strict=True)
        )
        self.execute(
            "insert_jobs",
            queue=queues[0],
            ids=ids,
            borns=borns,
            priorities=priorities,
            due_ats=due_ats,
            expires_ats=expires_ats,
            tries=tries,
            attempts=attempts,
            sizes=[len(body) + len((text or "").encode()) for body, text in zip(bodies, attributes, strict=True)],
            attributes=attributes,
            bodies=bodies,
        )

    def move_jobs(self, line: QueueRow, jobs: Sequence[JobRow]) -> None:
        self.execute(
            "move_jobs",
            queue=line.id,
            ids=[job.id for job in jobs],
            places=[job.place for job in jobs],
            due_ats=[job.due_at for job in jobs],
            expires_ats=[job.expires_at for job in jobs],
            lease_untils=[job.lease_until for job in jobs],
            dead_ats=[job.dead_at for job in jobs],
            tries=[job.tries for job in jobs],
            used=[job.used for job in jobs],
            reasons=[job.reason for job in jobs],
            # PostgreSQL keeps no NUL in texts.
            errors=[job.error and job.error.replace("\0", "\N{REPLACEMENT CHARACTER}") for job in jobs],
        )

    def update_queue(self, line: QueueRow) -> None:
        fields = msgspec.structs.asdict(line)
        del fields["happened"]
        self.execute("update_queue", **fields)

    def heads(self, queues: Sequence[Queue]) -> list[int | None]:
        namespaces, names = [queue.namespace for queue in queues], [queue.name for queue in queues]
        return [due_at for (due_at,) in self.fetch("heads_of", namespaces=namespaces, names=names)]

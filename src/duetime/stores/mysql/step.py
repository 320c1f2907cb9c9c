"""A step on a connection to MariaDB or MySQL: lists become IN lists or JSON, the queue's row is locked first."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from pymysql.connections import Connection

from duetime.clock import Clock
from duetime.job import Lease, Priority
from duetime.names import Queue
from duetime.stores.sql.rows import JobRow, Payload, QueueRow, ReadyRow, as_json
from duetime.stores.sql.step import Step


class MysqlStep(Step):
    """A query of this dialect is one statement or several; its answer is that of the one that answers rows.

    A `clock` replaces the server's clock.
    """

    def __init__(
        self, connection: Connection, queries: Mapping[str, Sequence[str]], clock: Clock | None, max_body: int
    ) -> None:
        super().__init__()
        self._connection, self._queries, self._clock = connection, queries, clock
        self._now: int | None = None
        self.max_body = max_body

    @property
    def now(self) -> int:
        if self._now is None:
            self._now = self._clock.now_ms() if self._clock else int(self.fetch_one("clock")[0])
        return self._now

    def fetch(self, query: str, **parameters: object) -> list[tuple[Any, ...]]:
        answer: list[tuple[Any, ...]] = []
        self._run(query, parameters, answer)
        return answer

    def fetch_one(self, query: str, **parameters: object) -> Any:
        return next(iter(self.fetch(query, **parameters)), None)

    def execute(self, query: str, **parameters: object) -> None:
        self.has_written = True
        self._run(query, parameters, [])

    def _run(self, query: str, parameters: dict[str, object], answer: list[tuple[Any, ...]]) -> int:
        """Appends the rows to the answer; returns how many rows the last statement found or changed."""
        for name, value in parameters.items():
            if isinstance(value, list) and not value:
                parameters[name] = [None]  # SQL has no empty list, and nothing equals NULL
        changed = 0
        with self._connection.cursor() as cursor:
            for statement in self._queries[query]:
                changed = cursor.execute(statement, parameters)
                if cursor.description:
                    answer.extend(cursor.fetchall())
        return changed

    def _insert(self, query: str, rows: Sequence[Sequence[object]]) -> None:
        """The driver sends as many rows in a statement as fit into about a megabyte."""
        self.has_written = True
        (statement,) = self._queries[query]
        with self._connection.cursor() as cursor:
            cursor.executemany(statement, rows)

    # --- locks

    def lock_queue(self, queue: Queue, *, create: bool) -> tuple[QueueRow, bool]:
        is_new = False
        names = {"namespace": queue.namespace, "name": queue.name}
        while True:
            row = self.fetch_one("lock_queue", **names)
            if row is not None or not create:
                break
            # The reaper may remove an unused row between the two statements; then both run once more.
            self.has_written = True
            is_new = self._run("insert_queue", {"id": self.new_queue_id(), **names}, []) == 1
        if row is None:
            self._now = None
            return QueueRow(), False
        self._now = self._clock.now_ms() if self._clock else int(row[0])
        line = QueueRow(*row[1:])
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
        fences = [(lease.id, lease.born, lease.attempt) for lease in leases]
        ids = [lease.id for lease in leases]
        return self.fetch_one("count_held", queue=line.id, ids=ids, leases=fences)[0]

    def insert_jobs(self, rows: Sequence[tuple[Any, ...]]) -> None:
        if not rows:
            return
        jobs, bodies = list[tuple[object, ...]](), list[tuple[object, ...]]()
        for queue, job_id, born, priority, due_at, expires_at, tries, attempt, attributes, body in rows:
            size = len(body) + len((attributes or "").encode())
            times = (due_at, expires_at, 0, 0)
            jobs.append((queue, job_id, born, 0, priority, *times, tries, 0, attempt, size, "", ""))
            bodies.append((queue, job_id, attributes, body))
        self._insert("insert_jobs", jobs)
        self._insert("insert_bodies", bodies)

    def move_jobs(self, line: QueueRow, jobs: Sequence[JobRow]) -> None:
        self.execute("move_jobs", queue=line.id, jobs=as_json(jobs))

    def update_queue(self, line: QueueRow) -> None:
        fields = msgspec.structs.asdict(line)
        del fields["happened"]
        self.execute("update_queue", **fields)

    def heads(self, queues: Sequence[Queue]) -> list[int | None]:
        heads: list[int | None] = [None] * len(queues)
        for position, *by_priority in self.fetch("heads_of", queues=as_json(queues)):
            known = [cast("int", due_at) for due_at in by_priority if due_at is not None]
            heads[position - 1] = min(known, default=None)
        return heads

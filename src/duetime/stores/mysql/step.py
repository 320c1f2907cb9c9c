"""A step on a session with MariaDB or MySQL: lists become IN lists or JSON, the queue's row is locked first."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from duetime.model.clock import Clock
from duetime.model.job import Lease
from duetime.model.names import Queue
from duetime.stores.mysql.session import MysqlSession
from duetime.stores.sql.rows import QUEUE_COLUMNS, JobRow, QueueRow, as_json
from duetime.stores.sql.server_step import QueueIds, ServerStep
from duetime.stores.sql.step import QueueNumbers


class MysqlStep(ServerStep):
    def __init__(self, session: MysqlSession, ids: QueueIds, clock: Clock | None, max_body: int) -> None:
        super().__init__(session, ids, clock)
        self.max_body = max_body

    def _insert_queue(self, names: Mapping[str, object]) -> bool:
        return self.fetch("insert_queue", id=self.new_queue_id(), **names) == [(1,)]

    def insert_jobs(self, rows: Sequence[tuple[Any, ...]]) -> None:
        if not rows:
            return
        jobs, bodies = list[tuple[object, ...]](), list[tuple[object, ...]]()
        for queue, job_id, born, priority, due_at, expires_at, tries, attempt, attributes, body in rows:
            size = len(body) + len((attributes or "").encode())
            times = (due_at, expires_at, 0, 0)
            jobs.append((queue, job_id, born, 0, priority, *times, tries, 0, attempt, size, "", ""))
            bodies.append((queue, job_id, attributes, body))
        self.execute("insert_jobs", rows=jobs)
        self.execute("insert_bodies", rows=bodies)

    def move_jobs(self, queue_row: QueueRow, jobs: Sequence[JobRow]) -> None:
        self.execute("move_jobs", queue=queue_row.id, jobs=as_json(jobs))

    def heads(self, queues: Sequence[Queue]) -> list[int | None]:
        heads: list[int | None] = [None] * len(queues)
        for position, *by_priority in self.fetch("heads_of", **self._list_queues(queues)):
            known = [cast("int", due_at) for due_at in by_priority if due_at is not None]
            heads[position - 1] = min(known, default=None)
        return heads

    def queue_numbers(self, queues: Sequence[Queue]) -> list[QueueNumbers]:
        """Jobs are counted only in queues whose earliest job is due: one statement cannot count in many queues."""
        found = {row[0]: row[1:] for row in self.fetch("queues_of", **self._list_queues(queues))}
        size = len(QUEUE_COLUMNS)
        due = [at for at, row in found.items() if any(head is not None and head <= self.now for head in row[size:-1])]
        asked = [("count_due", {"queue": found[at][0], "now": self.now}) for at in due]
        counted = dict(zip(due, self._session.fetch(asked) if asked else [], strict=True))
        numbers = [QueueNumbers(QueueRow(), 0, 0, 0)] * len(queues)
        for at, row in found.items():
            [(count, expired)] = counted.get(at, [(0, 0)])
            numbers[at - 1] = QueueNumbers(QueueRow(*row[:size]), count, expired, row[-1])
        return numbers

    def _list_queues(self, queues: Sequence[Queue]) -> dict[str, object]:
        return {"queues": as_json(queues)}

    def _fences(self, leases: Sequence[Lease]) -> dict[str, object]:
        return {
            "ids": [lease.id for lease in leases],
            "leases": [(lease.id, lease.born, lease.attempt) for lease in leases],
        }

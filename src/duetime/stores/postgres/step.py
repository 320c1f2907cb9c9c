"""A step on a session with PostgreSQL: lists are passed as arrays, the queue's row is locked before anything else."""

from collections.abc import Mapping, Sequence
from typing import Any

from duetime.model.job import Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Reserved
from duetime.stores.postgres import single_statement
from duetime.stores.sql.rows import QUEUE_COLUMNS, JobRow, QueueRow
from duetime.stores.sql.server_step import ServerStep
from duetime.stores.sql.step import QueueNumbers


class PostgresStep(ServerStep):
    def fast_push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed] | None:
        return single_statement.push(self, queue, requests)

    def fast_reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved | None:
        return single_statement.reserve(self, queue, asks)

    def fast_ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved] | None:
        return single_statement.ack(self, queue, leases)

    def _insert_queue(self, names: Mapping[str, object]) -> bool:
        return bool(self.fetch("insert_queue", **names))

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
        )
        self.execute("insert_bodies", queue=queues[0], ids=ids, attributes=attributes, bodies=bodies)

    def move_jobs(self, queue_row: QueueRow, jobs: Sequence[JobRow]) -> None:
        self.execute(
            "move_jobs",
            queue=queue_row.id,
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

    def heads(self, queues: Sequence[Queue]) -> list[int | None]:
        return [due_at for (due_at,) in self.fetch("heads_of", **self._list_queues(queues))]

    def queue_numbers(self, queues: Sequence[Queue]) -> list[QueueNumbers]:
        found = {row[0]: row[1:] for row in self.fetch("counts_of", now=self.now, **self._list_queues(queues))}
        size = len(QUEUE_COLUMNS)
        empty = QueueNumbers(QueueRow(), 0, 0, 0)
        return [
            QueueNumbers(QueueRow(*found[at][:size]), *map(int, found[at][size:])) if at in found else empty
            for at in range(1, len(queues) + 1)
        ]

    def _list_queues(self, queues: Sequence[Queue]) -> dict[str, object]:
        return {"namespaces": [queue.namespace for queue in queues], "names": [queue.name for queue in queues]}

    def _fences(self, leases: Sequence[Lease]) -> dict[str, object]:
        return {
            "ids": [lease.id for lease in leases],
            "borns": [lease.born for lease in leases],
            "attempts": [lease.attempt for lease in leases],
        }

"""A step on a SQLite connection: lists are passed as JSON, and nothing is locked, because SQLite has one writer."""

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from duetime.job import Lease, Priority
from duetime.names import Queue
from duetime.stores.sql.queries import for_one_id, for_rows
from duetime.stores.sql.rows import (
    JobRow,
    Payload,
    QueueRow,
    ReadyRow,
    as_json,
    damaged_ready,
    payloads_by_id,
    ready_rows,
)
from duetime.stores.sql.step import TOTALS, Step, set_aside
from duetime.stores.sqlite.connection import QUERIES

_INSERTS = [(size, for_rows(QUERIES["insert_job"], size)) for size in (64, 16, 4, 1)]
_FOR_ONE_ID = {name: for_one_id(query) for name, query in QUERIES.items() if "json_each(:ids)" in query}
"""SQLite takes twice as long for a list of one id as for the id itself."""


class SqliteStep(Step):
    """Runs in the writer's transaction or on the reader's snapshot."""

    def __init__(self, connection: sqlite3.Connection, now: int) -> None:
        super().__init__()
        self.connection = connection
        self._now = now

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

    def lock_queue(self, queue: Queue, *, create: bool) -> tuple[QueueRow, bool]:
        line = self.load_queue(queue)
        if line.id or not create:
            return line, False
        line.id, line.floor = self.fetch_one("new_queue")
        self.execute("insert_queue", id=line.id, namespace=queue.namespace, name=queue.name)
        return line, True

    def new_queue_id(self) -> int:
        return self.fetch_one("new_queue")[0]

    def lock_name(self, queue: Queue) -> None:
        """Neither this nor the other locks have anything to do: no other transaction writes at the same time."""

    def lock_registry(self) -> None: ...

    def lock_counter(self, name: str) -> None: ...

    def ready_jobs(
        self, queue: Queue, line: QueueRow, priority: Priority, after: tuple[int, str], limit: int
    ) -> Sequence[ReadyRow]:
        place = {"queue": line.id, "priority": int(priority), "after_at": after[0], "after_id": after[1]}
        while True:
            (answer,) = self.fetch_one("ready_jobs", **place, now=self.now, limit=limit)
            try:
                return ready_rows(answer)
            except msgspec.ValidationError:
                if not (damaged := damaged_ready(answer)):
                    raise
                set_aside(self, queue, line, damaged)

    def payloads(self, line: QueueRow, ids: Sequence[str]) -> Mapping[str, Payload]:
        (answer,) = self.fetch_one("get_payloads", queue=line.id, ids=list(ids))
        return payloads_by_id(answer)

    def count_held(self, line: QueueRow, leases: Sequence[Lease]) -> int:
        if len(leases) == 1:
            fence = (line.id, leases[0].id, leases[0].born, leases[0].attempt)
            return self.connection.execute(QUERIES["is_held"], fence).fetchone()[0]
        fences = as_json([(lease.id, lease.born, lease.attempt) for lease in leases])
        return self.fetch_one("count_held", queue=line.id, leases=fences)[0]

    def insert_jobs(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Uses statements for a few fixed numbers of rows, so that each of them stays prepared."""
        start = 0
        for size, insert in _INSERTS:
            while len(rows) - start >= size:
                self.connection.execute(insert, list(chain.from_iterable(rows[start : start + size])))
                start += size

    def move_jobs(self, line: QueueRow, jobs: Sequence[JobRow]) -> None:
        rows = [{"queue": line.id, **msgspec.structs.asdict(job)} for job in jobs]
        self.connection.executemany(QUERIES["move_job"], rows)

    def update_queue(self, line: QueueRow) -> None:
        self.connection.execute(QUERIES["update_queue"], (*line.columns(), line.id))

    def add_to_totals(self, queue: Queue, day: int, happened: Mapping[str, int]) -> None:
        numbers = [happened.get(what, 0) for what in TOTALS]
        self.connection.execute(QUERIES["add_to_totals"], (queue.namespace, queue.name, day, *numbers))

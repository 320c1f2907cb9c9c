"""A step on a connection to PostgreSQL: lists are passed as arrays, the queue's row is locked before anything else."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import psycopg

from duetime.clock import Clock
from duetime.job import STEP_JOBS, Lease, Priority
from duetime.names import Queue
from duetime.stores.sql.rows import PRIORITIES, JobRow, Payload, QueueRow, ReadyRow
from duetime.stores.sql.step import Step

Parameters = Mapping[str, object]

_PARAMETER = re.compile(r"%\((\w+)\)")
_WRITES_JOBS = frozenset({"insert_jobs", "delete_jobs", "lease_jobs", "move_jobs"})
_WRITES_ELSEWHERE = frozenset({"update_queue", "add_to_totals", "get_payloads"})
_LAST = ("get_payloads", "insert_jobs", "delete_jobs")
"""An answer must come from the main statement, and a WITH clause that writes must stand in it."""


def is_mergeable(names: Sequence[str]) -> bool:
    """Whether these statements may run as one, which shows none of them what the others do."""
    different = set(names)
    return (
        len(different) == len(names)
        and different <= _WRITES_JOBS | _WRITES_ELSEWHERE
        and len(different & _WRITES_JOBS) <= 1
    )


class PostgresQueries:
    """The named statements of a store, and what several of them are as one statement."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._merged: dict[tuple[str, ...], str] = {}

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def merged(self, names: tuple[str, ...]) -> str:
        """One statement for several: all but one stand in its WITH clause. Each has its own numbered parameters."""
        if names not in self._merged:
            texts = {name: _PARAMETER.sub(rf"%(\1_{number})", self._texts[name]) for number, name in enumerate(names)}
            main = next((name for name in _LAST if name in texts), names[-1])
            own = texts.pop(main)
            parts = ", ".join(f"{name} AS ({text})" for name, text in texts.items())
            rest = f", {own.removeprefix('WITH ')}" if own.startswith("WITH ") else f" {own}"
            self._merged[names] = f"WITH {parts}{rest}"
        return self._merged[names]


class ReadAhead:
    """The first ready jobs of all priorities, read in one round trip: up to `size` of each."""

    def __init__(self, rows: Sequence[tuple[Any, ...]], size: int) -> None:
        self._left: dict[int, list[ReadyRow]] = {}
        for priority, *row in rows:
            self._left.setdefault(priority, []).append(ReadyRow(*row))
        self._all = {priority for priority in PRIORITIES if len(self._left.get(priority, ())) < size}

    def take(self, priority: Priority, limit: int) -> list[ReadyRow]:
        """The next ones that were not taken yet."""
        left = self._left.get(priority, [])
        self._left[priority] = left[limit:]
        return left[:limit]

    def is_all(self, priority: Priority) -> bool:
        """Whether no others were ready."""
        return priority in self._all


class PostgresStep(Step):
    """A `clock` replaces the server's clock."""

    def __init__(self, connection: "psycopg.Connection[Any]", queries: PostgresQueries, clock: Clock | None) -> None:
        super().__init__()
        self._connection, self._queries, self._clock = connection, queries, clock
        self._now: int | None = None
        self._later: list[tuple[str, Parameters]] = []
        self._ahead: ReadAhead | None = None

    @property
    def now(self) -> int:
        if self._now is None:
            self._now = self._clock.now_ms() if self._clock else int(self.fetch_one("clock")[0])
        return self._now

    def fetch(self, query: str, **parameters: object) -> list[tuple[Any, ...]]:
        return self._answer(query, parameters).fetchall()

    def fetch_one(self, query: str, **parameters: object) -> Any:
        return self._answer(query, parameters).fetchone()

    def execute(self, query: str, **parameters: object) -> None:
        self.has_written = True
        self._later.append((query, parameters))

    def finish(self) -> None:
        """One round trip for all that a verb writes, where that is possible."""
        if self._later:
            statements, self._later = self._later, []
            self._run_together(statements)

    def _answer(self, query: str, parameters: Parameters) -> "psycopg.Cursor[Any]":
        if query == "get_payloads" and [name for name, _ in self._later] == ["lease_jobs"]:
            # A lease does not touch the body.
            statements, self._later = [*self._later, (query, parameters)], []
            return self._run_together(statements)
        self.finish()
        return self._run(self._queries[query], parameters)

    def _run_together(self, statements: Sequence[tuple[str, Parameters]]) -> "psycopg.Cursor[Any]":
        """Run all, and answer the last one's cursor; in one statement if no two of them touch the same table."""
        names = [name for name, _ in statements]
        if len(statements) == 1 or not is_mergeable(names):
            for name, parameters in statements[:-1]:
                self._run(self._queries[name], parameters)
            name, parameters = statements[-1]
            return self._run(self._queries[name], parameters)
        text = self._queries.merged(tuple(names))
        numbered = (
            (f"{key}_{number}", value)
            for number, (_, parameters) in enumerate(statements)
            for key, value in parameters.items()
        )
        return self._run(text, dict(numbered))

    def _run(self, statement: str, parameters: Parameters) -> "psycopg.Cursor[Any]":
        return self._connection.execute(statement, parameters, binary=True)  # pyright: ignore

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
        if self._ahead is None:
            size = min(limit * 4, STEP_JOBS)
            rows = self.fetch("ready_ahead", queue=line.id, now=self.now, limit=size)
            self._ahead = ReadAhead(rows, size)
        found = self._ahead.take(priority, limit)
        if len(found) < limit and not self._ahead.is_all(priority):
            after = (found[-1].due_at, found[-1].id) if found else after
            place = {"queue": line.id, "priority": int(priority), "after_at": after[0], "after_id": after[1]}
            rows = self.fetch("ready_jobs", **place, now=self.now, limit=limit - len(found))
            found += [ReadyRow(*row) for row in rows]
        return found

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

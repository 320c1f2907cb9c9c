"""What sessions and steps on database servers share: few round trips, and the lock of a queue's row.

The reads that a verb needs are sent together with the lock. For that the id of the queue must be known before its row
is read: each process remembers the ids. If the id has changed, the answers are thrown away.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from duetime.model.clock import Clock
from duetime.model.job import STEP_JOBS, Lease, Priority
from duetime.model.names import Queue
from duetime.stores.sql.rows import PRIORITIES, Payload, QueueRow, ReadyRow
from duetime.stores.sql.step import Command, Step, StoredMark, earliest
from duetime.stores.sql.threads import NotCommitted, Session

STEP_S = 20.0
"""How long an answer of a step that writes is awaited. Such a step changes at most STEP_JOBS jobs."""
READING_S = 70.0
"""How long an answer of a step that only reads is awaited: longer than the server's own limit for a statement, which
then says what it was.
"""

Rows = list[tuple[Any, ...]]
_BEGIN: Command = ("begin", {})
_BEGIN_READING: Command = ("begin_reading", {})
_COMMIT: Command = ("commit", {})
_ROLLBACK: Command = ("rollback", {})


class ServerSession(Session):
    """A session on a database server that saves round trips.

    A statement without an answer is put off, and goes to the server together with the next one whose answer is waited
    for, or with the commit. So a step of six statements takes two or three round trips.
    """

    def __init__(self) -> None:
        super().__init__()
        self._later: list[Command] = []
        self.answer_s = STEP_S
        """How long an answer is awaited before the connection is given up."""
        self.failed_at: int | None = None
        """Which command of the last round trip the server refused; None if no command failed."""

    @property
    @abstractmethod
    def is_in_transaction(self) -> bool: ...

    @abstractmethod
    def _run(self, commands: Sequence[Command]) -> list[Rows]:
        """Run commands in one round trip, and answer the rows of each. After one that fails, none runs.

        Sets `failed_at` before it raises the error of a command.
        """

    def _check(self) -> None:
        """Raises the driver's error if the server is known to have ended the connection."""
        return

    def begin(self, *, read_only: bool) -> None:
        self.is_committing = False
        self.answer_s = READING_S if read_only else STEP_S
        self._later = [_BEGIN_READING if read_only else _BEGIN]

    def put_off(self, command: Command) -> None:
        self._later.append(command)

    def fetch(self, commands: Sequence[Command]) -> list[Rows]:
        """The answers of these commands, which run after those that were put off."""
        later, self._later = self._later, []
        return self._run([*later, *commands])[len(later) :]

    def commit(self) -> None:
        if self.is_in_transaction or len(self._later) > 1:
            self.fetch_and_commit(())
        else:
            self._later = []  # nothing but the begin was put off

    def fetch_and_commit(self, commands: Sequence[Command]) -> list[Rows]:
        """As `fetch` and `commit`, in one round trip."""
        if not self.is_in_transaction:
            self._check()
        later, self._later = self._later, []
        self.is_committing = True
        before = len(later) + len(commands)
        try:
            return self._run([*later, *commands, _COMMIT])[len(later) : before]
        except Exception as error:
            if self.failed_at is not None and self.failed_at < before:
                raise NotCommitted from error
            raise

    def rollback(self) -> None:
        self._later = []
        if self.is_in_transaction:
            self._run([_ROLLBACK])


MAX_QUEUES = 10_000
"""How many queues' ids a process remembers."""


class QueueIds:
    """The ids that queues had when they were last seen. Shared by the threads of a store."""

    def __init__(self) -> None:
        self._ids: dict[Queue, int] = {}

    def get(self, queue: Queue) -> int | None:
        return self._ids.get(queue)

    def note(self, queue: Queue, queue_id: int) -> None:
        if len(self._ids) >= MAX_QUEUES:
            self._ids = {}
        self._ids[queue] = queue_id


class ReadyAhead:
    """The first ready jobs of all priorities, read in one statement: up to `size` of each."""

    def __init__(self, rows: Rows, now: int, size: int) -> None:
        self._left: dict[int, list[ReadyRow]] = {}
        found = dict.fromkeys(map(int, PRIORITIES), 0)
        for priority, *row in rows:
            job = ReadyRow(*row)
            # The statement has read the clock a moment after the step did.
            if job.due_at <= now:
                self._left.setdefault(priority, []).append(job)
                found[priority] += 1
        self._all = {priority for priority, count in found.items() if count < size}

    def next(self, priority: Priority, limit: int) -> list[ReadyRow]:
        """The next ones, each once."""
        left = self._left.get(priority, [])
        self._left[priority] = left[limit:]
        return left[:limit]

    def is_all(self, priority: Priority) -> bool:
        """Returns whether no others were ready."""
        return priority in self._all


class ServerStep(Step):
    """A `clock` replaces the server's clock."""

    def __init__(self, session: ServerSession, ids: QueueIds, clock: Clock | None) -> None:
        self.wakes = []
        self._session, self._queue_ids, self._clock = session, ids, clock
        self._now: int | None = None
        self._has_written = False
        self._wanted: Sequence[Command] = ()
        self._answers: list[tuple[str, Mapping[str, object], Rows]] = []
        self._ready: ReadyAhead | None = None
        self._ready_size = STEP_JOBS

    @property
    def has_written(self) -> bool:
        return self._has_written

    @property
    def now(self) -> int:
        if self._now is None:
            self._now = self._clock.now_ms() if self._clock else int(self.fetch_one("clock")[0])
        return self._now

    def fetch(self, query: str, **parameters: object) -> Rows:
        for at, (name, asked, rows) in enumerate(self._answers):
            if name == query and asked == parameters:
                del self._answers[at]
                return rows
        return self._session.fetch([(query, parameters)])[0]

    def fetch_one(self, query: str, **parameters: object) -> Any:
        return next(iter(self.fetch(query, **parameters)), None)

    def execute(self, query: str, **parameters: object) -> None:
        self._has_written = True
        self._answers = []
        self._session.put_off((query, parameters))

    def run_in_one_round_trip(self, queue: Queue, commands: Sequence[Command]) -> list[Rows] | None:
        """Lock a queue, run commands and commit, all in one round trip. Returns None if that is not possible.

        The commands get the parameters `queue` and `now`. The transaction after that is a new one.
        """
        queue_id = self._queue_ids.get(queue)
        if queue_id is None or not self.is_alone:
            return None
        known: dict[str, object] = {"queue": queue_id, "now": self._clock.now_ms() if self._clock else None}
        sent = [("lock_queue_by_id", known), *((name, {**known, **given}) for name, given in commands)]
        answers = self._session.fetch_and_commit(sent)
        self._session.begin(read_only=False)
        return answers[1:]

    # --- locks

    def read_ahead(self, reads: Sequence[Command]) -> None:
        self._wanted = reads

    def lock_queue(self, queue: Queue, *, create: bool) -> tuple[QueueRow, bool]:
        names = {"namespace": queue.namespace, "name": queue.name}
        is_new, row = False, self._lock(queue, names)
        while row is None and create:
            # The reaper may remove an unused row between the two statements; then both run once more.
            self._has_written = True
            is_new = self._insert_queue(names)
            row = self._lock(queue, names)
        if row is None:
            return QueueRow(), False
        queue_row = QueueRow(*row)
        if is_new:
            (queue_row.floor,) = self.fetch_one("forgotten_floor")
        return queue_row, is_new

    def _lock(self, queue: Queue, names: Mapping[str, object]) -> Sequence[Any] | None:
        """The queue's row, or None. The same round trip reads what `read_ahead` has announced, after the lock."""
        queue_id = self._queue_ids.get(queue)
        reads = [(name, {"queue": queue_id, **given}) for name, given in self._wanted] if queue_id else []
        self._wanted = ()
        found, *answers = self._session.fetch([("lock_queue", names), *reads])
        now, *row = found[0] if found else (None, None)
        self._now = self._clock.now_ms() if self._clock else None if now is None else int(now)
        if row[0] is None:
            return None
        if row[0] == queue_id:
            self._answers = [(name, asked, rows) for (name, asked), rows in zip(reads, answers, strict=True)]
        else:
            self._queue_ids.note(queue, row[0])
        return row

    @abstractmethod
    def _insert_queue(self, names: Mapping[str, object]) -> bool:
        """Make a queue's row. Returns False if another process was faster."""

    def new_queue_id(self) -> int:
        return self.fetch_one("new_queue_id")[0]

    def lock_name(self, queue: Queue) -> None:
        self.lock_queue(queue, create=True)

    def lock_registry(self) -> None:
        self.fetch_one("lock_registry")

    def lock_counter(self, name: str) -> None:
        while self.fetch_one("lock_counter", name=name) is None:
            self.execute("touch_counter", name=name)

    # --- many rows

    def expect_push(self, queue: Queue, ids: Sequence[str], marks: Sequence[str]) -> None:
        reads: list[Command] = [("heads", {}), ("find_jobs", {"ids": ids})]
        if marks:
            reads.append(("get_marks", _marks_of(queue, marks)))
        self.read_ahead(reads)

    def find_marks(self, queue: Queue, names: Sequence[str]) -> dict[str, StoredMark]:
        rows = self.fetch("get_marks", **_marks_of(queue, names))
        return {name: (digest, answer) for name, digest, answer, expires_at in rows if expires_at > self.now}

    def expect_reserve(self, limit: int) -> None:
        self._ready_size = limit
        self.read_ahead([("ready_ahead", self._ready_parameters())])

    def _ready_parameters(self) -> dict[str, object]:
        """Without a `clock`, the statement reads the server's."""
        return {"now": self._clock.now_ms() if self._clock else None, "limit": self._ready_size}

    def ready_jobs(
        self, queue: Queue, queue_row: QueueRow, priority: Priority, after: tuple[int, str], limit: int
    ) -> Sequence[ReadyRow]:
        if self._ready is None:
            rows = self.fetch("ready_ahead", queue=queue_row.id, **self._ready_parameters())
            self._ready = ReadyAhead(rows, self.now, self._ready_size)
        found = self._ready.next(priority, limit)
        if len(found) < limit and not self._ready.is_all(priority):
            after = (found[-1].due_at, found[-1].id) if found else after
            place = {"queue": queue_row.id, "priority": int(priority), "after_at": after[0], "after_id": after[1]}
            rows = self.fetch("ready_jobs", **place, now=self.now, limit=limit - len(found))
            found += [ReadyRow(*row) for row in rows]
        return found

    def payloads(self, queue_row: QueueRow, ids: Sequence[str]) -> Mapping[str, Payload]:
        rows = self.fetch("get_payloads", queue=queue_row.id, ids=list(ids))
        return {job_id: (body, attributes) for job_id, body, attributes in rows}

    def payloads_and_head(self, queue_row: QueueRow, ids: Sequence[str]) -> tuple[Mapping[str, Payload], int | None]:
        reads: list[Command] = [
            ("get_payloads", {"queue": queue_row.id, "ids": list(ids)}),
            ("heads", {"queue": queue_row.id}),
        ]
        answers = self._session.fetch(reads)
        self._answers = [(name, asked, rows) for (name, asked), rows in zip(reads, answers, strict=True)]
        return self.payloads(queue_row, ids), earliest(self, queue_row)

    def totals_by_day(self, queues: Sequence[Queue]) -> list[Rows]:
        days: list[Rows] = [[] for _ in queues]
        for at, *numbers in self.fetch("totals_of", **self._list_queues(queues)):
            days[int(at) - 1].append(tuple(numbers))
        return days

    def expect_ack(self, leases: Sequence[Lease]) -> None:
        self.read_ahead([("count_held", self._fences(leases))])

    def count_held(self, queue_row: QueueRow, leases: Sequence[Lease]) -> int:
        return self.fetch_one("count_held", queue=queue_row.id, **self._fences(leases))[0]

    @abstractmethod
    def _fences(self, leases: Sequence[Lease]) -> dict[str, object]:
        """The parameters of `count_held`."""

    @abstractmethod
    def _list_queues(self, queues: Sequence[Queue]) -> dict[str, object]:
        """The parameters of a query about several queues."""

    def update_queue(self, queue_row: QueueRow) -> None:
        self.execute("update_queue", **queue_row.named_columns())


def _marks_of(queue: Queue, names: Sequence[str]) -> dict[str, object]:
    return {"namespace": queue.namespace, "queue": queue.name, "names": names}

"""Rows as the rules see them, and how they become the contract's types.

`QueueRow` and `JobRow` are one step's working copies: the rules change them, the dialect writes them back. Nothing here
knows a database.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, field

from duetime.model.errors import StoreDamaged
from duetime.model.job import Job, Priority, State
from duetime.model.names import Queue
from duetime.stores.base import IDLE_MS, QueueRules, RulesChange

log = logging.getLogger("duetime.stores")

WAITING, LEASED, DEAD, GONE = 0, 1, 2, -1
"""Places in the column `place`; GONE is never stored: the row is to be deleted."""
PLACE_NAMES = ("waiting", "leased", "dead")
NO_RULES = QueueRules()
PRIORITIES: tuple[Priority, ...] = tuple(Priority)

_decode_attributes = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode


class QueueRow(Struct):
    """A queue in one step; its fields are in the order of the columns. `id` is 0 until the queue has a row.

    `today` is the day whose totals are in the row itself; SQLite alone has it. `happened` is no column; it holds what
    the step adds to the queue's totals.
    """

    id: int = 0
    known: int = 0
    paused: int = 0
    strict: int = 0
    expired_to_dead: int = 0
    max_jobs: int = 0
    max_body: int = 0
    kept: int = 0
    offline: int = 0
    floor: int = 0
    last_born: int = 0
    expired: int = 0
    jobs: int = 0
    leased: int = 0
    dead: int = 0
    reap_at: int = 0
    today: int = 0
    happened: dict[str, int] = field(default_factory=dict[str, int])

    def count(self, what: str, by: int = 1) -> None:
        """`what` is a field of `job.Totals`."""
        self.happened[what] = self.happened.get(what, 0) + by

    def columns(self) -> tuple[int, ...]:
        """The values that verbs change, in the order of the columns."""
        return msgspec.structs.astuple(self)[1:-2]

    def named_columns(self) -> dict[str, int]:
        return dict(zip(QUEUE_COLUMNS, (self.id, *self.columns()), strict=True))

    def rules(self) -> QueueRules:
        return QueueRules(
            paused=bool(self.paused),
            strict=bool(self.strict),
            expired_to_dead=bool(self.expired_to_dead),
            max_jobs=self.max_jobs,
            max_body=self.max_body,
            kept=bool(self.kept),
            offline=bool(self.offline),
        )

    def change_rules(self, change: RulesChange) -> None:
        for name, value in msgspec.structs.asdict(change).items():
            if value is not UNSET:
                setattr(self, name, int(value))

    def idle_from(self) -> int:
        """When the queue is forgotten if nothing is pushed; 0 while it has jobs or rules, or is not known."""
        if self.jobs or not self.known or self.rules() != NO_RULES:
            return 0
        return self.last_born + IDLE_MS

    def reap_by(self, at: int) -> None:
        """Note that the reaper is needed at `at`, if it is not needed earlier."""
        if not 0 < self.reap_at <= at:
            self.reap_at = at

    def next_born(self, now: int, above: int) -> int:
        born = max(now, self.floor + 1, above + 1)
        if born > now:
            self.floor = max(self.floor, born)
        return born


def read_queue_row(queue: Queue, row: Sequence[Any]) -> QueueRow:
    """Raises StoreDamaged for a row with anything but numbers, which SQLite can hold."""
    if any(type(value) is not int for value in row):
        columns = dict(zip(QueueRow.__struct_fields__, row, strict=False))
        wrong = ", ".join(f"{name} {value!r}" for name, value in columns.items() if type(value) is not int)
        raise StoreDamaged(f"the row of the queue {queue} cannot be read: not a whole number: {wrong}")
    return QueueRow(*row)


QUEUE_COLUMNS = QueueRow.__struct_fields__[:-2]
"""The columns that every dialect has."""


class JobRow(Struct):
    """A job in one step: first the fields that are read, in the order of the columns, then those that moves write.

    An `error` of None keeps the one that is stored.
    """

    id: str
    born: int
    place: int
    priority: int
    due_at: int
    expires_at: int
    tries: int
    used: int
    attempt: int
    lease_until: int = 0
    dead_at: int = 0
    reason: str = ""
    error: str | None = None

    def expired(self, now: int) -> bool:
        return self.place == WAITING and 0 < self.expires_at < now


class ReadyRow(Struct, frozen=True, array_like=True):
    """A job that is due, without its payload; its fields are in the order of the query `ready_jobs`."""

    id: str
    born: int
    due_at: int
    expires_at: int
    tries: int
    used: int
    attempt: int
    error: str
    size: int

    def as_job(self, priority: Priority) -> JobRow:
        return JobRow(
            id=self.id,
            born=self.born,
            place=WAITING,
            priority=int(priority),
            due_at=self.due_at,
            expires_at=self.expires_at,
            tries=self.tries,
            used=self.used,
            attempt=self.attempt,
        )


ready_rows = msgspec.json.Decoder(list[ReadyRow]).decode
_hex_payloads = msgspec.json.Decoder(list[tuple[str, str, str | None]]).decode


def damaged_ready(answer: str) -> list[Any]:
    """The ids of rows of `ready_jobs` that cannot be read."""
    return [row[0] for row in msgspec.json.decode(answer) if not _is(row, ReadyRow)]


def _is(value: object, kind: type) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


Payload = tuple[bytes, str | None]
"""A body, and the attributes as JSON or None."""


def payloads_by_id(answer: str) -> dict[str, Payload]:
    """The answer of `get_payloads`, by id."""
    return {job_id: (bytes.fromhex(body), attributes) for job_id, body, attributes in _hex_payloads(answer)}


def attributes(stored: str | None) -> Mapping[str, str]:
    """A job whose attributes cannot be read is shown and delivered without them."""
    try:
        return _decode_attributes(stored) if stored else {}
    except msgspec.DecodeError as error:
        log.error("damaged_attributes_left_out", extra={"error": str(error)})
        return {}


def as_json(values: object) -> str:
    """JSON as text: a list for `json_each`, or attributes."""
    return _encode(values).decode()


def _state(place: int, due_at: int, now: int) -> State:
    match place:
        case 1:
            return State.LEASED
        case 2:
            return State.DEAD
        case _:
            return State.DELAYED if due_at > now else State.READY


def view(queue: Queue, row: tuple[Any, ...], now: int) -> Job | None:
    """The job in a row of `get_jobs`; None for a row that cannot be read."""
    job_id, born, place, priority, due_at, expires_at, lease_until, dead_at = row[:8]
    tries, used, attempt, reason, error, stored, body = row[8:]
    if any(type(value) is not int for value in row[1:11]) or priority not in PRIORITIES or type(body) is not bytes:
        return None
    return Job(
        queue=queue,
        id=job_id,
        born=born,
        state=_state(place, due_at, now),
        body=body,
        due_at=due_at,
        priority=Priority(priority),
        tries=tries,
        used=used,
        attempt=attempt,
        expires_at=expires_at,
        lease_until=lease_until,
        dead_at=dead_at,
        reason=reason,
        error=error,
        attributes=attributes(stored),
    )

"""The data types of a job: its fields, its states, and the events that can happen to it.

Frozen data without behaviour; `stores/base.py` defines the verbs. Only this file defines a job's fields.

Units are in the names: `*_at` is epoch milliseconds, `*_ms` a duration. Zero means "none" for `expires_at`, `ttl_ms`,
`lease_until` and `dead_at`, and "unlimited" for `tries`.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from enum import IntEnum, StrEnum
from typing import Any, TypeVar

from msgspec import Struct, field

from duetime.model.clock import MAX_DURATION, MAX_INSTANT
from duetime.model.errors import BodyTooLarge, InvalidRequest, InvalidTime
from duetime.model.names import Queue, check_attributes, check_id

T = TypeVar("T")

MAX_BODY = 1_048_576
MAX_ERROR = 4096
MAX_TRIES = 65_535
MAX_ATTEMPT = 4_294_967_295
DEFAULT_TRIES = 5
DEFAULT_TTR_MS = 60_000

STEP_JOBS = 500
"""A call ends after this many jobs ..."""
STEP_BYTES = 4 * 1_048_576
"""... or this many bytes of bodies and attributes."""

MAX_RESULT = 262_144
"""The largest result of a job that is kept, in bytes."""
DAY_MS = 86_400_000
MAX_RESULT_MS = 31 * DAY_MS
"""The longest time for which a result is kept."""
TOTAL_DAYS = 31
"""Number of UTC days, today included, for which a queue keeps daily totals."""

UNFENCED = "unfenced"
"""The reason of an ack by id alone."""


class State(StrEnum):
    """Acked jobs are deleted. Delayed and ready jobs are stored alike; only the clock distinguishes them."""

    DELAYED = "delayed"
    READY = "ready"
    LEASED = "leased"
    DEAD = "dead"


class Priority(IntEnum):
    """Which ready jobs are delivered first: in shares of 5 : 3 : 2, or strictly if the queue has the rule `strict`."""

    HIGH = 1
    NORMAL = 2
    LOW = 3


class Event(StrEnum):
    """What happened to a job, as in the journal. Add new events at the end: Redis scripts refer to them by position."""

    ACCEPTED = "accepted"
    KEPT = "kept"
    REPLACED = "replaced"
    DELIVERED = "delivered"
    GIVEN_BACK = "given_back"
    ACKED = "acked"
    RELEASED = "released"
    LEASE_EXPIRED = "lease_expired"
    DEAD = "dead"
    CANCELLED = "cancelled"
    RESCHEDULED = "rescheduled"
    EXPIRED = "expired"
    PURGED = "purged"
    DELETED = "deleted"
    RESPAWNED = "respawned"
    ADOPTED = "adopted"  # found in the store although no journal has its push; the journal has it from now on
    NOTIFIED = "notified"  # its callback was called, and answered or not
    HEARTBEAT = "heartbeat"  # of a node, not of a job; so is `closed`, a node's last event
    CLOSED = "closed"


class IfExists(StrEnum):
    """What a push does when its id is taken."""

    KEEP = "keep"
    REPLACE = "replace"
    ERROR = "error"


class Reason(StrEnum):
    """Why a job is dead."""

    TRIES = "tries"
    KILLED = "killed"
    EXPIRED = "expired"


class NewJob(Struct, frozen=True, gc=False):
    """A job as a producer pushes it. It is due at `due_at` if given, else `delay_ms` from the store's now.

    `born` and `attempt` are only for restoring a known job after a store was lost: the new incarnation keeps the old
    `born` and continues counting after `attempt`.
    """

    id: str
    body: bytes
    delay_ms: int = 0
    due_at: int | None = None
    ttl_ms: int = 0
    tries: int = DEFAULT_TRIES
    priority: Priority = Priority.NORMAL
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    born: int = 0
    attempt: int = 0

    def due(self, now: int) -> int:
        """Return when the job is due if it is pushed at `now`."""
        return now + self.delay_ms if self.due_at is None else self.due_at


class Lease(Struct, frozen=True, gc=False):
    """A consumer's hold on a job. Verbs on a lease work only while all four fields match: this is the fence."""

    queue: Queue
    id: str
    born: int
    attempt: int

    def acked(self) -> "Moved":
        """The answer to an ack of this lease."""
        return Moved(Event.ACKED, self.id, self.born, self.attempt)


class Delivery(Struct, frozen=True):
    """A leased job. `used` and `attempt` already count this delivery."""

    lease: Lease
    body: bytes
    due_at: int
    lease_until: int
    priority: Priority
    tries: int
    used: int
    expires_at: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    error: str = ""


class Job(Struct, frozen=True):
    """Everything that is known about a job, for inspection."""

    queue: Queue
    id: str
    born: int
    state: State
    body: bytes
    due_at: int
    priority: Priority
    tries: int
    used: int = 0
    attempt: int = 0
    expires_at: int = 0
    lease_until: int = 0
    dead_at: int = 0
    reason: str = ""
    error: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])


class Moved(Struct, frozen=True, gc=False, omit_defaults=True):
    """One thing that happened to one job.

    `due_at` is when the waiting job is due now (0 if it does not wait). `reason`: why it is dead; for kept, where the
    kept job is ("waiting", "leased", "dead"); for cancelled, "running" if a consumer held it; for acked, "unfenced" if
    its id alone named it; for accepted, "expired" if it took the place of an expired job. `was` is the born of the
    incarnation that this one took the place of.
    """

    event: Event
    id: str
    born: int
    attempt: int = 0
    due_at: int = 0
    reason: str = ""
    was: int = 0


class Counts(Struct, frozen=True):
    """Number of jobs in each state, exact at the instant `now`. `expired` is a running total; `damaged` counts entries
    that could not be read as jobs and were set aside. `cold` of all these jobs are in the cold tier of a tiered pool.
    """

    delayed: int = 0
    ready: int = 0
    leased: int = 0
    dead: int = 0
    expired: int = 0
    now: int = 0
    damaged: int = 0
    cold: int = 0

    @property
    def total(self) -> int:
        return self.delayed + self.ready + self.leased + self.dead


class Totals(Struct, frozen=True):
    """How often each kind of event happened to jobs of a queue; the numbers only grow.

    Each one counts events of the journal, so a job counts as often as the event happens to it:

    - `accepted`: jobs that a push brought in, also in the place of another one (replaced). A kept job, a refused
      push and one that a mark shows to be a repetition count nothing.
    - `delivered`: leases that were given. A delivery that is given back stays counted.
    - `acked`: jobs that a consumer finished, by lease or (unfenced) by id.
    - `released`, `lapsed`: leases after which the job waits again, because the consumer gave it up or its time ran
      out. A job that ends instead counts as dead or expired only.
    - `dead`: jobs that came to the dead letters: out of tries, killed, or expired in a queue that keeps those.
    - `cancelled`: jobs that were removed by id while they waited or were leased.
    - `expired`: jobs that their ttl ended for good, also those whose place a push took.
    - `respawned`: dead letters that were brought back.

    Giving back, extending, rescheduling, purging and deleting dead letters count nothing; nor does the end of a job
    that was replaced.
    """

    accepted: int = 0
    delivered: int = 0
    acked: int = 0
    released: int = 0
    lapsed: int = 0
    dead: int = 0
    cancelled: int = 0
    expired: int = 0
    respawned: int = 0


class QueueTotals(Struct, frozen=True):
    """A queue's totals since counting began, and for each of the last TOTAL_DAYS days (UTC, by the store's clock) that
    had any event.
    """

    running: Totals = Totals()
    days: Mapping[date, Totals] = field(default_factory=dict[date, Totals])


TRANSITIONS: Mapping[str, Mapping[str, str]] = {
    "push keep": {"waiting": "kept", "leased": "kept", "dead": "kept", "absent": "created"},
    "push replace": {"waiting": "replaced", "leased": "replaced", "dead": "replaced", "absent": "created"},
    "push error": {"waiting": "job_exists", "leased": "job_exists", "dead": "job_exists", "absent": "created"},
    "cancel": {"waiting": "removed", "leased": "removed", "dead": "removed", "absent": "not found"},
    "reschedule": {"waiting": "moved", "leased": "job_running", "dead": "job_dead", "absent": "not found"},
    "release": {"waiting": "lease_lost", "leased": "waits or dies", "dead": "lease_lost", "absent": "lease_lost"},
    "give_back": {"waiting": "lease_lost", "leased": "waits", "dead": "lease_lost", "absent": "lease_lost"},
    "kill": {"waiting": "lease_lost", "leased": "dies", "dead": "lease_lost", "absent": "lease_lost"},
    "extend": {"waiting": "lease_lost", "leased": "leased", "dead": "lease_lost", "absent": "lease_lost"},
    "ack": {"waiting": "lease_lost", "leased": "removed", "dead": "lease_lost", "absent": "gone"},
    "finish": {"waiting": "lease_lost", "leased": "removed", "dead": "lease_lost", "absent": "gone"},
    "respawn": {"waiting": "not found", "leased": "not found", "dead": "waits", "absent": "not found"},
    "lease runs out": {"leased": "waits or dies"},
}
"""For each verb and state of the job, what happens. "waiting" is delayed or ready; an expired job counts as absent."""


def payload_bytes(job: NewJob | Delivery | Job | None) -> int:
    """Size of body and attributes, which counts towards STEP_BYTES."""
    if job is None:
        return 0
    if not job.attributes:
        return len(job.body)
    return len(job.body) + sum([len(name.encode()) + len(value.encode()) for name, value in job.attributes.items()])


def within_step(items: Iterable[T], size: Callable[[T], int]) -> Iterator[T]:
    """The first items whose sizes add up to STEP_BYTES at most, and at least one item."""
    room = STEP_BYTES
    for place, item in enumerate(items):
        room -= size(item)
        if place and room < 0:
            return
        yield item


def chunks(
    items: Iterable[T],
    max_count: int = STEP_JOBS,
    *,
    size: Callable[[T], int] | None = None,
    count: Callable[[T], int] | None = None,
    key: Callable[[T], object] | None = None,
    distinct: Callable[[T], Iterable[Hashable]] | None = None,
) -> Iterator[list[T]]:
    """Cuts work into store calls of at most `max_count` jobs and STEP_BYTES bytes. An item is never split, so one that
    is larger than the bounds is a chunk by itself.

    `size` is the bytes of an item (default 0) and `count` its number of jobs (default 1). All items of a chunk have the
    same `key`, and none of them shares one of its `distinct` values with another.
    """
    chunk: list[T] = []
    jobs = weight = 0
    current: object = None
    seen: set[Hashable] = set()
    for item in items:
        more_jobs = count(item) if count else 1
        more_weight = size(item) if size else 0
        item_key = key(item) if key else None
        values: set[Hashable] = set(distinct(item)) if distinct else set()
        if chunk and (
            jobs + more_jobs > max_count
            or weight + more_weight > STEP_BYTES
            or item_key != current
            or (distinct and not seen.isdisjoint(values))
        ):
            yield chunk
            chunk, jobs, weight = [], 0, 0
            seen.clear()
        chunk.append(item)
        jobs, weight, current = jobs + more_jobs, weight + more_weight, item_key
        if distinct:
            seen |= values
    if chunk:
        yield chunk


def sum_counts(parts: Sequence[Counts]) -> Counts:
    """The counts of several queues, or of parts of one; `now` is the latest of them."""
    names = ("delayed", "ready", "leased", "dead", "expired", "damaged", "cold")
    sums = {name: sum(getattr(one, name) for one in parts) for name in names}
    return Counts(**sums, now=max((one.now for one in parts), default=0))


def utc_date(day: int) -> date:
    """The date of a day number of totals, which counts from the epoch."""
    return date(1970, 1, 1) + timedelta(day)


def broken_totals(running: Totals, *, jobs: int, leased: int, dead: int) -> Iterator[str]:
    """Describes each contradiction between a queue and its totals: a queue cannot hold more jobs than its totals say.
    It can hold fewer, because not every removal is counted.
    """
    brought = running.accepted - running.acked - running.cancelled - running.expired
    for what, held, at_most in (
        ("jobs", jobs, brought),
        ("leases", leased, running.delivered - running.released - running.lapsed),
        ("dead letters", dead, running.dead - running.respawned),
    ):
        if held > at_most:
            yield f"holds {held} {what}, but its totals leave {at_most}: {running}"


# --- checks before a job is stored: every store can write a job that passes

_HIGHEST, _LOWEST = int(min(Priority)), int(max(Priority))


def check_job(job: NewJob, *, max_body: int) -> None:
    check_id(job.id)
    if not isinstance(job.body, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(f"body of job {job.id!r} must be bytes, got {type(job.body).__name__}", id=job.id)
    if len(job.body) > max_body:
        raise BodyTooLarge(f"body of job {job.id!r} must have at most {max_body} bytes, got {len(job.body)}", id=job.id)
    if not _is_whole(job.tries, MAX_TRIES):
        raise InvalidRequest(f"tries must be a whole number from 0 to {MAX_TRIES}, got {job.tries!r}", id=job.id)
    if not _is_whole(job.delay_ms, MAX_DURATION) or not _is_whole(job.ttl_ms, MAX_DURATION):
        given = f"{job.delay_ms!r} and {job.ttl_ms!r}"
        raise InvalidTime(f"delay_ms and ttl_ms must be whole numbers from 0 to {MAX_DURATION}, got {given}", id=job.id)
    if job.due_at is not None and not _is_whole(job.due_at, MAX_INSTANT):
        raise InvalidTime(f"due_at must be a whole number from 0 to {MAX_INSTANT}, got {job.due_at!r}", id=job.id)
    if not isinstance(job.priority, int) or not _HIGHEST <= job.priority <= _LOWEST:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(f"priority must be 1, 2 or 3, got {job.priority!r}", id=job.id)
    if job.born or job.attempt:
        check_incarnation(job.born, job.attempt)
    if job.attributes:
        check_attributes(job.attributes)
        check_text(*job.attributes.values())


def check_tries(tries: Any, **fields: Any) -> int:
    """0 is unlimited."""
    return check_whole("tries", tries, 0, MAX_TRIES, **fields)


def check_whole(name: str, value: Any, least: int, most: int, **fields: Any) -> int:
    if not _is_whole(value, most) or value < least:
        raise InvalidRequest(f"{name} must be a whole number from {least} to {most}, got {value!r}", **fields)
    return value


def _is_whole(value: Any, most: int) -> bool:
    """Refuses booleans, which are numbers in Python: some drivers cannot write them."""
    return type(value) is int and 0 <= value <= most


def check_incarnation(born: int, attempt: int) -> None:
    if not _is_whole(born, MAX_INSTANT) or not _is_whole(attempt, MAX_ATTEMPT):
        most = f"born must be a whole number of at most {MAX_INSTANT} and attempt one of at most {MAX_ATTEMPT}"
        raise InvalidRequest(f"{most}, got {born!r} and {attempt!r}")


def check_text(*texts: str) -> None:
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"text must be valid Unicode, got {error.object!r}") from None

"""The rules by which jobs move, for every SQL dialect.

The rules do no I/O: they take a step's working copies of rows, change them and return what happened. `verbs.py` reads
the rows before and writes them back after, in the same transaction. `stores/base.py` is the contract that they keep.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from duetime.model.errors import (
    BodyTooLarge,
    DuetimeError,
    ExpiresBeforeDue,
    JobDead,
    JobExists,
    JobRunning,
    LeaseLost,
    QueueFull,
    TopicOffline,
)
from duetime.model.job import (
    STEP_BYTES,
    STEP_JOBS,
    UNFENCED,
    Delivery,
    Event,
    IfExists,
    Lease,
    Moved,
    NewJob,
    Priority,
    Reason,
)
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Withdrawal
from duetime.stores.sql.rows import (
    DEAD,
    GONE,
    LEASED,
    PLACE_NAMES,
    PRIORITIES,
    WAITING,
    JobRow,
    Payload,
    QueueRow,
    ReadyRow,
    as_json,
    attributes,
)


def holds(job: JobRow | None, lease: Lease) -> bool:
    """The fence: whether this lease still holds the job."""
    return job is not None and job.place == LEASED and job.born == lease.born and job.attempt == lease.attempt


# --- ways out of a place


def leave(queue_row: QueueRow, job: JobRow) -> None:
    """Take a job out of its place; the same step puts it into another one or ends it."""
    if job.place == LEASED:
        queue_row.leased -= 1
    elif job.place == DEAD:
        queue_row.dead -= 1
    job.lease_until = job.dead_at = 0
    job.reason = ""


def end(queue_row: QueueRow, job: JobRow) -> None:
    """End a job. The floor rises to its born, so that no later job gets that born, even if the clock steps back."""
    leave(queue_row, job)
    queue_row.jobs -= 1
    job.place = GONE
    queue_row.floor = max(queue_row.floor, job.born)


# --- ways into a place


def wait(queue_row: QueueRow, job: JobRow, due_at: int) -> None:
    job.place, job.due_at = WAITING, due_at
    if job.expires_at:
        queue_row.reap_by(job.expires_at + 1)


def hold(queue_row: QueueRow, job: JobRow, until: int) -> None:
    job.place, job.lease_until = LEASED, until
    queue_row.leased += 1
    queue_row.reap_by(until)


def die(queue_row: QueueRow, job: JobRow, now: int, reason: Reason) -> Moved:
    leave(queue_row, job)
    queue_row.dead += 1
    queue_row.count("dead")
    job.place, job.dead_at, job.reason, job.expires_at = DEAD, now, reason.value, 0
    return Moved(Event.DEAD, job.id, job.born, job.attempt, reason=reason.value)


def expire(queue_row: QueueRow, job: JobRow, now: int) -> Moved:
    """End a job by its ttl."""
    queue_row.expired += 1
    if queue_row.expired_to_dead:
        return die(queue_row, job, now, Reason.EXPIRED)
    end(queue_row, job)
    queue_row.count("expired")
    return Moved(Event.EXPIRED, job.id, job.born, job.attempt)


def wait_again(queue_row: QueueRow, job: JobRow, now: int, due_at: int, event: Event) -> Moved:
    """Let a leased job wait again, or end it: "tries" wins over "expired". A job that is given back regains its try."""
    if event is Event.GIVEN_BACK:
        job.used -= 1
    elif 0 < job.tries <= job.used:
        return die(queue_row, job, now, Reason.TRIES)
    if job.expires_at and max(now, due_at) > job.expires_at:
        return expire(queue_row, job, now)
    leave(queue_row, job)
    wait(queue_row, job, due_at)
    if event is not Event.GIVEN_BACK:
        queue_row.count("released" if event is Event.RELEASED else "lapsed")
    return Moved(event, job.id, job.born, job.attempt, due_at)


# --- ack


def ack(queue_row: QueueRow, job: JobRow | None, lease: Lease, now: int) -> Moved | LeaseLost | None:
    if job is None or job.place == GONE or job.expired(now):
        return None
    if not holds(job, lease):
        return LeaseLost.of(lease)
    end(queue_row, job)
    queue_row.count("acked")
    return Moved(Event.ACKED, job.id, job.born, job.attempt)


def ack_held(queue_row: QueueRow, leases: Sequence[Lease]) -> list[Moved]:
    """As `ack`, for different leases that are all known to be held."""
    queue_row.jobs -= len(leases)
    queue_row.leased -= len(leases)
    queue_row.count("acked", len(leases))
    queue_row.floor = max(queue_row.floor, *(lease.born for lease in leases))
    return [lease.acked() for lease in leases]


# --- verbs on ids


def cancel(queue_row: QueueRow, job: JobRow, now: int, *, finished: bool) -> Moved | None:
    if job.place == GONE or job.expired(now):
        return None
    event, reason = Event.CANCELLED, "running" if job.place == LEASED else ""
    if job.place == DEAD:
        event = Event.DELETED
    elif finished:
        event, reason = Event.ACKED, UNFENCED
    if event is not Event.DELETED:
        queue_row.count(event)
    end(queue_row, job)
    return Moved(event, job.id, job.born, job.attempt, reason=reason)


def withdraw(queue_row: QueueRow, job: JobRow, now: int, withdrawal: Withdrawal) -> Moved | None:
    due_at = job.due_at if job.place == WAITING else 0
    is_same = (job.born, due_at) == (withdrawal.born, withdrawal.due_at)
    if job.place in (GONE, LEASED) or job.expired(now) or not is_same:
        return None
    if withdrawal.reason is None:
        return cancel(queue_row, job, now, finished=False)
    if job.place == DEAD:
        return None
    job.error = withdrawal.error or None
    return die(queue_row, job, now, withdrawal.reason)


def reschedule(queue_row: QueueRow, job: JobRow, now: int, due_at: int) -> Moved | DuetimeError | None:
    if job.expired(now):
        return None
    if job.place == LEASED:
        return JobRunning.of(job.id)
    if job.place == DEAD:
        return JobDead.of(job.id)
    if job.expires_at and due_at > job.expires_at:
        return ExpiresBeforeDue.of(job.id)
    wait(queue_row, job, due_at)
    return Moved(Event.RESCHEDULED, job.id, job.born, job.attempt, due_at)


def respawn(queue_row: QueueRow, job: JobRow, now: int, expires_at: int, tries: int | None) -> Moved:
    leave(queue_row, job)
    job.used, job.error, job.expires_at = 0, "", expires_at
    if tries is not None:
        job.tries = tries
    wait(queue_row, job, now)
    queue_row.count("respawned")
    return Moved(Event.RESPAWNED, job.id, job.born, job.attempt, now)


# --- push


class PushPlan:
    """Decides the requests of one push call, one after the other; each sees what the ones before it did.

    `jobs` are the stored jobs with the ids of the call. The caller deletes `removed` from the store before it writes
    `inserted`, the parameters of `insert_job` by id. Without `capped` no limits hold: the jobs were accepted before.
    `largest` is the largest body that the database takes, 0 for no limit. `follow`: the jobs follow finished ones, so
    that `max_jobs` and `offline` do not hold.
    """

    def __init__(
        self,
        queue_row: QueueRow,
        jobs: dict[str, JobRow],
        now: int,
        *,
        capped: bool = True,
        largest: int = 0,
        follow: bool = False,
    ) -> None:
        self._queue_row, self._jobs, self._now = queue_row, jobs, now
        largest = min(filter(None, (queue_row.max_body, largest)), default=0)
        self._max_body, self._max_jobs = (largest, queue_row.max_jobs) if capped else (0, 0)
        self._offline = capped and queue_row.offline
        if follow:
            self._max_jobs = self._offline = 0
        self._stored = frozenset(jobs)
        self.inserted: dict[str, tuple[object, ...]] = {}
        self.removed: set[str] = set()
        self.earliest: int | None = None

    def accept(self, request: Push) -> Pushed:
        """Carry out a request that `refusal` did not refuse."""
        self._queue_row.known = 1
        return Pushed([self._add(new, request.if_exists) for new in request.jobs], self._now)

    def refusal(self, request: Push) -> DuetimeError | None:
        """Why the whole request is refused, if it is; nothing has been changed then."""
        max_body, max_jobs, now = self._max_body, self._max_jobs, self._now
        seen, held = set[str](), self._queue_row.jobs
        for new in request.jobs:
            if self._offline and not new.born:
                return TopicOffline.of_queue()
            if max_body and len(new.body) > max_body:
                return BodyTooLarge.of(new.id, len(new.body), max_body)
            if new.ttl_ms and new.due(now) > now + new.ttl_ms:
                return ExpiresBeforeDue.of(new.id)
            old = self._jobs.get(new.id)
            if request.if_exists is IfExists.ERROR and (new.id in seen or (old and not old.expired(now))):
                return JobExists.of(new.id)
            if max_jobs and old is None and new.id not in seen:
                held += 1
                if held > max_jobs:
                    return QueueFull.of(max_jobs)
            seen.add(new.id)
        return None

    def _add(self, new: NewJob, if_exists: IfExists) -> Moved:
        old = self._jobs.get(new.id)
        if old is None:
            return self._accept(new, Event.ACCEPTED)
        expired = old.expired(self._now)
        if not expired and if_exists is not IfExists.REPLACE:
            due_at = old.due_at if old.place == WAITING else 0
            return Moved(Event.KEPT, old.id, old.born, old.attempt, due_at, reason=PLACE_NAMES[old.place])
        end(self._queue_row, old)
        if new.id in self._stored:
            self.removed.add(new.id)
        if expired:
            self._queue_row.expired += 1
            self._queue_row.count("expired")
            return self._accept(new, Event.ACCEPTED, reason="expired", was=old.born)
        return self._accept(new, Event.REPLACED, was=old.born)

    def _accept(self, new: NewJob, event: Event, *, reason: str = "", was: int = 0) -> Moved:
        queue_row, now = self._queue_row, self._now
        born, due_at = new.born or queue_row.next_born(now, was), new.due(now)
        expires_at = now + new.ttl_ms if new.ttl_ms else 0
        job = JobRow(new.id, born, WAITING, int(new.priority), due_at, expires_at, new.tries, 0, new.attempt)
        queue_row.jobs += 1
        queue_row.count("accepted")
        queue_row.last_born = max(queue_row.last_born, born)
        if expires_at:
            queue_row.reap_by(expires_at + 1)
        if self.earliest is None or due_at < self.earliest:
            self.earliest = due_at
        self._jobs[new.id] = job
        packed = as_json(new.attributes) if new.attributes else None
        what = (queue_row.id, new.id, born, job.priority, due_at, expires_at, new.tries, new.attempt)
        self.inserted[new.id] = (*what, packed, new.body)
        return Moved(event, new.id, born, new.attempt, due_at, reason, was)


# --- reserve

ReadReady = Callable[[Priority, tuple[int, str], int], Sequence[ReadyRow]]
"""Reads at most that many ready jobs of a priority, in order, after the given (due_at, id)."""


class Pick(NamedTuple):
    """A job that is to be leased."""

    row: ReadyRow
    priority: Priority
    lease_until: int

    def delivery(self, queue: Queue, payload: Payload) -> Delivery:
        row, (body, packed) = self.row, payload
        return Delivery(
            Lease(queue, row.id, row.born, row.attempt + 1),
            body,
            due_at=row.due_at,
            lease_until=self.lease_until,
            priority=self.priority,
            tries=row.tries,
            used=row.used + 1,
            expires_at=row.expires_at,
            attributes=attributes(packed),
            error=row.error,
        )


class Picker:
    """Chooses the jobs for the asks of one reserve call, within the bounds of a step.

    Reads each priority in order and only as far as it is asked for. `expired` are the expired jobs that it met and
    ended; `ended` holds the events of these ends.
    """

    def __init__(self, queue_row: QueueRow, now: int, read: ReadReady) -> None:
        self._queue_row, self._now, self._read = queue_row, now, read
        self._after: dict[Priority, tuple[int, str]] = {}
        self._exhausted: set[Priority] = set()
        self._scans_left = STEP_JOBS
        self._bytes = 0
        self.expired: list[JobRow] = []
        self.ended: list[Moved] = []

    def serve(self, ask: Ask) -> list[Pick]:
        picks: list[Pick] = []
        if not self._queue_row.strict:
            for priority, quota in zip(PRIORITIES, ask.quotas, strict=True):
                self._pick_from(priority, min(quota, ask.limit - len(picks)), ask.ttr_ms, picks)
        for priority in PRIORITIES:
            self._pick_from(priority, ask.limit - len(picks), ask.ttr_ms, picks)
        return picks

    def _pick_from(self, priority: Priority, wanted: int, ttr_ms: int, picks: list[Pick]) -> None:
        goal = len(picks) + wanted
        while len(picks) < goal and self._scans_left and priority not in self._exhausted:
            limit = min(goal - len(picks), self._scans_left)
            rows = self._read(priority, self._after.get(priority, (-1, "")), limit)
            if len(rows) < limit:
                self._exhausted.add(priority)
            for row in rows:
                if self._may_lease(row, priority):
                    self._queue_row.leased += 1
                    self._queue_row.count("delivered")
                    self._queue_row.reap_by(self._now + ttr_ms)
                    picks.append(Pick(row, priority, self._now + ttr_ms))
            if rows:
                self._after[priority] = rows[-1].due_at, rows[-1].id

    def _may_lease(self, row: ReadyRow, priority: Priority) -> bool:
        """Returns whether a consumer gets this job. Ends it if it has expired."""
        if not self._scans_left:
            return False
        if 0 < row.expires_at < self._now:
            self._scans_left -= 1
            job = row.as_job(priority)
            self.ended.append(expire(self._queue_row, job, self._now))
            self.expired.append(job)
            return False
        if self._bytes and self._bytes + row.size > STEP_BYTES:
            self._scans_left = 0
            return False
        self._scans_left -= 1
        self._bytes += row.size
        return True


def next_visit(next_lapse: int | None, next_expiry: int | None) -> int:
    """When the reaper is next needed in a queue; 0 for never."""
    return min((at for at in (next_lapse, next_expiry and next_expiry + 1) if at), default=0)

"""One queue of the reference store: where its jobs are, and the rules by which they move.

These are plain functions and data, and nothing here awaits; `store.py` builds the contract's verbs from them.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from duetime.model.errors import (
    BodyTooLarge,
    DuetimeError,
    ExpiresBeforeDue,
    JobDead,
    JobExists,
    JobRunning,
    LeaseLost,
    MarkMismatch,
    QueueFull,
    TopicOffline,
)
from duetime.model.job import (
    DAY_MS,
    STEP_BYTES,
    STEP_JOBS,
    TOTAL_DAYS,
    UNFENCED,
    Counts,
    Delivery,
    Event,
    IfExists,
    Job,
    Lease,
    Moved,
    NewJob,
    Priority,
    QueueTotals,
    Reason,
    State,
    Totals,
    broken_totals,
    utc_date,
    within_step,
)
from duetime.model.names import Queue
from duetime.stores.base import IDLE_MS, Ask, Cursor, Push, Pushed, QueueRules, RulesChange, Withdrawal
from duetime.stores.finishes import Finish, Finished, JoinCount, KeptResult, following_jobs

WAITING, LEASED, DEAD = "waiting", "leased", "dead"

Index = list[tuple[int, str]]
"""(instant, id), kept sorted."""


@dataclass
class StoredJob:
    """A job as the store holds it. `place` says which index it is in, `sort_at` is its instant there."""

    id: str
    body: bytes
    born: int
    priority: Priority
    tries: int
    due_at: int
    expires_at: int
    attributes: Mapping[str, str]
    attempt: int = 0
    used: int = 0
    error: str = ""
    reason: str = ""
    place: str = WAITING
    sort_at: int = 0

    def expired(self, now: int) -> bool:
        return self.place == WAITING and 0 < self.expires_at < now


@dataclass
class MemoryQueue:
    """One queue: every job is in exactly one of `waiting`, `leases` and `dead`, and in `ttl` if it can expire."""

    jobs: dict[str, StoredJob] = field(default_factory=dict[str, StoredJob])
    waiting: dict[Priority, Index] = field(default_factory=lambda: {priority: [] for priority in Priority})
    ttl: Index = field(default_factory=list[tuple[int, str]])
    leases: Index = field(default_factory=list[tuple[int, str]])
    dead: Index = field(default_factory=list[tuple[int, str]])
    marks: dict[str, tuple[bytes, int, Pushed]] = field(default_factory=dict[str, tuple[bytes, int, Pushed]])
    results: dict[str, KeptResult] = field(default_factory=dict[str, KeptResult])
    joins: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """How many finishes have joined, and until when that is kept."""
    rules: QueueRules = field(default_factory=QueueRules)
    floor: int = 0
    used_at: int = 0
    held_at: int = 0
    expired: int = 0
    totals: dict[int, Counter[str]] = field(default_factory=dict[int, Counter[str]])
    """By UTC day, counted from the epoch; day 0 holds the sum of the days that are no longer kept one by one."""
    known: bool = False

    def count(self, what: str, now: int, by: int = 1) -> None:
        day = now // DAY_MS
        if day not in self.totals:
            self.totals[day] = Counter()
        self.totals[day][what] += by

    def is_idle(self, now: int) -> bool:
        """Returns whether the reaper may forget the queue."""
        unused = max(self.used_at, self.held_at) + IDLE_MS <= now
        return unused and not self.jobs and self.rules == QueueRules()

    def note_use(self, now: int) -> None:
        """Called before each verb. The verb that ends the last job is the last one that finds jobs here, so `held_at`
        is then the time at which the queue became empty.
        """
        if self.jobs:
            self.held_at = now
        else:
            self.used_at = max(self.used_at, self.held_at)

    def earliest(self) -> int | None:
        return min([index[0][0] for index in self.waiting.values() if index], default=None)

    def index_of(self, job: StoredJob) -> Index:
        match job.place:
            case "leased":
                return self.leases
            case "dead":
                return self.dead
            case _:
                return self.waiting[job.priority]

    def put(self, job: StoredJob, place: str, sort_at: int) -> None:
        job.place, job.sort_at = place, sort_at
        self.jobs[job.id] = job
        insort(self.index_of(job), (sort_at, job.id))
        if place == WAITING and job.expires_at:
            insort(self.ttl, (job.expires_at, job.id))

    def remove_from_place(self, job: StoredJob) -> None:
        """Take a job out of its place; the same step must put it into another one or forget it."""
        _remove(self.index_of(job), (job.sort_at, job.id))
        if job.place == WAITING and job.expires_at:
            _remove(self.ttl, (job.expires_at, job.id))

    def forget(self, job: StoredJob) -> None:
        """End a job that is out of its place. The floor rises to its born, so that no later job gets that born, even
        if the clock steps back.
        """
        del self.jobs[job.id]
        self.floor = max(self.floor, job.born)

    def end(self, job: StoredJob) -> None:
        self.remove_from_place(job)
        self.forget(job)

    def next_born(self, now: int, above: int = 0) -> int:
        born = max(now, self.floor + 1, above + 1)
        if born > now:
            self.floor = max(self.floor, born)
        return born

    def wait(self, job: StoredJob, due_at: int) -> None:
        job.due_at = due_at
        self.put(job, WAITING, due_at)

    def die(self, job: StoredJob, now: int, reason: Reason) -> Moved:
        """Put a job among the dead letters; it must be out of its place."""
        job.expires_at = 0
        job.reason = reason.value
        self.put(job, DEAD, now)
        self.count("dead", now)
        return Moved(Event.DEAD, job.id, job.born, job.attempt, reason=reason.value)

    def expire(self, job: StoredJob, now: int) -> Moved:
        """End a job by its ttl; it must be out of its place."""
        self.expired += 1
        if self.rules.expired_to_dead:
            return self.die(job, now, Reason.EXPIRED)
        self.forget(job)
        self.count("expired", now)
        return Moved(Event.EXPIRED, job.id, job.born, job.attempt)

    def back_to_waiting(self, job: StoredJob, now: int, due_at: int, event: Event) -> Moved:
        """Let a job that was leased wait again, or end it; it must be out of its place."""
        if event is not Event.GIVEN_BACK and 0 < job.tries <= job.used:
            return self.die(job, now, Reason.TRIES)
        if job.expires_at and max(now, due_at) > job.expires_at:
            return self.expire(job, now)
        self.wait(job, due_at)
        if event is not Event.GIVEN_BACK:
            self.count("released" if event is Event.RELEASED else "lapsed", now)
        return Moved(event, job.id, job.born, job.attempt, due_at)


def holds(job: StoredJob, lease: Lease) -> bool:
    """The fence: whether this lease still holds the job."""
    return job.place == LEASED and (job.born, job.attempt) == (lease.born, lease.attempt)


def _remove(index: Index, entry: tuple[int, str]) -> None:
    del index[bisect_left(index, entry)]


class MemoryPicker:
    """Serves the asks of one reserve call, within the bounds of a step."""

    def __init__(self, queue: Queue, stored: MemoryQueue, now: int) -> None:
        self._queue, self._stored, self._now = queue, stored, now
        self._scans_left = STEP_JOBS
        self._bytes = 0
        self.expired: list[Moved] = []

    def serve(self, ask: Ask) -> list[Delivery]:
        deliveries: list[Delivery] = []
        quotas = (0, 0, 0) if self._stored.rules.strict else ask.quotas
        for priority, quota in [*zip(Priority, quotas, strict=True), *((priority, ask.limit) for priority in Priority)]:
            wanted = min(quota, ask.limit - len(deliveries))
            while wanted > 0 and (delivery := self._next(priority, ask.ttr_ms)):
                deliveries.append(delivery)
                wanted -= 1
        return deliveries

    def _next(self, priority: Priority, ttr_ms: int) -> Delivery | None:
        index = self._stored.waiting[priority]
        while index and index[0][0] <= self._now and self._scans_left:
            job = self._stored.jobs[index[0][1]]
            if job.expired(self._now):
                self._scans_left -= 1
                self._stored.remove_from_place(job)
                self.expired.append(self._stored.expire(job, self._now))
                continue
            size = len(job.body) + sum(len(name.encode()) + len(text.encode()) for name, text in job.attributes.items())
            if self._bytes and self._bytes + size > STEP_BYTES:
                self._scans_left = 0
                return None
            self._scans_left -= 1
            self._bytes += size
            return self._lease(job, ttr_ms)
        return None

    def _lease(self, job: StoredJob, ttr_ms: int) -> Delivery:
        self._stored.remove_from_place(job)
        job.attempt += 1
        job.used += 1
        self._stored.put(job, LEASED, self._now + ttr_ms)
        self._stored.count("delivered", self._now)
        return Delivery(
            Lease(self._queue, job.id, job.born, job.attempt),
            job.body,
            due_at=job.due_at,
            lease_until=job.sort_at,
            priority=job.priority,
            tries=job.tries,
            used=job.used,
            expires_at=job.expires_at,
            attributes=job.attributes,
            error=job.error,
        )


def push(stored: MemoryQueue, request: Push, now: int) -> Pushed | DuetimeError:
    mark = request.mark
    if mark and (made := stored.marks.get(mark.name)) and made[1] > now:
        digest, _, answer = made
        if digest != mark.digest:
            return MarkMismatch.of(mark.name)
        return msgspec.structs.replace(answer, now=now, repeated=True)
    if refused := refusal(stored, request, stored.rules, now):
        return refused
    stored.known = True
    moved = [add(stored, job, request.if_exists, now) for job in request.jobs]
    pushed = Pushed(moved, now)
    if added := sum([one.event is not Event.KEPT for one in moved]):
        stored.count("accepted", now, added)
    if mark:
        stored.marks[mark.name] = (mark.digest, now + mark.life_ms, pushed)
    return pushed


def refusal(stored: MemoryQueue, request: Push, rules: QueueRules, now: int) -> DuetimeError | None:
    """Why the whole request is refused by these rules, if it is; nothing has been changed then."""
    seen, held = set[str](), len(stored.jobs)
    for job in request.jobs:
        if rules.offline and not job.born:
            return TopicOffline.of_queue()
        if rules.max_body and len(job.body) > rules.max_body:
            return BodyTooLarge.of(job.id, len(job.body), rules.max_body)
        if job.ttl_ms and job.due(now) > now + job.ttl_ms:
            return ExpiresBeforeDue.of(job.id)
        old = stored.jobs.get(job.id)
        there = job.id in seen or (old is not None and not old.expired(now))
        if there and request.if_exists is IfExists.ERROR:
            return JobExists.of(job.id)
        if job.id not in seen and old is None:
            held += 1
            if rules.max_jobs and held > rules.max_jobs:
                return QueueFull.of(rules.max_jobs)
        seen.add(job.id)
    return None


def add(stored: MemoryQueue, new: NewJob, if_exists: IfExists, now: int) -> Moved:
    old = stored.jobs.get(new.id)
    expired = old is not None and old.expired(now)
    if old and not expired and if_exists is not IfExists.REPLACE:
        due_at = old.due_at if old.place == WAITING else 0
        return Moved(Event.KEPT, old.id, old.born, old.attempt, due_at, reason=old.place)
    was = old.born if old else 0
    if old:
        stored.end(old)
    if expired:
        stored.expired += 1
        stored.count("expired", now)
    born = new.born or stored.next_born(now, above=was)
    job = StoredJob(
        id=new.id,
        body=new.body,
        born=born,
        priority=new.priority,
        tries=new.tries,
        due_at=0,
        expires_at=now + new.ttl_ms if new.ttl_ms else 0,
        attributes=new.attributes,
        attempt=new.attempt,
    )
    stored.used_at = max(stored.used_at, born)
    stored.wait(job, new.due(now))
    event = Event.REPLACED if old and not expired else Event.ACCEPTED
    return Moved(event, job.id, born, job.attempt, job.due_at, reason="expired" if expired else "", was=was)


def withdraw(stored: MemoryQueue, withdrawal: Withdrawal, now: int) -> Moved | None:
    job = stored.jobs.get(withdrawal.id)
    if job is None or job.place == LEASED or job.born != withdrawal.born or job.expired(now):
        return None
    if withdrawal.due_at != (job.due_at if job.place == WAITING else 0):
        return None
    if withdrawal.reason is None:
        return cancel(stored, job.id, now, finished=False)
    if job.place == DEAD:
        return None
    stored.remove_from_place(job)
    job.error = withdrawal.error or job.error
    return stored.die(job, now, withdrawal.reason)


def cancel(stored: MemoryQueue, job_id: str, now: int, *, finished: bool) -> Moved | None:
    job = stored.jobs.get(job_id)
    if job is None or job.expired(now):
        return None
    stored.end(job)
    if job.place == DEAD:
        return Moved(Event.DELETED, job.id, job.born, job.attempt)
    event = Event.ACKED if finished else Event.CANCELLED
    stored.count(event, now)
    if finished:
        return Moved(event, job.id, job.born, job.attempt, reason=UNFENCED)
    return Moved(event, job.id, job.born, job.attempt, reason="running" if job.place == LEASED else "")


def reschedule(stored: MemoryQueue, job_id: str, now: int, due_at: int) -> Moved | DuetimeError | None:
    job = stored.jobs.get(job_id)
    if job is None or job.expired(now):
        return None
    if job.place == LEASED:
        return JobRunning.of(job_id)
    if job.place == DEAD:
        return JobDead.of(job_id)
    if job.expires_at and due_at > job.expires_at:
        return ExpiresBeforeDue.of(job_id)
    stored.remove_from_place(job)
    stored.wait(job, due_at)
    return Moved(Event.RESCHEDULED, job.id, job.born, job.attempt, due_at)


def reap(stored: MemoryQueue, now: int, limit: int) -> Iterator[Moved]:
    lapsed = [stored.jobs[job_id] for until, job_id in stored.leases[:limit] if until <= now]
    for job in lapsed:
        stored.remove_from_place(job)
        yield stored.back_to_waiting(job, now, now, Event.LEASE_EXPIRED)
    for job in [
        stored.jobs[job_id] for _, job_id in stored.ttl[: limit - len(lapsed)] if stored.jobs[job_id].expired(now)
    ]:
        stored.remove_from_place(job)
        yield stored.expire(job, now)


def counts(stored: MemoryQueue, now: int) -> Counts:
    due = sum(bisect_left(index, (now + 1, "")) for index in stored.waiting.values())
    waiting = sum(len(index) for index in stored.waiting.values())
    gone = bisect_left(stored.ttl, (now, ""))  # expired, and not ended yet
    return Counts(
        delayed=waiting - due,
        ready=due - gone,
        leased=len(stored.leases),
        dead=len(stored.dead) + (gone if stored.rules.expired_to_dead else 0),
        expired=stored.expired + gone,
        now=now,
    )


def totals(stored: MemoryQueue, now: int) -> QueueTotals:
    first = now // DAY_MS - TOTAL_DAYS + 1
    for day in [day for day in stored.totals if 0 < day < first]:
        stored.totals.setdefault(0, Counter()).update(stored.totals.pop(day))
    running = sum(stored.totals.values(), Counter[str]())
    days = {utc_date(day): Totals(**counted) for day, counted in sorted(stored.totals.items()) if day}
    return QueueTotals(Totals(**running), days)


def places(stored: MemoryQueue, state: State, now: int, *, expired: bool = False) -> Iterable[Cursor]:
    """The places of the jobs in a state. `expired` includes expired jobs."""
    match state:
        case State.LEASED:
            return [Cursor(0, *entry) for entry in stored.leases]
        case State.DEAD:
            return [Cursor(0, *entry) for entry in stored.dead]
        case State.DELAYED:
            return [Cursor(0, *entry) for index in stored.waiting.values() for entry in index if entry[0] > now]
        case State.READY:
            ready = [
                Cursor(int(priority), *key)
                for priority, index in stored.waiting.items()
                for key in index
                if key[0] <= now
            ]
            return [key for key in ready if expired or not stored.jobs[key.id].expired(now)]


def view(queue: Queue, job: StoredJob, now: int) -> Job:
    match job.place:
        case "leased":
            state = State.LEASED
        case "dead":
            state = State.DEAD
        case _:
            state = State.DELAYED if job.due_at > now else State.READY
    return Job(
        queue=queue,
        id=job.id,
        born=job.born,
        state=state,
        body=job.body,
        due_at=job.due_at,
        priority=job.priority,
        tries=job.tries,
        used=job.used,
        attempt=job.attempt,
        expires_at=job.expires_at,
        lease_until=job.sort_at if state is State.LEASED else 0,
        dead_at=job.sort_at if state is State.DEAD else 0,
        reason=job.reason,
        error=job.error,
        attributes=job.attributes,
    )


def set_fields(change: RulesChange) -> dict[str, int | bool]:
    fields = msgspec.structs.asdict(change)
    return {name: value for name, value in fields.items() if value is not msgspec.UNSET}


def check(queue: Queue, stored: MemoryQueue) -> Iterator[str]:
    indexes = [(WAITING, index) for index in stored.waiting.values()] + [(LEASED, stored.leases), (DEAD, stored.dead)]
    placed = [(job_id, place, at) for place, index in indexes for at, job_id in index]
    if sorted(job_id for job_id, _, _ in placed) != sorted(stored.jobs):
        yield f"{queue}: the indexes and the jobs do not name the same ids"
    for job_id, place, at in placed:
        job = stored.jobs.get(job_id)
        if job is None or (job.place, job.sort_at) != (place, at):
            yield f"{queue}: {job_id!r} is under {place} at {at}, but is {job}"
    for _, index in [*indexes, ("ttl", stored.ttl)]:
        if index != sorted(index):
            yield f"{queue}: an index is out of order"
    lasting = sorted(
        (job.expires_at, job.id) for job in stored.jobs.values() if job.place == WAITING and job.expires_at
    )
    if lasting != stored.ttl:
        yield f"{queue}: the ttl index does not match the waiting jobs"
    running = Totals(**sum(stored.totals.values(), Counter[str]()))
    for problem in broken_totals(running, jobs=len(stored.jobs), leased=len(stored.leases), dead=len(stored.dead)):
        yield f"{queue}: {problem}"


# --- finish


def finish(stored: MemoryQueue, one: Finish, now: int) -> Finished | DuetimeError | None:
    lease, job = one.lease, stored.jobs.get(one.lease.id)
    if job is None or job.expired(now):
        return None
    if not holds(job, lease):
        return LeaseLost.of(lease)
    rules = msgspec.structs.replace(stored.rules, max_jobs=0, offline=False)
    joined = _joined(stored, one, now)
    jobs = following_jobs(one, joined)
    if refused := refusal(stored, Push(jobs), rules, now):
        return refused
    if one.join and joined != one.join.of:
        stored.joins[one.join.name] = joined, now + one.join.life_ms
    elif one.join:
        stored.joins.pop(one.join.name, None)
    stored.end(job)
    stored.count("acked", now)
    then = [add(stored, new, IfExists.KEEP, now) for new in jobs]
    if added := sum([moved.event is not Event.KEPT for moved in then]):
        stored.known = True
        stored.count("accepted", now, added)
    if one.result is not None and one.result_ttl_ms:
        stored.results[job.id] = KeptResult(job.id, job.born, one.result, now + one.result_ttl_ms)
    return Finished(Moved(Event.ACKED, job.id, job.born, job.attempt), then, now, joined)


def _joined(stored: MemoryQueue, one: Finish, now: int) -> int:
    """How many finishes the join has seen with this one; 0 without a join."""
    if one.join is None:
        return 0
    count, until = stored.joins.get(one.join.name, (0, 0))
    return count + 1 if until > now else 1


def results(stored: MemoryQueue, ids: Sequence[str], now: int) -> list[KeptResult | None]:
    kept = [stored.results.get(job_id) for job_id in ids[:STEP_JOBS]]
    live = [one if one and one.kept_until > now else None for one in kept]
    return list(within_step(live, lambda one: len(one.result) if one else 0))


def joins(stored: MemoryQueue, after: str, now: int) -> list[JoinCount]:
    counting = sorted((name, *kept) for name, kept in stored.joins.items() if name > after and kept[1] > now)
    return [JoinCount(name, count, until - now) for name, count, until in counting[:STEP_JOBS]]


def raise_join(stored: MemoryQueue, join: JoinCount, now: int) -> None:
    count, until = stored.joins.get(join.name, (0, 0))
    count = count if until > now else 0
    stored.joins[join.name] = max(count, join.count), max(until, now + join.left_ms)


def forget_results(stored: MemoryQueue, now: int) -> None:
    stored.joins = {name: (count, until) for name, (count, until) in stored.joins.items() if until > now}
    stored.results = {job_id: kept for job_id, kept in stored.results.items() if kept.kept_until > now}

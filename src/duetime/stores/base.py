"""The store contract: everything that can be done to jobs, and nothing else.

A store keeps jobs in places (waiting, leased, dead) and moves them in atomic steps. The engine has validated names,
ids and sizes; the store decides only what must be decided in the same step: existence, the fence, time, the queue's
own rules. The test suite in tests/contract runs on every implementation.

What holds for all verbs:

- *Clock.* The store's own clock decides. Delays, ttl and ttr come in as durations and become instants there. A store
  that was opened with a `clock` takes the time from that one instead; tests set the time this way.
- *Expired* means now > expires_at while waiting. An expired job counts as absent for every verb that names an id and
  is never delivered, even before the reaper has ended it. A push or a reserve that meets one ends it and reports it.
- *Fence.* A verb on a lease works while queue, id, born and attempt match a leased job. A lease whose time ran out
  is held until the reaper takes it back.
- *born* is the store's now at a push, raised above the queue's floor: born = max(now, floor + 1). The floor rises to
  the born of every incarnation that ends, to a born that was set above now, and to now at a purge. So no two
  incarnations of an id ever share a born, also within one millisecond and after the clock stepped back. A replacement
  is born above what it replaces. When a queue is forgotten, the store keeps its floor, and that may raise the first
  borns of other new queues.
- *Ends.* A job that is out of tries and expired ends by "tries", so that it is never dropped silently.
- *Order.* Within a priority: due_at, then id (by code point).
- *Wakes.* Every step that lets a job wait announces (queue, due_at) if that job is now the queue's earliest; so does
  a resume.
- *Errors.* StoreUnavailable when the store cannot be reached (its `outcome_unknown` says whether the call may have
  taken effect), StoreFull when only room is missing, StoreDamaged for foreign data under our keys. A call that
  carries several requests answers each on its own, with an error as a value; one bad request never fails its
  neighbours.
- *Totals.* Every step counts what it does (`job.Totals`) in the same atomic step, under the UTC day of its now.
- *Bounds.* A call ends at STEP_JOBS jobs or STEP_BYTES bytes of bodies and attributes; the answer says where to
  go on.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple, Protocol, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

from duetime.model.clock import MAX_INSTANT
from duetime.model.errors import DuetimeError, InvalidRequest, JobDead, JobRunning, LeaseLost, StoreUnavailable
from duetime.model.job import (
    STEP_JOBS,
    Counts,
    Delivery,
    IfExists,
    Job,
    Lease,
    Moved,
    NewJob,
    QueueTotals,
    Reason,
    State,
)
from duetime.model.names import Queue
from duetime.stores.finishes import Finish, Finished, JoinCount, KeptResult
from duetime.stores.registry import Registry

if TYPE_CHECKING:  # it imports an event loop, which a push to a server need not wait for
    from duetime.duties import Duty

IDLE_MS = 600_000
"""A queue that has no jobs and no rules is forgotten this long after the last push and the end of its last job."""


MAX_WAKE_RESULTS = 32
"""How many jobs a wake names whose results were kept."""
REPAIR_LIFE_MS = 86_400_000
"""How long a `repair_mark` lives. A repair that acts on older data of the store could push a job a second time."""


class Mark(Struct, frozen=True):
    """Makes a push happen once: `name` is unique in the queue, `digest` distinguishes requests with the same name.

    The store keeps the mark for `life_ms`. `brief` promises that a repeated request brings the same ids and times, so
    that a store need not keep them: a mark for 500 jobs then costs as much as one for a single job.
    """

    name: str
    digest: bytes
    life_ms: int
    brief: bool = False


def repair_mark(job: NewJob) -> Mark | None:
    """The mark under which a lost job is pushed again: once per born and attempt, however many processes try.

    None for a new job. The name begins with a slash, so that it never equals the mark of a batch, which begins with the
    batch's name. lua/put_back.lua makes the same name.
    """
    return Mark(f"/repair/{job.born}/{job.attempt}/{job.id}", b"", REPAIR_LIFE_MS) if job.born else None


class Push(Struct, frozen=True):
    """One producer's request: all of its jobs are pushed, or none.

    `made_ids` says that the ids were generated for this attempt, so that a repetition of the request has other ids.
    Stores ignore it; the journal uses it.
    """

    jobs: Sequence[NewJob]
    if_exists: IfExists = IfExists.KEEP
    mark: Mark | None = None
    made_ids: bool = False

    @property
    def is_single(self) -> bool:
        """Returns whether the request is one that a single-job call may serve: one job and no mark."""
        return len(self.jobs) == 1 and self.mark is None


class Pushed(Struct, frozen=True):
    """One Moved per job, in order: accepted, kept or replaced.

    `repeated` says that the mark existed already, so that this call changed nothing.
    """

    jobs: Sequence[Moved]
    now: int
    repeated: bool = False


# --- jobs that were pushed although their request failed: a member of a group failed, and the others took their share


Parts = Sequence[tuple[Sequence[int], Pushed]]
"""Pairs of the positions of some jobs in a request and the answer for these jobs."""

_PARTS = "_pushed_parts"


def with_parts(error: DuetimeError, parts: Parts) -> DuetimeError:
    setattr(error, _PARTS, parts)
    return error


def parts_of(error: DuetimeError) -> Parts:
    """The parts of a request that were done although this error is its answer."""
    return getattr(error, _PARTS, ())


def pushed_parts(
    requests: Sequence[Push], answers: Sequence[Pushed | DuetimeError]
) -> tuple[Sequence[Push], Sequence[Pushed | DuetimeError]]:
    """The same requests and answers, but a request that was done in part is replaced by the parts that were done."""
    if not [answer for answer in answers if isinstance(answer, DuetimeError) and parts_of(answer)]:
        return requests, answers
    found: list[tuple[Push, Pushed | DuetimeError]] = []
    for request, answer in zip(requests, answers, strict=True):
        parts = parts_of(answer) if isinstance(answer, DuetimeError) else ()
        found += [(part_of(request, places), pushed) for places, pushed in parts] or [(request, answer)]
    return [request for request, _ in found], [answer for _, answer in found]


def part_of(request: Push, places: Sequence[int]) -> Push:
    """The same request with only the jobs at these positions."""
    if len(places) == len(request.jobs):
        return request
    return replace(request, jobs=[request.jobs[place] for place in places])


class Ask(Struct, frozen=True):
    """One consumer's request for at most `limit` jobs.

    The store first takes the `quotas` (high, normal, low) in that order, then fills the rest by strict priority.
    """

    limit: int
    ttr_ms: int
    quotas: tuple[int, int, int] = (0, 0, 0)


class GiveBack(Struct, frozen=True):
    """A delivery to undo. The job is due `delay_ms` from now; without a delay it keeps its old due_at."""

    lease: Lease
    delay_ms: int | None = None


class Reserved(Struct, frozen=True):
    """`deliveries` has one list per ask. `expired` lists the expired jobs that the call met and ended.

    `next_at` is the earliest due_at among the jobs still waiting (in the past if the call ended at a bound), None if
    there are none or the queue is paused.
    """

    deliveries: Sequence[Sequence[Delivery]]
    next_at: int | None
    now: int
    expired: Sequence[Moved] = ()
    paused: bool = False


class Reaped(Struct, frozen=True):
    """What a reap moved, by queue.

    `next_at` is a lower bound of the next lease end or expiry in the store. It is not after `now` if there is more to
    do immediately. `pushed` are the jobs that were imported from the outbox (`push_in`), each as a request with its
    answer: they wait in their queues now, and no journal has them yet. Pass their `receipts` to the next call when the
    journal has them. Without that, a later call of any process returns the jobs again.
    """

    moved: Mapping[Queue, Sequence[Moved]]
    next_at: int | None
    now: int
    pushed: Mapping[Queue, Sequence[tuple[Push, Pushed]]] = {}
    receipts: Sequence[str] = ()


class Page(Struct, frozen=True):
    """`cursor` goes into the next call; None at the end."""

    jobs: Sequence[Job]
    cursor: str | None


_CURSOR = re.compile(r"([0-9]):([0-9]{1,15}):(.{0,128})", re.DOTALL)


class Cursor(NamedTuple):
    """The place of a job in the order of its state: a list goes on after it. `priority` is 0 except in lists of ready
    jobs. With an empty id it is the place before all jobs of that instant.
    """

    priority: int
    at: int
    id: str

    def __str__(self) -> str:
        return f"{self.priority}:{self.at}:{self.id}"

    @classmethod
    def of(cls, job: Job) -> "Cursor":
        at = {State.LEASED: job.lease_until, State.DEAD: job.dead_at}.get(job.state, job.due_at)
        return cls(int(job.priority) if job.state is State.READY else 0, at, job.id)

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Raises InvalidRequest: cursors come back from clients."""
        found = _CURSOR.fullmatch(text) if isinstance(text, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
        if found is None or not found[3].isprintable():
            raise InvalidRequest(f"cursor must be one that a list has returned, got {text!r:.150}", path="$.cursor")
        return cls(int(found[1]), int(found[2]), found[3])


class Purged(Struct, frozen=True):
    """`more`: the call ended at its bound; call again. `problems`: the parts of the store that could not be asked."""

    removed: int
    now: int
    more: bool = False
    problems: Sequence[StoreUnavailable] = ()


class QueueRules(Struct, frozen=True):
    """The rules of a queue, stored with it and read in the same atomic step as the jobs. Zero means no limit.

    `strict` ignores quotas; `expired_to_dead` keeps expired jobs among the dead letters; `max_jobs` counts jobs in
    any state, expired ones until they are ended. `kept` keeps the queue and its totals, however long it is idle and
    also when it is purged. `offline` refuses pushes, but not of jobs that come with their born: those were accepted
    before. The queue of a topic that is offline has it.
    """

    paused: bool = False
    strict: bool = False
    expired_to_dead: bool = False
    max_jobs: int = 0
    max_body: int = 0
    kept: bool = False
    offline: bool = False


class RulesChange(Struct, frozen=True):
    """A change of some rules of a queue: fields that are UNSET stay as they are."""

    paused: bool | UnsetType = UNSET
    strict: bool | UnsetType = UNSET
    expired_to_dead: bool | UnsetType = UNSET
    max_jobs: int | UnsetType = UNSET
    max_body: int | UnsetType = UNSET
    kept: bool | UnsetType = UNSET
    offline: bool | UnsetType = UNSET


class Withdrawal(Struct, frozen=True):
    """A job to take out, as its caller last saw it: `due_at` is 0 for a dead one.

    With a `reason` a waiting job goes to the dead letters, with that reason and `error`; without one the job is gone.
    """

    id: str
    born: int
    due_at: int
    reason: Reason | None = None
    error: str = ""


class StoreInfo(Struct, frozen=True):
    """`epoch` is drawn once per data set: another epoch under the same URL means that the store was wiped.

    `used_bytes` of `max_bytes` says how full the server's memory or the disk is, with everything that is kept there.
    `max_bytes` is 0 where there is no limit or none is known. `own_bytes` is what the jobs alone take, 0 if unknown.
    `problems`, by name: the parts of the store that do not answer while the others serve.
    `persistence` says in a few words what survives a crash of the store's server; it is empty where that is not known.
    `members`: the stores of a group that answer, by name. `drain` of a member is "draining" while it takes no new jobs,
    and "empty" when it holds none any more.
    """

    kind: str
    version: str
    epoch: str
    now: int
    used_bytes: int = 0
    max_bytes: int = 0
    problems: Mapping[str, DuetimeError] = field(default_factory=dict[str, DuetimeError])
    persistence: str = ""
    members: Mapping[str, "StoreInfo"] = field(default_factory=dict[str, "StoreInfo"])
    drain: str = ""
    own_bytes: int = 0


class Wake(Struct, frozen=True):
    """A job waits in `queue` from `due_at` on. Without a queue: wakes may have been missed, so check every queue.

    With `results`: results of these jobs of the queue were kept, and no job is announced; an empty tuple means
    more of them than a wake names.
    """

    queue: Queue | None = None
    due_at: Annotated[int, Meta(ge=0, le=MAX_INSTANT)] = 0
    results: tuple[str, ...] | None = None


def results_wake(queue: Queue, ids: Sequence[str]) -> Wake:
    """The wake that announces the results of these jobs."""
    return Wake(queue, results=tuple(ids) if len(ids) <= MAX_WAKE_RESULTS else ())


Given = TypeVar("Given", contravariant=True)  # noqa: PLC0105


class ResultSink(Protocol[Given]):
    """Where a caller gets its answer: a future, or an object of a caller that has no task to wait in.

    The two setters are called at most once, only while `done` says False, and must not raise.
    """

    def done(self) -> bool:
        """Returns whether the answer is no longer wanted. Then a request that waits is not sent."""
        ...

    def set_result(self, result: Given, /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...


Send = Callable[[], None]


class OneJob(Protocol):
    """Verbs for one job that need no task: an optional member of a store.

    Each method is called in the store's event loop. It returns None if it cannot serve the request now; then the caller
    uses the verb. Otherwise it returns a function that sends the request, to be called in the same turn of the loop.
    After that, `reply` gets in a later turn what the verb would answer if it were called with this request alone, or
    the error that it would raise.
    """

    def push(self, queue: Queue, request: Push, reply: ResultSink[Sequence[Pushed | DuetimeError]]) -> Send | None:
        """Push a request of one job without a mark."""
        ...

    def reserve(self, queue: Queue, ask: Ask, reply: ResultSink[Reserved]) -> Send | None:
        """Lease one job if one is ready."""
        ...

    def ack(
        self, lease: Lease, reply: ResultSink[Sequence[Moved | LeaseLost | StoreUnavailable | None]]
    ) -> Send | None: ...

    def blocking(self) -> "BlockingOneJob | None":
        """The same for other threads, with a connection of its own. Returns None if the store has none."""
        ...


class BlockingOneJob(Protocol):
    """Verbs for one job in the caller's own thread: one call at a time, from any thread, while the store is open.

    None: the case is unusual or another writer is active; nothing was done, and the caller uses the verb. Raises
    StoreUnavailable if the answer was lost.
    """

    def push(self, queue: Queue, request: Push) -> Pushed | DuetimeError | None:
        """Push a request of one job."""
        ...

    def reserve(self, queue: Queue, ask: Ask, orphan: Callable[[Delivery], None]) -> Reserved | None:
        """Lease one job if one is ready. `orphan` gets a job leased for a caller that was interrupted meanwhile."""
        ...

    def ack(self, lease: Lease) -> Moved | None:
        """Finish a job whose lease is held."""
        ...

    def ack_and_reserve(self, lease: Lease, ask: Ask, orphan: Callable[[Delivery], None]) -> Reserved | None:
        """Finish a job whose lease is held, and lease one of the same queue if one is ready: both or none."""
        ...

    def close(self) -> None:
        """Called in the thread of the last call, or when there is none under way."""
        ...


class Store(Protocol):
    """See the module's docstring for what holds for every verb."""

    @property
    def one_job(self) -> OneJob | None:
        """Verbs for one job without a task. Returns None if the store has none."""
        ...

    @property
    def duty(self) -> "Duty | None":
        """Background work that every engine on the store runs. Returns None if there is none.

        A store that was opened without an engine does no work of its own.
        """
        ...

    @property
    def registry(self) -> Registry:
        """Everything that is not a job (namespaces, tokens, topics ...), kept in the same place."""
        ...

    # --- the hot path

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        """Add jobs to a queue, creating the queue at need.

        Atomic per request. Idempotent with if_exists=keep while the id lives, with a mark while the mark lives: the
        mark is set in the same step, and a request whose mark exists does nothing and answers what it answered then.
        Order of checks within a request: mark, then job by job (first refusal wins): offline, max_body, expiry,
        if_exists, max_jobs (only a job that adds to the number of jobs can be refused for it).
        An id that occurs twice in one request conflicts with itself: the second occurrence sees the first.
        Cost O(log n) per job. Values: JobExists, ExpiresBeforeDue, BodyTooLarge, QueueFull, TopicOffline,
        MarkMismatch, StoreFull.
        """
        ...

    async def reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved:
        """Lease ready jobs to consumers, ask by ask, each delivery one attempt and one used try.

        Atomic for the whole call. Not idempotent: a lost answer leaves leases that lapse. A paused queue gives none.
        At most STEP_JOBS jobs are scanned, and at least one is leased whatever its size. Cost O(log n) per job
        scanned.
        """
        ...

    async def ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved | LeaseLost | StoreUnavailable | None]:
        """Finish jobs: they are gone. None where the job was gone already, so repeating an ack is no error.

        StoreUnavailable as a value: only the part of the store that has this job is down, or the store fell after it
        had finished others. Atomic per lease. Idempotent. Cost O(log n) per lease.
        """
        ...

    async def finish(
        self, queue: Queue, finishes: Sequence[Finish]
    ) -> Sequence[Finished | LeaseLost | DuetimeError | None]:
        """Finish jobs as `ack` does; in the same step push the jobs that follow from each, and keep its result.

        Atomic per finish: the jobs that follow exist if and only if the job was acked. Idempotent: None where the job
        was gone already, and then nothing is pushed or kept; nor is it with LeaseLost. Finishes happen in their order.
        A job that follows may have the id of the one that is finished; an id that is taken is kept. `max_jobs` and
        `offline` do not hold for jobs that follow, and a store that is short of room takes them, because an ack is
        never refused for room. A finish that is refused (BodyTooLarge, ExpiresBeforeDue) changes nothing: the lease is
        still held. A result takes the place of an earlier one of the same id, outlives a purge, and is announced by a
        wake. At most STEP_JOBS jobs in a call, those that follow included. Cost O(log n) per job.
        """
        ...

    async def results(self, queue: Queue, ids: Sequence[str]) -> Sequence[KeptResult | None]:
        """The results that are kept of these jobs, None where there is none (any more). Moves nothing.

        Answers for the ids in order, for at least one; fewer answers than ids mean that the call ended at its bound.
        Cost O(1) per id.
        """
        ...

    async def joins(self, queue: Queue, *, after: str = "") -> Sequence[JoinCount]:
        """The joins that have seen some of their finishes, by name from the one after `after`: at most STEP_JOBS.

        Moves nothing. For moving, backing up and repairing a queue. Redis walks all keys of the queue's node for it.
        """
        ...

    async def raise_joins(self, queue: Queue, joins: Sequence[JoinCount]) -> None:
        """Raise the counts of joins to at least these, and the time for which they count to at least these from now.

        No job follows from it, whatever the counts. Atomic per join. Idempotent. At most STEP_JOBS in a call.
        """
        ...

    async def release(self, lease: Lease, delay_ms: int, error: str = "") -> Moved:
        """Give a job back, due `delay_ms` from now: it waits again, or ends as dead ("tries") when used >= tries > 0.

        If it would be due after expires_at, or has passed that, it ends as expired. `error` is kept with the job
        unless empty. Atomic; not idempotent. Cost O(log n). Raises LeaseLost.
        """
        ...

    async def give_back(
        self, queue: Queue, give_backs: Sequence[GiveBack]
    ) -> Sequence[Moved | LeaseLost | StoreUnavailable]:
        """Undo deliveries that never reached their consumers: the jobs wait with their old due_at, used falls by one.

        With a delay a job is due that long from now instead: a consumer may not work on it before then. The attempt
        stays as it is. A job ends as expired if it has passed expires_at, or would be due after it. StoreUnavailable as
        a value: see `ack`. Atomic per lease; not idempotent. At most STEP_JOBS in a call. Cost O(log n) per lease.
        """
        ...

    async def kill(self, lease: Lease, error: str = "") -> Moved:
        """Send a job to the dead letters, reason "killed". `error` is kept with the job unless empty.

        Atomic; not idempotent. Cost O(log n). Raises LeaseLost.
        """
        ...

    async def extend(self, lease: Lease, ttr_ms: int) -> int:
        """Renew a lease for `ttr_ms` from now, and answer its new end.

        Atomic; idempotent. Cost O(log n). Raises LeaseLost.
        """
        ...

    async def cancel(
        self, queue: Queue, ids: Sequence[str], *, finished: bool = False
    ) -> Sequence[Moved | StoreUnavailable | None]:
        """Remove jobs by id from wherever they are. Events: cancelled (reason "running" if leased), deleted if dead.

        `finished` says that a consumer without a lease is done with them; the event is then acked (reason "unfenced")
        instead of cancelled.
        StoreUnavailable as a value: only the part of the store that would have this job is down, or the store fell
        after it had removed others. Atomic per id. Idempotent: None where there is no such job. Cost O(log n) per id.
        """
        ...

    async def reschedule(
        self, queue: Queue, ids: Sequence[str], *, delay_ms: int = 0, due_at: int | None = None
    ) -> Sequence[Moved | JobRunning | JobDead | DuetimeError | None]:
        """Change when waiting jobs are due.

        ExpiresBeforeDue where the job would expire first; None where there is no such job. Atomic per id. Idempotent
        with due_at. Cost O(log n) per id.
        """
        ...

    async def reap(self, limit: int = 500, *, recorded: Sequence[str] = ()) -> Reaped:
        """Take back leases that ran out (as release with delay 0) and end expired jobs, in all queues. Import jobs from
        the outbox, where the store has one; `recorded` are receipts of earlier calls.

        Moves at most `limit` jobs, earliest first within a queue. Events: lease_expired, dead, expired. Atomic per
        queue. Safe to run in many processes. Cost O(log n) per job moved, plus O(1) per idle call, whatever the number
        of queues.
        """
        ...

    def wakeups(self) -> AsyncIterator[Wake]:
        """Announcements from all processes on this store, our own included, for as long as it is iterated.

        Yields Wake() after every (re)connect. A hint, not a log: wakes may be merged or doubled.
        """
        ...

    # --- reading and administering

    async def heads(self, queues: Sequence[Queue], *, waiting: bool = False) -> Sequence[int | None]:
        """The earliest due_at per queue, None where nothing waits or the queue is paused.

        Expired jobs count until they are ended. O(1) per queue, one round trip. `waiting` says that consumers of this
        process wait for jobs of the queues: a store that has to poll for wake-ups of other processes then does it
        often for a few seconds.
        """
        ...

    async def get(self, queue: Queue, ids: Sequence[str]) -> Sequence[Job | None]:
        """Read jobs in any state. Returns None where there is none. A snapshot; moves nothing. Cost O(1) per id.

        Answers for the ids in order, for at least one; fewer answers than ids mean that the call ended at its bound.
        """
        ...

    async def list_jobs(self, queue: Queue, state: State, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Page through the jobs in one state.

        Order: ready by (priority, due_at, id), delayed by (due_at, id), leased by (lease_until, id), dead by
        (dead_at, id). A job that stays in the state throughout is seen exactly once. Moves nothing. Cost
        O(log n + limit). Raises InvalidRequest for a cursor that no list has returned.
        """
        ...

    async def counts(self, queues: Sequence[Queue]) -> Sequence[Counts]:
        """Exact counts at one instant per queue; expired jobs count as expired (or dead, if the queue keeps them).

        Moves nothing. Zeros for unknown queues.
        """
        ...

    async def totals(self, queues: Sequence[Queue]) -> Sequence[QueueTotals]:
        """What has happened in each queue. Moves nothing. Zeros for unknown queues. O(1) per queue, one round trip.

        Totals go with a purge of the whole queue, unless it is `kept`. A queue that is forgotten because it is idle
        leaves its totals behind and goes on counting from them if it is used again. They stay for TOTAL_DAYS at least,
        or for a day if at most one job was ever accepted, as in a queue that was made for a single reply.
        """
        ...

    async def queues(self, namespace: str | None = None) -> Sequence[Queue]:
        """Every queue that was pushed to or configured, sorted, until it is purged or forgotten.

        The reaper forgets a queue, and its `Counts.expired`, when it has no jobs and no rules, and the last push to it
        and the end of its last job are IDLE_MS ago.
        """
        ...

    async def due_histogram(self, queue: Queue, edges: Sequence[int]) -> Sequence[int]:
        """How many jobs wait with edges[i] <= due_at < edges[i + 1]: one number less than edges, which never fall.
        O(log n) per edge; a SQL store walks the jobs, SQLite all but those of the most crowded stretch of time.

        Expired jobs count until they are ended.
        """
        ...

    async def respawn(
        self,
        queue: Queue,
        *,
        ids: Sequence[str] | None = None,
        limit: int = 1,
        ttl_ms: int = 0,
        tries: int | None = None,
    ) -> Sequence[Moved | StoreUnavailable]:
        """Bring dead jobs back: ready now, used 0, attempt kept, a new ttl, new tries if given.

        By ids, or the `limit` longest dead (at most STEP_JOBS a call). Ids that are not dead are passed over. Atomic
        per call. StoreUnavailable as a value, after the jobs: one per part of the store that could not be asked. The
        reason and the last error are cleared, the attributes stay. Cost O(log n) per job.
        """
        ...

    async def purge(self, queue: Queue, states: Sequence[State], *, limit: int | None = None) -> Purged:
        """Remove jobs in the given states, oldest first within each; leased ones are fenced off.

        With all four states and no limit the queue itself is forgotten with its totals; if it has rules, they stay
        with it, and the totals of a `kept` queue stay. Marks stay. Ends at its bound with `more`; atomic up to there.
        Expired jobs that are met count as removed.
        """
        ...

    async def withdraw(
        self, queue: Queue, withdrawals: Sequence[Withdrawal]
    ) -> Sequence[Moved | StoreUnavailable | None]:
        """Take out jobs that wait or are dead, if they are as the caller saw them: same born, same due_at.

        For moving jobs between stores: a caller that has copied a job removes exactly what it copied. None where there
        is no such job, it has changed, or it is leased. Events: cancelled, deleted if it was dead, dead with a
        `reason`. Atomic per job. Idempotent. At most STEP_JOBS in a call. Cost O(log n) per job.
        """
        ...

    async def configure(self, queue: Queue, change: RulesChange | None = None) -> QueueRules:
        """Change the queue's rules and answer them as they are now; without a change only answer. Atomic; idempotent.

        A resume wakes waiting consumers everywhere. A change creates the queue.
        """
        ...

    async def ping(self) -> StoreInfo:
        """Prove that the store answers, and describe it."""
        ...

    async def check(self) -> Sequence[str]:
        """Read everything and name each broken invariant: every id in exactly one place, counts equal to the jobs,
        no more jobs than the totals leave.

        For tests and `doctor --deep`; slow, and only meaningful while nothing else runs. Empty means sound.
        """
        ...

    async def close(self) -> None:
        """Close connections, threads and sockets. Idempotent."""
        ...


async def list_all(store: Store, queue: Queue, state: State) -> AsyncIterator[Sequence[Job]]:
    """All jobs of a state, page by page. Jobs that change their state meanwhile may be missed."""
    cursor: str | None = None
    while True:
        page = await store.list_jobs(queue, state, cursor=cursor, limit=STEP_JOBS)
        yield page.jobs
        if (cursor := page.cursor) is None:
            return


async def get_all(store: Store, queue: Queue, ids: Sequence[str]) -> list[Job | None]:
    """`Store.get` for any number of ids, in as many calls as it takes. The jobs must fit into memory."""
    jobs: list[Job | None] = []
    while len(jobs) < len(ids):
        jobs += await store.get(queue, ids[len(jobs) :])
    return jobs

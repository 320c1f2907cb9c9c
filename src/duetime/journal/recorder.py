"""The recorder that writes an engine's events to the journal. The order is store, journal, answer.

Entries of deliveries, give-backs, releases and callbacks, and of jobs that the reaper or a reserve ended, are written
soon; no answer waits for them. For all others the engine waits for `flushed` before it answers.

The decision about a journal is made when an engine opens, for its whole life. An engine without a journal has a
`NodeWithoutJournal` instead, so that audit knows of a program whose entries are missing.
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import iscoroutine
from operator import attrgetter
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from duetime.engine.recorder import Notified, Recorder, StoreCall, StoreTime, needs_flush
from duetime.journal.events import MAX_ERROR, REPEATED, Draft, body_fields, write_draft
from duetime.journal.journal import Journal
from duetime.journal.registration import (
    Journaling,
    NodeRegistration,
    begin_journaling,
    put_journaling,
)
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.job import Event, Job, Lease, Moved, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Purged, Push, Pushed, Reaped, Reserved, Store, get_all, pushed_parts
from duetime.stores.finishes import Finish, Finished, SeenJoin, following_jobs, seen_join

Answers = Sequence[object]

READS = frozenset({"results"})
"""Verbs that change nothing."""
ONLY_LOOKS = frozenset({"reap"})
"""Verbs that often change nothing, and that every program uses: a lazy journal does not make its node for them."""


PushAnswers = Sequence[Pushed | DuetimeError]

ACCEPTED = Event.ACCEPTED
EXPIRED = "expired"
MAX_KNOWN = 20_000
READ_AT_ONCE = 50

_encode = msgspec.json.Encoder().encode
_event_of = attrgetter("event")


class JournalRecorder(Recorder):
    """Records the events of one engine in one pool. `store` is asked about jobs that a push found already there."""

    def __init__(self, store: Store, journal: Journal, pool: str) -> None:
        self._store = store
        self._journal = journal
        self._pool = pool
        self._time = StoreTime()
        self._writer = journal.writer
        self._flush_to = 0
        self._journaling: Journaling | None = None
        self._epoch = ""
        self._repeated = RepeatedPushes(store, pool, self._record)
        self._registration = NodeRegistration(store, journal.node, journal.options.folder)
        self._under_way: dict[StoreCall, int] = {}
        self.is_ready = False
        self._record_outcome: Mapping[str, Callable[[StoreCall, Any], Any]] = {
            "push": self._pushed,
            "reserve": self._reserved,
            "ack": self._acked,
            "finish": self._finished,
            "ack_by_id": self._acked_by_id,
            "release": self._moved,
            "give_back": self._moved,
            "kill": self._moved,
            "cancel": self._moved,
            "reschedule": self._moved,
            "respawn": self._moved,
            "purge": self._purged,
            "reap": self._reaped,
            "notify": self._notified,
        }

    async def open(self) -> None:
        """Register the node if it exists already, mark the pool as one that journals, and begin the heartbeats.

        Raises StoreUnavailable.
        """
        info = await self._store.ping()
        self._time.observe(info.now)
        self._epoch = info.epoch
        if self._writer.is_open:
            await self._make_node()
        self._journaling = await begin_journaling(self._store, self._pool)
        self._journal.keep_for(self._pool, self._watermark, self._renew)

    async def _renew(self) -> None:
        """Copy the records of all nodes; write them and the pool's record again if the store was wiped."""
        epoch = (await self._store.ping()).epoch
        if epoch == self._epoch:
            await self._registration.renew()
            return
        if self._journaling:
            await put_journaling(self._store, self._journaling)
        if self._writer.is_open:
            await self._make_node()
            await self._registration.restore()
        self._epoch = epoch  # only now: a renewal that broke off is begun again

    async def close(self) -> None:
        self._journal.release(self._pool)
        if self._registration.is_made:
            # If this fails, the `closed` entry in the node's journal says the same.
            with suppress(DuetimeError, OSError):
                await asyncio.to_thread(self._writer.flush)
                await self._registration.end(self._writer.seq)

    def flushed(self) -> Future[None] | None:
        """The future raises StoreUnavailable with an unknown outcome if the entries could not be written."""
        writer = self._writer
        if self._flush_to <= writer.entries or (writer.writes_through and writer.write_through()):
            return None
        reply: Future[None] = asyncio.get_running_loop().create_future()
        writer.flush_to(reply)
        return reply

    def _watermark(self) -> int:
        """A store time before which no event can still be recorded: no call that is under way began earlier."""
        return min(self._under_way.values(), default=self._time.now_ms())

    # --- before and after a call

    async def prepare(self, call: StoreCall) -> None:
        """A lazy journal makes its node here, before its first change, and registers it."""
        if self._registration.is_made or call.verb in READS:
            return
        if call.verb not in ONLY_LOOKS or self._writer.is_open:
            await self._make_node()

    def before(self, call: StoreCall) -> None:
        """Raises JournalFull for a push if the disk is nearly full, StoreUnavailable if nothing can be recorded."""
        verb = call.verb
        if verb in READS:
            return
        if not self._writer.is_open:
            self._journal.open(only_check=verb in ONLY_LOOKS)
        self._writer.check(is_push=verb == "push")
        self._under_way[call] = self._time.now_ms()

    async def _make_node(self) -> None:
        self._journal.open()
        await self._registration.make()
        self.is_ready = True

    def after(self, call: StoreCall, outcome: Any) -> Any:
        if call.verb in READS or isinstance(outcome, BaseException):
            self._under_way.pop(call, None)
            return outcome
        recorded: Any = None
        try:
            recorded = self._record_outcome[call.verb](call, outcome)
        finally:
            if not iscoroutine(recorded):
                self._under_way.pop(call, None)
        return self._after(call, recorded) if iscoroutine(recorded) else recorded

    async def _after(self, call: StoreCall, recording: Awaitable[Any]) -> Any:
        try:
            return await recording
        finally:
            self._under_way.pop(call, None)

    def _reserved(self, call: StoreCall, reserved: Reserved) -> Reserved:
        self._time.observe(reserved.now)
        if reserved.expired or any(reserved.deliveries):
            given = [
                Moved(Event.DELIVERED, delivery.lease.id, delivery.lease.born, delivery.lease.attempt, delivery.due_at)
                for deliveries in reserved.deliveries
                for delivery in deliveries
            ]
            ended_and_given = [*reserved.expired, *given]
            self._record(draft_moves(self._pool, call.queue, ended_and_given, reserved.now), wait_for_flush=False)
        return reserved

    def _acked(self, call: StoreCall, answers: Answers) -> Answers:
        self._record(draft_acks(self._pool, call.queue, call.asked, answers, self._time.now_ms()))
        return answers

    def _acked_by_id(self, call: StoreCall, answers: Answers) -> Answers | Awaitable[Answers]:
        if any([answer is None for answer in answers]):
            return self._acked_by_id_some(call, answers)
        return self._record_acks_by_id(call, answers)

    async def _acked_by_id_some(self, call: StoreCall, answers: Answers) -> Answers:
        """The entry of an ack that found no job ends whichever job had the id until the entry's time, so that time must
        not lie before the job's delivery.
        """
        with suppress(DuetimeError):
            self._time.observe((await self._store.ping()).now)
        return self._record_acks_by_id(call, answers)

    def _record_acks_by_id(self, call: StoreCall, answers: Answers) -> Answers:
        """Records as `_acked` does, without the born of a job that no longer existed, because it is unknown."""
        ends = [
            Moved(Event.ACKED, job_id, born=0, reason=REPEATED) if answer is None else answer
            for job_id, answer in zip(call.asked, answers, strict=True)
        ]
        self._record(draft_moves(self._pool, call.queue, ends, self._time.now_ms()))
        return answers

    def _moved(self, call: StoreCall, outcome: Moved | Answers) -> Moved | Answers:
        answers = [outcome] if isinstance(outcome, Moved) else outcome
        self._record(draft_moves(self._pool, call.queue, answers, self._time.now_ms(), call.error))
        return outcome

    def _purged(self, call: StoreCall, purged: Purged) -> Purged:
        if purged.removed:
            all_of_them = Moved(Event.PURGED, "", 0, reason=",".join(sorted(call.asked)))
            self._record(draft_moves(self._pool, call.queue, [all_of_them], purged.now))
        return purged

    def _notified(self, call: StoreCall, answer: Notified) -> Notified:
        [lease] = call.asked
        notified = Moved(Event.NOTIFIED, lease.id, lease.born, lease.attempt)
        [draft] = draft_moves(self._pool, call.queue, [notified], self._time.now_ms())
        self._record([replace(draft, status=answer.status, ms=answer.ms)])
        return answer

    def _record(self, made: Sequence[Draft], *, wait_for_flush: bool = True) -> None:
        """Record the drafts. `flushed` waits for them with `wait_for_flush`, and if the loss of one would break a
        guarantee; otherwise they are written soon, and no answer waits.
        """
        if not made:
            return
        if not self._writer.is_open:
            self._journal.open()
        wait_for_flush = wait_for_flush and needs_flush([draft.event for draft in made])
        self._writer.append(made, write_soon=not wait_for_flush)
        if wait_for_flush:
            self._flush_to = self._writer.seq

    def _pushed(self, call: StoreCall, answers: PushAnswers) -> PushAnswers | Coroutine[Any, Any, PushAnswers]:
        for answer in answers[:1]:
            if isinstance(answer, Pushed):
                self._time.observe(answer.now)
        parts = pushed_parts(call.asked, answers)
        self._writer.append_lines(partial(pushed_lines, self._pool, call.queue, *parts), write_soon=False)
        self._flush_to = self._writer.seq
        for answer in answers:
            if isinstance(answer, Pushed) and (answer.repeated or Event.KEPT in map(_event_of, answer.jobs)):
                return self._repeated.record(call.queue, call.asked, answers)
        return answers

    async def _record_all_pushes(self, queue: Queue, requests: Sequence[Push], answers: PushAnswers) -> PushAnswers:
        recorded = self._pushed(StoreCall("push", queue, requests), answers)
        return await recorded if isinstance(recorded, Coroutine) else recorded

    async def _reaped(self, call: StoreCall, reaped: Reaped) -> Reaped:
        """Without receipts if not every imported job could be recorded; then the store reports those jobs again."""
        self._time.observe(reaped.now)
        for queue, moved in reaped.moved.items():
            self._record(draft_moves(self._pool, queue, moved, reaped.now), wait_for_flush=False)
        if not reaped.pushed:
            return reaped
        if not self._registration.is_made:
            await self._make_node()
        is_complete = True
        for queue, pushed in reaped.pushed.items():
            requests, answers = zip(*pushed, strict=True)
            recorded = await self._record_all_pushes(queue, requests, answers)
            is_complete &= not any(isinstance(answer, DuetimeError) for answer in recorded)
        return reaped if is_complete else replace(reaped, receipts=())

    # --- finishes and the jobs that follow from them

    async def _finished(
        self, call: StoreCall, answers: Sequence[Finished | DuetimeError | None]
    ) -> Sequence[Finished | DuetimeError | None]:
        """The jobs that follow are recorded before the end of the finished one: a journal that is cut off between the
        two has lost none.

        None may be the answer to a finish that is repeated because its answer was lost, and the process that made it
        may have died before it recorded what followed. So those of its jobs that exist are recorded as kept.
        """
        queue, finishes = call.queue, call.asked
        results = list(answers)
        pairs = list(enumerate(zip(finishes, answers, strict=True)))
        followed = [
            (place, Push(following_jobs(one, answer.joined)), Pushed(answer.then, answer.now))
            for place, (one, answer) in pairs
            if isinstance(answer, Finished) and answer.then
        ]
        await self._record_following(queue, followed, results)
        repeated: list[tuple[int, Push, Pushed]] = []
        for place, (one, answer) in pairs:
            if answer is None and (one.then or one.join):
                try:
                    repeated.append((place, *await self._find_following(queue, one)))
                except DuetimeError as error:
                    results[place] = StoreUnavailable(
                        f"follow-up jobs may be missing from the journal: {error.message}", unknown=True
                    )
        await self._record_following(queue, repeated, results)
        # A finish that happened is recorded as such, also where its caller gets an error.
        ends = [one.acked if isinstance(one, Finished) else other for one, other in zip(answers, results, strict=True)]
        joins = [seen_join(one, answer) for one, answer in zip(finishes, answers, strict=True)]
        leases = [finish.lease for finish in finishes]
        self._record(draft_acks(self._pool, queue, leases, ends, self._time.now_ms(), joins))
        return results

    async def _record_following(
        self,
        queue: Queue,
        pushes: Sequence[tuple[int, Push, Pushed]],
        results: list[Finished | DuetimeError | None],
    ) -> None:
        if not pushes:
            return
        places, requests, answers = zip(*pushes, strict=True)
        for place, answer in zip(places, await self._record_all_pushes(queue, requests, answers), strict=True):
            if isinstance(answer, DuetimeError):
                results[place] = answer

    async def _find_following(self, queue: Queue, one: Finish) -> tuple[Push, Pushed]:
        """Those jobs that followed from a finish and still exist, as a push that was repeated and kept them."""
        now = (await self._store.ping()).now
        following = following_jobs(one, one.join.of if one.join else 0)
        jobs = await get_all(self._store, queue, [job.id for job in following])
        found = [(new, job) for new, job in zip(following, jobs, strict=True) if job]
        kept = [Moved(Event.KEPT, job.id, job.born, job.attempt, job.due_at) for _, job in found]
        return Push([new for new, _ in found]), Pushed(kept, now, repeated=True)


# --- entries


def draft_moves(pool: str, queue: Queue, answers: Sequence[object], ts: int, error: str = "") -> list[Draft]:
    """One draft for each answer that moved a job. `error` is what the consumer reported of its try."""
    # The last lines of a traceback say what happened.
    error = error.encode()[-MAX_ERROR:].decode(errors="ignore") if error else ""
    return [
        Draft(
            ts=ts,
            event=moved.event,
            pool=pool,
            namespace=queue.namespace,
            queue=queue.name,
            id=moved.id,
            born=moved.born,
            attempt=moved.attempt,
            due_at=moved.due_at,
            reason=moved.reason,
            was=moved.was,
            error=error,
        )
        for moved in answers
        if isinstance(moved, Moved)
    ]


def draft_acks(
    pool: str,
    queue: Queue,
    leases: Sequence[Lease],
    answers: Sequence[object],
    ts: int,
    joins: Sequence[SeenJoin | None] = (),
) -> list[Draft]:
    """One draft for each ack. The ack of a job that no longer existed is "repeated": its consumer says that it is
    done, and the process that removed it may have died before it wrote an entry. `joins` has the join of each job, if
    any has one.
    """
    ends = [
        Moved(Event.ACKED, lease.id, lease.born, lease.attempt, reason=REPEATED) if answer is None else answer
        for lease, answer in zip(leases, answers, strict=True)
    ]
    drafts = draft_moves(pool, queue, ends, ts)
    if not any(joins):
        return drafts
    joined = [join or UNSET for join, end in zip(joins, ends, strict=True) if isinstance(end, Moved)]
    return [replace(draft, join=join) for draft, join in zip(drafts, joined, strict=True)]


def pushed_lines(
    pool: str,
    queue: Queue,
    requests: Sequence[Push],
    answers: PushAnswers,
    place: bytes,
    seq: int,
) -> list[bytes]:
    """One line per job, and one more for an expired job whose place was taken. Accepted and replaced have all fields
    that are needed to push the job again, kept has not. Answers to repeated marks are left to `RepeatedPushes`.

    Fast path: formats the fields shared by consecutive jobs once. Jobs with attributes, a mark, another incarnation or
    a binary body use a Draft.
    """
    lines: list[bytes] = []
    common: tuple[int, ...] = ()
    middle, encode = b"", _encode
    for request, answer in zip(requests, answers, strict=True):
        if not isinstance(answer, Pushed) or answer.repeated:
            continue
        for job, moved in zip(request.jobs, answer.jobs, strict=True):
            body = None
            if moved.event is ACCEPTED and not (moved.reason or moved.attempt or job.attributes or request.mark):
                try:
                    body = job.body.decode()
                except UnicodeDecodeError:
                    body = None
            if body is None:
                for draft in _push_drafts(pool, queue, request, (job, moved), answer.now):
                    lines.append(write_draft(draft, b"%b%d," % (place, seq)))
                    seq += 1
                continue
            own = (answer.now, moved.born, moved.due_at, job.priority, job.ttl_ms, job.tries)
            if own != common:
                common = own
                draft = Draft(
                    ts=answer.now,
                    event=ACCEPTED,
                    pool=pool,
                    namespace=queue.namespace,
                    queue=queue.name,
                    born=moved.born,
                    due_at=moved.due_at,
                    priority=job.priority,
                    ttl=job.ttl_ms,
                    tries=job.tries,
                )
                middle = b',%b,"id":' % encode(draft)[1:-1]
            # The same as events.write_text, without the cost of a call.
            text = b'%b%d%b%b,"body":%b}' % (place, seq, middle, encode(moved.id), encode(body))
            lines.append(b"%08x%08x %b\n" % (crc32(text), len(text), text))
            seq += 1
    return lines


def _push_drafts(pool: str, queue: Queue, request: Push, done: tuple[NewJob, Moved], ts: int) -> Iterator[Draft]:
    job, moved = done
    place: dict[str, Any] = {"ts": ts, "pool": pool, "namespace": queue.namespace, "queue": queue.name, "id": moved.id}
    if moved.reason == EXPIRED:
        # The end of the job whose place this one took.
        yield Draft(**place, event=Event.EXPIRED, born=moved.was)
    fields: dict[str, Any] = {
        "event": moved.event,
        "born": moved.born,
        "attempt": moved.attempt,
        "due_at": moved.due_at,
        "reason": moved.reason,
        "was": moved.was,
    }
    if moved.event is not Event.KEPT:
        fields |= body_fields(job.body)
        fields |= {"priority": job.priority, "ttl": job.ttl_ms, "tries": job.tries, "attributes": job.attributes}
        fields["batch"] = request.mark.name.partition("/")[0] if request.mark else ""
    yield Draft(**place, **fields)


class Doubtful(NamedTuple):
    """A job that is answered as accepted and may be missing from the journal. `job` is the job in the request, None if
    the stored one may differ from it; `ts` is the store's time of the answer.
    """

    job: NewJob | None
    moved: Moved
    batch: str
    ts: int


class RepeatedPushes:
    """Records pushes that changed nothing and are answered as accepted: kept jobs and repeated marks.

    Another process may have stored such a job and died before it wrote to the journal; then the answer would promise a
    job that is in no journal. So when this process first gives such an answer about a job, it reads the job from the
    store and writes it down as "repeated". Readers count any number of these entries as one, with or without the
    original entry. Remembers the last MAX_KNOWN jobs that it has written down.
    """

    def __init__(self, store: Store, pool: str, record: Callable[[Sequence[Draft]], None]) -> None:
        self._store, self._pool, self._record = store, pool, record
        self._known: dict[tuple[Queue, str, int], None] = {}

    async def record(self, queue: Queue, requests: Sequence[Push], answers: PushAnswers) -> PushAnswers:
        """Write the doubtful jobs down, with a promise. If the store cannot be asked about them, requests with such
        jobs get an error with an unknown outcome instead of their answer.
        """
        doubtful = {(one.moved.id, one.moved.born): one for one in self._doubtful(queue, requests, answers)}
        while doubtful:
            keys = list(doubtful)[:READ_AT_ONCE]
            try:
                found = await self._store.get(queue, [job_id for job_id, _ in keys])
            except DuetimeError as error:
                return _unsure(answers, error)
            # The store may answer only the first of them, up to its bound of bytes; the next read asks for the others.
            drafts = [self._draft(queue, doubtful.pop(key), job) for key, job in zip(keys, found, strict=False)]
            written = [draft for draft in drafts if draft]
            self._record(written)
            self._known |= {(queue, draft.id, draft.born): None for draft in written}
        while len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return answers

    def _doubtful(self, queue: Queue, requests: Sequence[Push], answers: PushAnswers) -> Iterator[Doubtful]:
        for request, answer in zip(requests, answers, strict=True):
            if not isinstance(answer, Pushed):
                continue
            for job, moved in zip(request.jobs, answer.jobs, strict=True):
                repeated = answer.repeated or moved.event is Event.KEPT
                if repeated and (queue, moved.id, moved.born) not in self._known:
                    batch = request.mark.name.partition("/")[0] if request.mark and answer.repeated else ""
                    # Without a mark, an import of push_in is reported again, and its request has no bodies.
                    is_new = request.mark and moved.event is not Event.KEPT
                    is_same = is_new and (request.made_ids or job.id == moved.id)
                    yield Doubtful(job if is_same else None, moved, batch, answer.now)

    def _draft(self, queue: Queue, doubtful: Doubtful, found: Job | None) -> Draft | None:
        """Returns None for a job that is gone and that the request does not describe: the process that ended it
        recorded its end.
        """
        job, moved, batch, ts = doubtful
        if found is not None and found.born == moved.born:
            body, attempt, due_at = found.body, found.attempt, found.due_at
            ttl_ms = max(found.expires_at - found.born, 1) if found.expires_at else 0
            tries, priority, attributes = found.tries, found.priority, found.attributes
        elif job is not None:
            # A mark outlives its jobs; the request that repeats the mark holds them again.
            body, attempt, due_at, ttl_ms = job.body, moved.attempt, moved.due_at, job.ttl_ms
            tries, priority, attributes = job.tries, job.priority, job.attributes
        else:
            return None
        text: dict[str, Any] = body_fields(body)
        return Draft(
            ts=ts,
            event=Event.ACCEPTED if moved.event is Event.KEPT else moved.event,
            pool=self._pool,
            namespace=queue.namespace,
            queue=queue.name,
            id=moved.id,
            born=moved.born,
            attempt=attempt,
            due_at=due_at,
            priority=priority,
            ttl=ttl_ms,
            tries=tries,
            reason=REPEATED,
            attributes=attributes,
            batch=batch,
            was=moved.was,
            **text,
        )


def _unsure(answers: PushAnswers, error: DuetimeError) -> PushAnswers:
    """The answers with an error in place of those that would promise a job that may be in no journal."""
    unsure = StoreUnavailable(f"push succeeded but may be missing from the journal: {error.message}", unknown=True)
    return [
        unsure
        if isinstance(answer, Pushed) and (answer.repeated or Event.KEPT in map(_event_of, answer.jobs))
        else answer
        for answer in answers
    ]


# --- engines without a journal


class NodeWithoutJournal(Recorder):
    """Registers an engine without a journal as a node before its first change, renews that record, and removes it when
    the engine stops.
    """

    def __init__(self, store: Store) -> None:
        self._registration = NodeRegistration(store)
        self._renewing: asyncio.Task[None] | None = None
        self.is_needed = True
        self.is_ready = False

    async def prepare(self, call: StoreCall) -> None:
        """A store that is full or read-only lets jobs be delivered and finished, so a failed registration refuses only
        pushes. Raises StoreUnavailable.
        """
        if self._registration.is_made or call.verb in ONLY_LOOKS or call.verb in READS:
            return
        try:
            await self._registration.make()
        except StoreUnavailable:
            if call.verb == "push":
                raise
            return
        self.is_needed, self.is_ready = False, True
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._registration.keep_renewed())

    async def close(self) -> None:
        if self._renewing:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        with suppress(DuetimeError):
            await self._registration.withdraw()


async def open_journal_recorder(store: Store, journal: Journal, pool: str) -> Sequence[Recorder]:
    """The recorder of an engine on the pool's store that journals. Raises as `JournalRecorder.open`."""
    recorder = JournalRecorder(store, journal, pool)
    await recorder.open()
    return (recorder,)

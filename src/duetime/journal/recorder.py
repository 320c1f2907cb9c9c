"""The recorder that writes an engine's events to the journal. The order is store, journal, answer.

Events whose loss breaks no guarantee (delivered, released, given back, lease expired, notified) are written soon, and
nobody waits for them. For all others the engine waits for `flushed` before it answers.

Whether an engine journals is decided when it opens, for its whole life. An engine without a journal has a
`NodeWithoutJournal` instead, so that audit knows of a program whose entries are missing.
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from duetime.engine.recorder import MAY_HAPPEN_AGAIN, Notified, Recorder, Step, is_coroutine
from duetime.engine.store_time import StoreTime
from duetime.journal import pool_journal
from duetime.journal.events import Draft
from duetime.journal.journal import Journal
from duetime.journal.pushed_lines import pushed_lines
from duetime.journal.registered_nodes import NodeRegistration
from duetime.journal.repeated_pushes import RepeatedPushes, has_repeated
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.job import Event, Moved
from duetime.model.names import Queue
from duetime.stores.base import Purged, Push, Pushed, Reaped, Reserved, Store, get_all, pushed_parts
from duetime.stores.finishes import Finish, Finished, following_jobs, seen_join

Answers = Sequence[object]

READS = frozenset({"results"})
"""Verbs that change nothing."""
ONLY_LOOKS = frozenset({"reap"})
"""Verbs that often change nothing, and that every program uses: a lazy journal does not make its node for them."""


class JournalRecorder(Recorder):
    """Records the events of one engine in one pool. `store` is asked about jobs that a push found already there."""

    def __init__(self, store: Store, journal: Journal, pool: str) -> None:
        self._store = store
        self._journal = journal
        self._pool = pool
        self._time = StoreTime()
        self._known: pool_journal.Journaling | None = None
        self._epoch = ""
        self._repeated = RepeatedPushes(store, journal, pool)
        self._registration = NodeRegistration(store, journal.node, journal.options.folder)
        self._under_way: dict[Step, int] = {}
        self.is_ready = False
        self._record_outcome: Mapping[str, Callable[[Step, Any], Any]] = {
            "push": lambda step, answers: self._record_pushes(step.queue, step.asked, answers),
            "reserve": self._reserved,
            "ack": self._acked,
            "finish": self._finished,
            "ack_by_id": self._acked_by_id,
            "release": self._moved_one,
            "give_back": self._moved_one,
            "kill": self._moved_one,
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
        self._time.learn(info.now)
        self._epoch = info.epoch
        if self._journal.writer.is_open:
            await self._make_node()
        self._known = await pool_journal.begin(self._store, self._pool)
        self._journal.keep_for(self._pool, self._pulse, self._renew)

    async def _renew(self) -> None:
        """Write the pool's and the nodes' records again if the store was wiped and has lost them. A store that was not
        wiped has lost them because the pool's journal was ended: they stay away until a journal begins again.
        """
        epoch = (await self._store.ping()).epoch
        if epoch == self._epoch and await pool_journal.known(self._store) is None:
            return
        self._epoch = epoch
        if self._known:
            await pool_journal.remember(self._store, self._known)
        if self._journal.writer.is_open:
            await self._registration.make()
            await self._registration.renew()

    async def close(self) -> None:
        self._journal.release(self._pool)
        if self._registration.is_made:
            # If this fails, the `closed` entry in the node's journal says the same.
            with suppress(DuetimeError, OSError):
                await asyncio.to_thread(self._journal.writer.flush)
                await self._registration.end(self._journal.writer.seq)

    def flushed(self) -> Future[None] | None:
        return self._journal.promise()

    def _pulse(self) -> int:
        """A store time before which no event can still be recorded: no step that is under way began earlier."""
        return min(self._under_way.values(), default=self._time.now_ms())

    # --- before and after a step

    async def prepare(self, step: Step) -> None:
        """A lazy journal makes its node here, before its first change, and registers it."""
        if self._registration.is_made or step.verb in READS:
            return
        if step.verb not in ONLY_LOOKS or self._journal.writer.is_open:
            await self._make_node()

    def before(self, step: Step) -> None:
        """Raises JournalFull for a push if the disk is nearly full, StoreUnavailable if nothing can be recorded."""
        verb = step.verb
        if verb in READS:
            return
        if verb == "push":
            self._journal.admit()
        else:
            self._journal.ready(sure=verb not in ONLY_LOOKS)
        self._under_way[step] = self._time.now_ms()

    async def _make_node(self) -> None:
        self._journal.ready()
        await self._registration.make()
        self.is_ready = True

    def after(self, step: Step, outcome: Any) -> Any:
        if step.verb in READS or isinstance(outcome, BaseException):
            self._under_way.pop(step, None)
            return outcome
        recorded: Any = None
        try:
            recorded = self._record_outcome[step.verb](step, outcome)
        finally:
            if not is_coroutine(recorded):
                self._under_way.pop(step, None)
        return self._after(step, recorded) if is_coroutine(recorded) else recorded

    async def _after(self, step: Step, recording: Awaitable[Any]) -> Any:
        try:
            return await recording
        finally:
            self._under_way.pop(step, None)

    def _reserved(self, step: Step, reserved: Reserved) -> Reserved:
        self._time.learn(reserved.now)
        if reserved.expired or any(reserved.deliveries):
            self._journal.record(pool_journal.delivered(self._pool, step.queue, reserved))
        return reserved

    def _acked(self, step: Step, answers: Answers) -> Answers:
        self._record(pool_journal.acked(self._pool, step.queue, step.asked, answers, self._time.now_ms()))
        return answers

    def _acked_by_id(self, step: Step, answers: Answers) -> Answers | Awaitable[Answers]:
        if any([answer is None for answer in answers]):
            return self._acked_by_id_some(step, answers)
        return self._record_acks_by_id(step, answers)

    async def _acked_by_id_some(self, step: Step, answers: Answers) -> Answers:
        """The entry of an ack that found no job ends whichever job had the id until the entry's time, so that time must
        not lie before the job's delivery.
        """
        with suppress(DuetimeError):
            self._time.learn((await self._store.ping()).now)
        return self._record_acks_by_id(step, answers)

    def _record_acks_by_id(self, step: Step, answers: Answers) -> Answers:
        self._record(pool_journal.acked_by_id(self._pool, step.queue, step.asked, answers, self._time.now_ms()))
        return answers

    def _moved_one(self, step: Step, moved: Moved) -> Moved:
        self._record(pool_journal.moved(self._pool, step.queue, [moved], self._time.now_ms(), step.error))
        return moved

    def _moved(self, step: Step, answers: Answers) -> Answers:
        self._record(pool_journal.moved(self._pool, step.queue, answers, self._time.now_ms()))
        return answers

    def _purged(self, step: Step, purged: Purged) -> Purged:
        if purged.removed:
            self._record([pool_journal.purged(self._pool, step.queue, step.asked, purged.now)])
        return purged

    def _notified(self, step: Step, answer: Notified) -> Notified:
        self._journal.record([pool_journal.notified(self._pool, step.asked[0], self._time.now_ms(), answer)])
        return answer

    def _record(self, drafts: Sequence[Draft]) -> None:
        """Record the drafts; `flushed` waits for them if callers rely on any of them."""
        if drafts:
            promise = any(draft.event not in MAY_HAPPEN_AGAIN for draft in drafts)
            self._journal.record(drafts, promise=promise)

    def _record_pushes(
        self, queue: Queue, requests: Sequence[Push], answers: Sequence[Pushed | DuetimeError]
    ) -> Sequence[Pushed | DuetimeError] | Coroutine[Any, Any, Sequence[Pushed | DuetimeError]]:
        for answer in answers[:1]:
            if isinstance(answer, Pushed):
                self._time.learn(answer.now)
        self._journal.record_lines(pushed_lines(self._pool, queue, *pushed_parts(requests, answers)))
        if has_repeated(answers):
            return self._repeated.record(queue, requests, answers)
        return answers

    async def _record_all_pushes(
        self, queue: Queue, requests: Sequence[Push], answers: Sequence[Pushed | DuetimeError]
    ) -> Sequence[Pushed | DuetimeError]:
        recorded = self._record_pushes(queue, requests, answers)
        return await recorded if isinstance(recorded, Coroutine) else recorded

    async def _reaped(self, step: Step, reaped: Reaped) -> Reaped:
        """Without receipts if not every imported job could be recorded; then the store reports those jobs again."""
        self._time.learn(reaped.now)
        for queue, moved in reaped.moved.items():
            self._journal.record(pool_journal.moved(self._pool, queue, moved, reaped.now))
        if not reaped.pushed:
            return reaped
        if not self._registration.is_made:
            await self._make_node()
        is_complete = True
        for queue, pushed in reaped.pushed.items():
            requests, answers = zip(*pushed, strict=True)
            told = await self._record_all_pushes(queue, requests, answers)
            is_complete &= not any(isinstance(answer, DuetimeError) for answer in told)
        return reaped if is_complete else replace(reaped, receipts=())

    # --- finishes and the jobs that follow from them

    async def _finished(
        self, step: Step, answers: Sequence[Finished | DuetimeError | None]
    ) -> Sequence[Finished | DuetimeError | None]:
        """The jobs that follow are recorded before the end of the finished one: a journal that is cut off between the
        two has lost none.

        None may be the answer to a finish that is repeated because its answer was lost, and the process that made it
        may have died before it recorded what followed. So those of its jobs that exist are recorded as kept.
        """
        queue, finishes = step.queue, step.asked
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
                    results[place] = StoreUnavailable(f"it is unknown what followed: {error.message}", unknown=True)
        await self._record_following(queue, repeated, results)
        # A finish that happened is recorded as such, also where its caller gets an error.
        ends = [one.acked if isinstance(one, Finished) else other for one, other in zip(answers, results, strict=True)]
        joins = [seen_join(one, answer) for one, answer in zip(finishes, answers, strict=True)]
        leases = [finish.lease for finish in finishes]
        self._record(pool_journal.acked(self._pool, queue, leases, ends, self._time.now_ms(), joins))
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


class NodeWithoutJournal(Recorder):
    """Registers an engine without a journal as a node before its first change, renews that record, and removes it when
    the engine stops.
    """

    def __init__(self, store: Store) -> None:
        self._registration = NodeRegistration(store)
        self._renewing: asyncio.Task[None] | None = None
        self.is_needed = True
        self.is_ready = False

    async def prepare(self, step: Step) -> None:
        """A store that is full or read-only lets jobs be delivered and finished, so a failed registration refuses only
        pushes. Raises StoreUnavailable.
        """
        if self._registration.is_made or step.verb in ONLY_LOOKS or step.verb in READS:
            return
        try:
            await self._registration.make()
        except StoreUnavailable:
            if step.verb == "push":
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

"""The reference store: the contract in plain Python, in one process's memory.

Other stores are compared with this one, answer by answer, so it is written to be read. It is also the store for users'
own tests. It runs in one event loop and no verb awaits anything, so every verb is atomic.
"""

import asyncio
import secrets
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import msgspec

from duetime.duties import Duty
from duetime.model.clock import Clock, SystemClock
from duetime.model.errors import DuetimeError, LeaseLost
from duetime.model.job import (
    STEP_JOBS,
    Counts,
    Event,
    Job,
    Lease,
    Moved,
    QueueTotals,
    Reason,
    State,
    payload_bytes,
    within_step,
)
from duetime.model.names import Queue
from duetime.stores.base import (
    Ask,
    Cursor,
    GiveBack,
    OneJob,
    Page,
    Purged,
    Push,
    Pushed,
    QueueRules,
    Reaped,
    Reserved,
    RulesChange,
    StoreInfo,
    Wake,
    Withdrawal,
    results_wake,
)
from duetime.stores.finishes import Finish, Finished, JoinCount, KeptResult
from duetime.stores.memory import queue as moves
from duetime.stores.memory.queue import DEAD, LEASED, MemoryQueue, StoredJob
from duetime.stores.memory.registry import MemoryRegistry

MAX_PENDING_WAKES = 10_000


class MemoryStore:
    """Keeps the contract of `stores.base.Store`; everything is gone with the process."""

    one_job: OneJob | None = None
    duty: Duty | None = None

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._queues: dict[Queue, MemoryQueue] = {}
        self._epoch = secrets.token_hex(8)
        self._listeners: set[asyncio.Queue[Wake]] = set()
        self.registry = MemoryRegistry(self._clock)

    def _stored(self, queue: Queue) -> MemoryQueue:
        stored = self._queues.get(queue)
        if stored is None:
            stored = self._queues[queue] = MemoryQueue()
        stored.note_use(self._clock.now_ms())
        return stored

    def _leased(self, lease: Lease) -> tuple[MemoryQueue, StoredJob]:
        """The queue and the job of a lease that is held. Raises LeaseLost."""
        stored = self._stored(lease.queue)
        job = stored.jobs.get(lease.id)
        if job is None or not moves.holds(job, lease):
            raise LeaseLost.of(lease)
        return stored, job

    def _announce(self, queue: Queue, stored: MemoryQueue, before: int | None) -> None:
        earliest = stored.earliest()
        if earliest is None or stored.rules.paused or (before is not None and before <= earliest):
            return
        self._send(Wake(queue, earliest))

    def _send(self, wake: Wake) -> None:
        for listener in self._listeners:
            if listener.full():
                while not listener.empty():
                    listener.get_nowait()
                listener.put_nowait(Wake())
            else:
                listener.put_nowait(wake)

    # --- the hot path

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        stored, now = self._stored(queue), self._clock.now_ms()
        before = stored.earliest()
        answers = [moves.push(stored, request, now) for request in requests]
        self._announce(queue, stored, before)
        return answers

    async def reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved:
        stored, now = self._stored(queue), self._clock.now_ms()
        if stored.rules.paused:
            return Reserved([[] for _ in asks], None, now, paused=True)
        picker = moves.MemoryPicker(queue, stored, now)
        deliveries = [picker.serve(ask) for ask in asks]
        return Reserved(deliveries, stored.earliest(), now, picker.expired)

    async def ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved | LeaseLost | None]:
        return [self._ack(lease) for lease in leases]

    def _ack(self, lease: Lease) -> Moved | LeaseLost | None:
        if lease.id not in self._stored(lease.queue).jobs:
            return None
        try:
            stored, job = self._leased(lease)
        except LeaseLost as lost:
            now = self._clock.now_ms()
            return None if self._stored(lease.queue).jobs[lease.id].expired(now) else lost
        stored.end(job)
        stored.count("acked", self._clock.now_ms())
        return Moved(Event.ACKED, job.id, job.born, job.attempt)

    async def finish(self, queue: Queue, finishes: Sequence[Finish]) -> Sequence[Finished | DuetimeError | None]:
        stored, now = self._stored(queue), self._clock.now_ms()
        before = stored.earliest()
        answers = [moves.finish(stored, one, now) for one in finishes]
        self._announce(queue, stored, before)
        done = [one for one, answer in zip(finishes, answers, strict=True) if isinstance(answer, Finished)]
        if kept := [one.lease.id for one in done if one.keeps_result]:
            self._send(results_wake(queue, kept))
        return answers

    async def results(self, queue: Queue, ids: Sequence[str]) -> Sequence[KeptResult | None]:
        return moves.results(self._stored(queue), ids, self._clock.now_ms())

    async def joins(self, queue: Queue, *, after: str = "") -> Sequence[JoinCount]:
        return moves.joins(self._stored(queue), after, self._clock.now_ms())

    async def raise_joins(self, queue: Queue, joins: Sequence[JoinCount]) -> None:
        for join in joins:
            moves.raise_join(self._stored(queue), join, self._clock.now_ms())

    async def release(self, lease: Lease, delay_ms: int, error: str = "") -> Moved:
        stored, job = self._leased(lease)
        now, before = self._clock.now_ms(), stored.earliest()
        job.error = error or job.error
        stored.remove_from_place(job)
        moved = stored.back_to_waiting(job, now, now + delay_ms, Event.RELEASED)
        self._announce(lease.queue, stored, before)
        return moved

    async def give_back(self, queue: Queue, give_backs: Sequence[GiveBack]) -> Sequence[Moved | LeaseLost]:
        now, before = self._clock.now_ms(), self._stored(queue).earliest()
        answers: list[Moved | LeaseLost] = []
        for one in give_backs:
            try:
                stored, job = self._leased(one.lease)
            except LeaseLost as lost:
                answers.append(lost)
                continue
            stored.remove_from_place(job)
            job.used -= 1
            due_at = job.due_at if one.delay_ms is None else now + one.delay_ms
            answers.append(stored.back_to_waiting(job, now, due_at, Event.GIVEN_BACK))
        self._announce(queue, self._stored(queue), before)
        return answers

    async def kill(self, lease: Lease, error: str = "") -> Moved:
        stored, job = self._leased(lease)
        job.error = error or job.error
        stored.remove_from_place(job)
        return stored.die(job, self._clock.now_ms(), Reason.KILLED)

    async def extend(self, lease: Lease, ttr_ms: int) -> int:
        stored, job = self._leased(lease)
        stored.remove_from_place(job)
        stored.put(job, LEASED, self._clock.now_ms() + ttr_ms)
        return job.sort_at

    async def cancel(self, queue: Queue, ids: Sequence[str], *, finished: bool = False) -> Sequence[Moved | None]:
        stored, now = self._stored(queue), self._clock.now_ms()
        return [moves.cancel(stored, job_id, now, finished=finished) for job_id in ids]

    async def withdraw(self, queue: Queue, withdrawals: Sequence[Withdrawal]) -> Sequence[Moved | None]:
        stored, now = self._stored(queue), self._clock.now_ms()
        return [moves.withdraw(stored, one, now) for one in withdrawals]

    async def reschedule(
        self, queue: Queue, ids: Sequence[str], *, delay_ms: int = 0, due_at: int | None = None
    ) -> Sequence[Moved | DuetimeError | None]:
        stored, now = self._stored(queue), self._clock.now_ms()
        before = stored.earliest()
        answers = [
            moves.reschedule(stored, job_id, now, now + delay_ms if due_at is None else due_at) for job_id in ids
        ]
        self._announce(queue, stored, before)
        return answers

    async def reap(self, limit: int = 500, *, recorded: Sequence[str] = ()) -> Reaped:
        now, left = self._clock.now_ms(), limit
        self.registry.forget_ended_counters()
        moved: dict[Queue, Sequence[Moved]] = {}
        for queue in sorted(self._queues):
            stored = self._stored(queue)
            before = stored.earliest()
            if happened := list(moves.reap(stored, now, left)):
                moved[queue] = happened
                left -= len(happened)
                self._announce(queue, stored, before)
            moves.forget_results(stored, now)
            if stored.known and stored.is_idle(now):
                stored.known, stored.expired = False, 0
        ends = [stored.leases[0][0] for stored in self._queues.values() if stored.leases]
        expiries = [stored.ttl[0][0] + 1 for stored in self._queues.values() if stored.ttl]
        return Reaped(moved, min(ends + expiries, default=None), now)

    async def wakeups(self) -> AsyncIterator[Wake]:
        listener: asyncio.Queue[Wake] = asyncio.Queue(MAX_PENDING_WAKES)
        self._listeners.add(listener)
        try:
            yield Wake()
            while True:
                yield await listener.get()
        finally:
            self._listeners.discard(listener)

    # --- reading and administering

    async def heads(self, queues: Sequence[Queue], *, waiting: bool = False) -> Sequence[int | None]:
        found = [self._stored(queue) for queue in queues]
        return [None if stored.rules.paused else stored.earliest() for stored in found]

    async def get(self, queue: Queue, ids: Sequence[str]) -> Sequence[Job | None]:
        stored, now = self._stored(queue), self._clock.now_ms()
        found = [stored.jobs.get(job_id) for job_id in ids[:STEP_JOBS]]
        jobs = (moves.view(queue, job, now) if job and not job.expired(now) else None for job in found)
        return list(within_step(jobs, payload_bytes))

    async def list_jobs(self, queue: Queue, state: State, *, cursor: str | None = None, limit: int = 100) -> Page:
        stored, now = self._stored(queue), self._clock.now_ms()
        places = sorted(moves.places(stored, state, now))
        start = 0 if cursor is None else bisect_right(places, Cursor.parse(cursor))
        shown = places[start : start + limit]
        more = start + limit < len(places)
        jobs = [moves.view(queue, stored.jobs[job_id], now) for _, _, job_id in shown]
        return Page(jobs, str(shown[-1]) if more else None)

    async def counts(self, queues: Sequence[Queue]) -> Sequence[Counts]:
        now = self._clock.now_ms()
        return [moves.counts(self._stored(queue), now) for queue in queues]

    async def totals(self, queues: Sequence[Queue]) -> Sequence[QueueTotals]:
        now = self._clock.now_ms()
        return [moves.totals(self._stored(queue), now) for queue in queues]

    async def queues(self, namespace: str | None = None) -> Sequence[Queue]:
        known = (queue for queue, stored in self._queues.items() if stored.known)
        return sorted(queue for queue in known if namespace in (None, queue.namespace))

    async def due_histogram(self, queue: Queue, edges: Sequence[int]) -> Sequence[int]:
        stored = self._stored(queue)
        below = [sum(bisect_left(index, (edge, "")) for index in stored.waiting.values()) for edge in edges]
        return [high - low for low, high in pairwise(below)]

    async def respawn(
        self,
        queue: Queue,
        *,
        ids: Sequence[str] | None = None,
        limit: int = 1,
        ttl_ms: int = 0,
        tries: int | None = None,
    ) -> Sequence[Moved]:
        stored, now = self._stored(queue), self._clock.now_ms()
        before = stored.earliest()
        chosen = [job_id for _, job_id in stored.dead[:limit]] if ids is None else ids
        moved: list[Moved] = []
        for job_id in chosen[:STEP_JOBS]:
            job = stored.jobs.get(job_id)
            if job is None or job.place != DEAD:
                continue
            stored.remove_from_place(job)
            job.used, job.reason, job.error = 0, "", ""
            job.tries = job.tries if tries is None else tries
            job.expires_at = now + ttl_ms if ttl_ms else 0
            stored.wait(job, now)
            stored.count("respawned", now)
            moved.append(Moved(Event.RESPAWNED, job.id, job.born, job.attempt, now))
        self._announce(queue, stored, before)
        return moved

    async def purge(self, queue: Queue, states: Sequence[State], *, limit: int | None = None) -> Purged:
        stored, now = self._stored(queue), self._clock.now_ms()
        if limit is None and set(states) == set(State):
            floor = max([stored.floor, now, *(job.born for job in stored.jobs.values())])
            rules = stored.rules
            purged = MemoryQueue(
                marks=stored.marks, results=stored.results, joins=stored.joins, rules=rules, floor=floor
            )
            purged.known = rules != QueueRules()
            if rules.kept:
                purged.totals = stored.totals
            self._queues[queue] = purged
            return Purged(len(stored.jobs), now)
        matching = [
            job_id for state in states for _, _, job_id in sorted(moves.places(stored, state, now, expired=True))
        ]
        doomed = matching[: min(STEP_JOBS, STEP_JOBS if limit is None else limit)]
        for job_id in doomed:
            stored.end(stored.jobs[job_id])
        stored.floor = max(stored.floor, now)
        wanted = len(matching) if limit is None else min(limit, len(matching))
        return Purged(len(doomed), now, more=len(doomed) < wanted)

    async def configure(self, queue: Queue, change: RulesChange | None = None) -> QueueRules:
        stored = self._stored(queue)
        if change is not None:
            resumed = stored.rules.paused and change.paused is False
            stored.rules = msgspec.structs.replace(stored.rules, **moves.set_fields(change))
            stored.known = True
            if resumed:
                self._announce(queue, stored, None)
        return stored.rules

    async def ping(self) -> StoreInfo:
        return StoreInfo("memory", "1", self._epoch, self._clock.now_ms())

    async def check(self) -> Sequence[str]:
        return [problem for queue, stored in self._queues.items() for problem in moves.check(queue, stored)]

    async def close(self) -> None:
        self._listeners.clear()

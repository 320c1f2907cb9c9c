"""The truth of a simulation: a memory store that keeps books, and the watch at the engine's side of the wire.

`Ledger` writes down every move at the instant it happens, below all faults, and complains about one that cannot be:
a delivery before its time or during a live lease, a lease taken back too early, a job that comes from nowhere. The
members of a group keep the same books, so a job that exists on both of them is found.
`Wire` is an engine's own faulty connection to it and knows which leases reached the engine and which it gave back.
`Notebook` is the engine's recorder: it takes its time to write, as a disk does, and sometimes fails.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from duetime.engine.recorder import Recorder, StoreCall
from duetime.model.clock import Clock
from duetime.model.errors import DuetimeError, LeaseLost, StoreUnavailable
from duetime.model.job import Delivery, Event, Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import (
    Ask,
    GiveBack,
    Push,
    Pushed,
    QueueRules,
    Reaped,
    Reserved,
    ResultSink,
    RulesChange,
    Send,
    Wake,
    pushed_parts,
)
from duetime.stores.memory.store import MemoryStore
from tests.faults.store_faults import FaultyStore

WAITING, LEASED, DEAD = "waiting", "leased", "dead"

Key = tuple[Queue, str]


@dataclass
class Entry:
    """Where a job is, since when, and until when it is leased."""

    born: int
    attempt: int
    place: str
    since: int
    due_at: int = 0
    until: int = 0


FROM: dict[Event, tuple[str, ...]] = {
    Event.GIVEN_BACK: (LEASED,),
    Event.ACKED: (LEASED,),
    Event.RELEASED: (LEASED,),
    Event.LEASE_EXPIRED: (LEASED,),
    Event.DEAD: (LEASED, WAITING),
    Event.CANCELLED: (WAITING, LEASED),
    Event.DELETED: (DEAD,),
    Event.RESCHEDULED: (WAITING,),
    Event.EXPIRED: (WAITING, LEASED),
    Event.RESPAWNED: (DEAD,),
}
TO: dict[Event, str | None] = {
    Event.GIVEN_BACK: WAITING,
    Event.ACKED: None,
    Event.RELEASED: WAITING,
    Event.LEASE_EXPIRED: WAITING,
    Event.DEAD: DEAD,
    Event.CANCELLED: None,
    Event.DELETED: None,
    Event.RESCHEDULED: WAITING,
    Event.EXPIRED: None,
    Event.RESPAWNED: WAITING,
}


class Books:
    """What happened, on all stores of a world."""

    def __init__(self) -> None:
        self.jobs: dict[Key, Entry] = {}
        self.accepted: set[tuple[Queue, str, int]] = set()
        self.events: Counter[Event] = Counter()
        self.resumed_at: dict[Queue, int] = {}
        self.history: list[tuple[Any, ...]] = []
        self.complaints: list[str] = []

    def audit(self, ledgers: "Sequence[Ledger]") -> None:
        """The stores hold what the books say, no more and no less, and each job once."""
        held = [
            ((queue, job.id), (job.born, job.attempt, job.place))
            for ledger in ledgers
            for queue, line in ledger._queues.items()
            for job in line.jobs.values()
        ]
        booked = [(key, (entry.born, entry.attempt, entry.place)) for key, entry in self.jobs.items()]
        for one, times in (Counter(held) - Counter(booked)).items():
            self.complaints.append(f"at the end: there without a reason: {one} {times} times")
        for one in Counter(booked) - Counter(held):
            self.complaints.append(f"at the end: lost: {one}")


class Ledger(MemoryStore):
    def __init__(self, clock: Clock, books: Books) -> None:
        super().__init__(clock)
        self._listeners = InOrder()  # type: ignore[assignment]
        self.books = books

    # --- the books

    def _complain(self, what: str, *about: object) -> None:
        self.books.complaints.append(f"{self._clock.now_ms()}: {what}: {about}")

    def _note(self, queue: Queue, moved: Iterable[Moved | DuetimeError | None]) -> None:
        for one in moved:
            if isinstance(one, Moved):
                self.books.events[one.event] += 1
                if one.event is Event.ACCEPTED and one.reason == "expired":  # the job that had this id before
                    self.books.history.append((self._clock.now_ms(), Event.EXPIRED, queue.name, one.id, one.was, 0))
                self.books.history.append((self._clock.now_ms(), one.event, queue.name, one.id, one.born, one.attempt))
                self._book(queue, one)

    def _book(self, queue: Queue, moved: Moved) -> None:
        key, entry = (queue, moved.id), self.books.jobs.get((queue, moved.id))
        match moved.event:
            case Event.ACCEPTED | Event.REPLACED:
                self._book_new(key, entry, moved)
            case Event.KEPT:
                if entry is None or (entry.born, entry.place) != (moved.born, moved.reason):
                    self._complain("kept what was not there", moved, entry)
            case event:
                if entry is None or entry.place not in FROM[event]:
                    self._complain("cannot happen here", moved, entry)
                elif (entry.born, entry.attempt) != (moved.born, moved.attempt):
                    self._complain("through the fence", moved, entry)
                elif event is Event.LEASE_EXPIRED and entry.until > self._clock.now_ms():
                    self._complain("a lease ended early", moved, entry)
                elif place := TO[event]:
                    self.books.jobs[key] = self._entry(moved, place)
                else:
                    del self.books.jobs[key]

    def _book_new(self, key: Key, entry: Entry | None, moved: Moved) -> None:
        if (entry.born if entry else 0) != moved.was or (entry and moved.born <= entry.born):
            self._complain("took the wrong place", moved, entry)
        self.books.events[Event.EXPIRED] += moved.reason == "expired"
        self.books.accepted.add((*key, moved.born))
        self.books.jobs[key] = self._entry(moved, WAITING)

    def _entry(self, moved: Moved, place: str) -> Entry:
        return Entry(moved.born, moved.attempt, place, self._clock.now_ms(), moved.due_at)

    def _book_delivery(self, delivery: Delivery) -> None:
        lease, now = delivery.lease, self._clock.now_ms()
        entry = self.books.jobs.get((lease.queue, lease.id))
        self.books.events[Event.DELIVERED] += 1
        self.books.history.append((now, Event.DELIVERED, lease.queue.name, lease.id, lease.born, lease.attempt))
        if entry is None or entry.place != WAITING:
            self._complain("delivered during a live lease, or from nowhere", delivery, entry)
        elif (entry.born, entry.attempt + 1) != (lease.born, lease.attempt):
            self._complain("delivered under a wrong number", delivery, entry)
        if delivery.due_at > now or (delivery.expires_at and delivery.expires_at < now):
            self._complain("delivered early or expired", delivery, entry)
        if 0 < delivery.tries < delivery.used:
            self._complain("delivered more often than its tries allow", delivery, entry)
        key = lease.queue, lease.id
        self.books.jobs[key] = Entry(lease.born, lease.attempt, LEASED, now, until=delivery.lease_until)

    # --- the verbs

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        answers = await super().push(queue, requests)
        for answer in answers:
            if isinstance(answer, Pushed) and not answer.repeated:
                self._note(queue, answer.jobs)
        return answers

    async def reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved:
        reserved = await super().reserve(queue, asks)
        self._note(queue, reserved.expired)
        for deliveries in reserved.deliveries:
            for delivery in deliveries:
                self._book_delivery(delivery)
        return reserved

    async def ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Any]:
        answers = await super().ack(queue, leases)
        self._note(queue, answers)
        return answers

    async def release(self, lease: Lease, delay_ms: int, error: str = "") -> Moved:
        moved = await super().release(lease, delay_ms, error)
        self._note(lease.queue, [moved])
        return moved

    async def give_back(self, queue: Queue, give_backs: Sequence[GiveBack]) -> Sequence[Moved | LeaseLost]:
        answers = await super().give_back(queue, give_backs)
        self._note(queue, answers)
        return answers

    async def kill(self, lease: Lease, error: str = "") -> Moved:
        moved = await super().kill(lease, error)
        self._note(lease.queue, [moved])
        return moved

    async def extend(self, lease: Lease, ttr_ms: int) -> int:
        until = await super().extend(lease, ttr_ms)
        self.books.jobs[lease.queue, lease.id].until = until
        return until

    async def cancel(self, queue: Queue, ids: Sequence[str], *, finished: bool = False) -> Sequence[Moved | None]:
        answers = await super().cancel(queue, ids, finished=finished)
        self._note(queue, answers)
        return answers

    async def reschedule(self, queue: Queue, ids: Sequence[str], **when: Any) -> Sequence[Any]:
        answers = await super().reschedule(queue, ids, **when)
        self._note(queue, answers)
        return answers

    async def reap(self, limit: int = 500, *, recorded: Sequence[str] = ()) -> Reaped:
        reaped = await super().reap(limit, recorded=recorded)
        for queue, moved in reaped.moved.items():
            self._note(queue, moved)
        return reaped

    async def respawn(self, queue: Queue, **options: Any) -> Sequence[Moved]:
        moved = await super().respawn(queue, **options)
        self._note(queue, moved)
        return moved

    async def configure(self, queue: Queue, change: RulesChange | None = None) -> QueueRules:
        rules = await super().configure(queue, change)
        self.books.resumed_at[queue] = self._clock.now_ms()
        return rules


class InOrder(dict[asyncio.Queue[Wake], None]):
    """A set that remembers the order: the same seed must give the same history."""

    def add(self, listener: asyncio.Queue[Wake]) -> None:
        self[listener] = None

    def discard(self, listener: asyncio.Queue[Wake]) -> None:
        self.pop(listener, None)


class Wire(FaultyStore):
    """One engine's connection. `reached`: leases whose answer came through; `returned`: those it tried to give back."""

    def __init__(self, ledger: Ledger, interrupt: Callable[[], None]) -> None:
        super().__init__(ledger)
        self._interrupt = interrupt
        self.reached: set[Lease] = set()
        self.returned: set[Lease] = set()

    async def close(self) -> None:
        """The ledger is there for the other engines."""

    async def reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved:
        reserved = await super().reserve(queue, asks)
        self.reached |= {delivery.lease for deliveries in reserved.deliveries for delivery in deliveries}
        self._interrupt()
        return reserved

    async def give_back(self, queue: Queue, give_backs: Sequence[GiveBack]) -> Sequence[Any]:
        self.returned |= {one.lease for one in give_backs}
        return await super().give_back(queue, give_backs)


class WireOneJob:
    """Single-job calls over a wire. A task makes each of them; a real store uses a thread or the replies of a socket.
    Like a real one it declines a call now and then.
    """

    def __init__(self, wire: Wire, declines: Callable[[], bool]) -> None:
        self._wire, self._declines = wire, declines
        self._calls: set[asyncio.Task[None]] = set()

    def push(self, queue: Queue, request: Push, reply: ResultSink[Any]) -> Send | None:
        return self._sending(lambda: self._wire.push(queue, [request]), reply)

    def ack(self, lease: Lease, reply: ResultSink[Any]) -> Send | None:
        return self._sending(lambda: self._wire.ack(lease.queue, [lease]), reply)

    def reserve(self, queue: Queue, ask: Ask, reply: ResultSink[Any]) -> Send | None:
        return self._sending(lambda: self._wire.reserve(queue, [ask]), reply)

    def blocking(self) -> None:
        return None

    def _sending(self, call: Callable[[], Coroutine[Any, Any, Any]], reply: ResultSink[Any]) -> Send | None:
        return None if self._declines() else lambda: self._start(call(), reply)

    def _start(self, call: Coroutine[Any, Any, Any], reply: ResultSink[Any]) -> None:
        task = asyncio.create_task(self._answer(call, reply))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _answer(self, call: Coroutine[Any, Any, Any], reply: ResultSink[Any]) -> None:
        try:
            answer = await call
        except DuetimeError as error:
            reply.set_exception(error)
        else:
            reply.set_result(answer)


class Notebook(Recorder):
    """Records the jobs that an engine accepted, as a journal does: they are `written` when a flush ends. Flushes end
    one after the other.
    """

    def __init__(self, flush_s: Callable[[], float], fails: Callable[[], bool]) -> None:
        self._flush_s, self._fails = flush_s, fails
        self._noted: set[tuple[Queue, str, int]] = set()
        self._free_at = 0.0
        self.written: set[tuple[Queue, str, int]] = set()

    def after(self, call: StoreCall, outcome: Any) -> Any:
        if call.verb == "push" and not isinstance(outcome, BaseException):
            _, parts = pushed_parts(call.asked, outcome)
            jobs = [moved for part in parts if isinstance(part, Pushed) for moved in part.jobs]
            self._noted |= {(call.queue, moved.id, moved.born) for moved in jobs}
        return outcome

    def flushed(self) -> asyncio.Future[None] | None:
        if not self._noted:
            return None
        noted, self._noted = self._noted, set[tuple[Queue, str, int]]()
        loop = asyncio.get_running_loop()
        flush: asyncio.Future[None] = loop.create_future()
        self._free_at = max(self._free_at, loop.time()) + self._flush_s()
        loop.call_at(self._free_at, self._end_flush, flush, noted)
        return flush

    def _end_flush(self, flush: asyncio.Future[None], noted: set[tuple[Queue, str, int]]) -> None:
        if self._fails():
            flush.set_exception(StoreUnavailable("the journal's disk is full", unknown=True))
            flush.exception()  # retrieved, also if nobody waits for it
        else:
            self.written |= noted
            flush.set_result(None)

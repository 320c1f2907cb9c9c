"""The verbs that move jobs, each in one place: an observer may refuse it, the store does it, the observers are told.

A verb that is called alone (release, kill, purge ...) returns only after its events are on record. For verbs that the
engine groups (push, ack, cancel) the group commit waits for that, so that the next store call need not.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from duetime.engine.observers import Observer, Observers
from duetime.errors import DuetimeError, LeaseLost, StoreUnavailable
from duetime.job import Lease, Moved, State
from duetime.names import Queue
from duetime.stores.base import Ask, Purged, Push, Pushed, Reaped, Reserved, Store

T = TypeVar("T")


class ObservedStore:
    """Not a whole Store: what moves no job is asked of the store itself."""

    def __init__(self, store: Store, observers: Observers) -> None:
        self._store = store
        self._observers = observers
        self._pushed = observers.overriding(Observer.pushed)
        self._reserved = observers.overriding(Observer.reserved)
        self._acked = observers.overriding(Observer.acked)
        self._acked_by_id = observers.overriding(Observer.acked_by_id)
        self._settled = observers.overriding(Observer.settled)
        self._moved = observers.overriding(Observer.moved)
        self._reaped = observers.overriding(Observer.reaped)
        self._purged = observers.overriding(Observer.purged)

    # --- grouped by the engine

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        if self._observers.must_prepare:
            await self._observers.prepare()
        call = self._observers.begin("push")
        try:
            answers = await self._store.push(queue, requests)
            for one in self._pushed:
                answers = await one.pushed(queue, requests, answers)
        finally:
            self._observers.end(call)
        return answers

    async def reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved:
        call = self._observers.begin("reserve")
        try:
            reserved = await self._store.reserve(queue, asks)
            for one in self._reserved:
                one.reserved(queue, reserved)
        finally:
            self._observers.end(call)
        return reserved

    async def ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved | LeaseLost | StoreUnavailable | None]:
        if self._observers.must_prepare:
            await self._observers.prepare()
        call = self._observers.begin("ack")
        try:
            answers = await self._store.ack(queue, leases)
            for one in self._acked:
                one.acked(queue, leases, answers)
        finally:
            self._observers.end(call)
        return answers

    async def cancel(self, queue: Queue, ids: Sequence[str]) -> Sequence[Moved | StoreUnavailable | None]:
        if self._observers.must_prepare:
            await self._observers.prepare()
        call = self._observers.begin("cancel")
        try:
            answers = await self._store.cancel(queue, ids)
            for one in self._moved:
                one.moved(queue, answers)
        finally:
            self._observers.end(call)
        return answers

    async def ack_by_id(self, queue: Queue, ids: Sequence[str]) -> Sequence[Moved | StoreUnavailable | None]:
        """Cancel in the name of a consumer that has finished."""
        if self._observers.must_prepare:
            await self._observers.prepare()
        call = self._observers.begin("cancel")
        try:
            answers = await self._store.cancel(queue, ids, finished=True)
            for one in self._acked_by_id:
                await one.acked_by_id(queue, ids, answers)
        finally:
            self._observers.end(call)
        return answers

    # --- alone

    async def release(self, lease: Lease, delay_ms: int, error: str) -> Moved:
        return await self._settle("release", lease, partial(self._store.release, lease, delay_ms, error))

    async def give_back(self, lease: Lease) -> Moved:
        return await self._settle("give_back", lease, partial(self._store.give_back, lease))

    async def kill(self, lease: Lease, error: str) -> Moved:
        return await self._settle("kill", lease, partial(self._store.kill, lease, error))

    async def _settle(self, verb: str, lease: Lease, call: Callable[[], Awaitable[Moved]]) -> Moved:
        def tell(moved: Moved) -> Awaitable[None]:
            for one in self._settled:
                one.settled(verb, lease, moved)
            return self._observers.on_record([moved])

        return await self._observers.whole(self._alone(verb, call, tell))

    async def reschedule(
        self, queue: Queue, ids: Sequence[str], *, delay_ms: int, due_at: int | None
    ) -> Sequence[Moved | DuetimeError | None]:
        call = partial(self._store.reschedule, queue, ids, delay_ms=delay_ms, due_at=due_at)
        return await self._move("reschedule", queue, call)

    async def respawn(
        self, queue: Queue, *, ids: Sequence[str] | None, limit: int, ttl_ms: int, tries: int | None
    ) -> Sequence[Moved | StoreUnavailable]:
        call = partial(self._store.respawn, queue, ids=ids, limit=limit, ttl_ms=ttl_ms, tries=tries)
        return await self._move("respawn", queue, call)

    async def _move(self, verb: str, queue: Queue, call: Callable[[], Awaitable[Sequence[T]]]) -> Sequence[T]:
        def tell(answers: Sequence[T]) -> Awaitable[None]:
            for one in self._moved:
                one.moved(queue, answers)
            return self._observers.on_record(answers)

        return await self._observers.whole(self._alone(verb, call, tell))

    async def purge(self, queue: Queue, states: Sequence[State], *, limit: int | None) -> Purged:
        def tell(purged: Purged) -> Awaitable[None]:
            for one in self._purged:
                one.purged(queue, states, purged)
            return self._observers.flush()

        call = partial(self._store.purge, queue, states, limit=limit)
        return await self._observers.whole(self._alone("purge", call, tell))

    async def _alone(self, verb: str, call: Callable[[], Awaitable[T]], tell: Callable[[T], Awaitable[None]]) -> T:
        """`tell` informs the observers; what it returns is done when everything that must be on record is."""
        if self._observers.must_prepare:
            await self._observers.prepare()
        number = self._observers.begin(verb)
        try:
            answer = await call()
            recorded = tell(answer)
        finally:
            self._observers.end(number)
        await recorded
        return answer

    async def reap(self, limit: int) -> Reaped:
        return await self._observers.whole(self._reap(limit))

    async def _reap(self, limit: int) -> Reaped:
        call = self._observers.begin("reap")
        try:
            reaped = await self._store.reap(limit)
            for one in self._reaped:
                one.reaped(reaped)
            if reaped.pushed:
                await self._tell_pushed(reaped)
        finally:
            self._observers.end(call)
        return reaped

    async def _tell_pushed(self, reaped: Reaped) -> None:
        """Put on record what other programs have pushed, before consumers of this process hear of it."""
        if self._observers.must_prepare:
            await self._observers.prepare()
        for queue, pushed in reaped.pushed.items():
            requests, answers = zip(*pushed, strict=True)
            for one in self._pushed:
                await one.pushed(queue, requests, answers)
        await self._observers.flush()

"""The verbs that move jobs, each in one place: an observer may refuse it, the store does it, the observers are told.

A verb that is called alone (release, kill, purge ...) returns only after its events are on record. For verbs that the
engine groups (push, ack, cancel) the group commit waits for that, so that the next store call need not.
"""

import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from duetime.engine.observers import Observer, Observers
from duetime.engine.told_steps import look_again
from duetime.model.errors import DuetimeError, LeaseLost, StoreUnavailable
from duetime.model.job import Event, Lease, Moved, State
from duetime.model.names import Queue
from duetime.stores.base import Ask, Purged, Push, Pushed, Reaped, Reserved, Store
from duetime.stores.finishes import Finish, Finished, following_jobs, seen_join
from duetime.stores.get_all import get_all

log = logging.getLogger("duetime.engine")

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
        self._recorded: Sequence[str] = ()

    # --- grouped by the engine

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        if self._observers.must_prepare:
            await self._observers.prepare("push")
        call = self._observers.begin("push")
        try:
            answers = await self._store.push(queue, requests)
            if self._observers.must_prepare:
                await look_again(self._observers, "push")
            for one in self._pushed:
                answers = await one.pushed(queue, requests, answers)
        finally:
            self._observers.end(call)
        return answers

    async def reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved:
        if self._observers.must_prepare:
            await self._observers.prepare("reserve")
        call = self._observers.begin("reserve")
        try:
            reserved = await self._store.reserve(queue, asks)
            if self._observers.must_prepare:
                await look_again(self._observers, "reserve")
            for one in self._reserved:
                one.reserved(queue, reserved)
        finally:
            self._observers.end(call)
        return reserved

    async def ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved | LeaseLost | StoreUnavailable | None]:
        if self._observers.must_prepare:
            await self._observers.prepare("ack")
        call = self._observers.begin("ack")
        try:
            answers = await self._store.ack(queue, leases)
            if self._observers.must_prepare:
                await look_again(self._observers, "ack")
            for one in self._acked:
                one.acked(queue, leases, answers)
        finally:
            self._observers.end(call)
        return answers

    async def finish(
        self, queue: Queue, finishes: Sequence[Finish]
    ) -> Sequence[Finished | LeaseLost | DuetimeError | None]:
        """Observers hear of the jobs that follow before they hear of the end of the finished one: a journal that is cut
        off between the two has lost none.
        """
        if self._observers.must_prepare:
            await self._observers.prepare("finish")
        call = self._observers.begin("finish")
        try:
            answers = await self._store.finish(queue, finishes)
            if self._observers.must_prepare:
                await look_again(self._observers, "finish")
            told = await self._tell_followed(queue, finishes, answers) if self._pushed else answers
            # A finish that happened is told as such, also where its caller gets an error.
            ends = [one.acked if isinstance(one, Finished) else other for one, other in zip(answers, told, strict=True)]
            joins = [seen_join(one, answer) for one, answer in zip(finishes, answers, strict=True)]
            for one in self._acked:
                one.acked(queue, [finish.lease for finish in finishes], ends, joins)
        finally:
            self._observers.end(call)
        return told

    async def _tell_followed(
        self, queue: Queue, finishes: Sequence[Finish], answers: Sequence[Finished | LeaseLost | DuetimeError | None]
    ) -> Sequence[Finished | LeaseLost | DuetimeError | None]:
        """Tell of the jobs that follow; answers what the callers are to be told.

        None may be the answer to a finish that is repeated because its answer was lost, and nobody may have lived to
        record what followed from it. So those of its jobs that are there are told as kept.
        """
        told = list(answers)
        pairs = list(enumerate(zip(finishes, answers, strict=True)))
        followed = [
            (place, Push(following_jobs(one, answer.joined)), Pushed(answer.then, answer.now))
            for place, (one, answer) in pairs
            if isinstance(answer, Finished) and answer.then
        ]
        await self._tell_pushes(queue, followed, told)
        repeated: list[tuple[int, Push, Pushed]] = []
        for place, (one, answer) in pairs:
            if answer is None and (one.then or one.join):
                try:
                    repeated.append((place, *await self._followers(queue, one)))
                except DuetimeError as error:
                    told[place] = StoreUnavailable(f"it is unknown what followed: {error.message}", unknown=True)
        await self._tell_pushes(queue, repeated, told)
        return told

    async def _tell_pushes(
        self,
        queue: Queue,
        pushes: Sequence[tuple[int, Push, Pushed]],
        told: list[Finished | LeaseLost | DuetimeError | None],
    ) -> None:
        if not pushes:
            return
        places, requests, answers = zip(*pushes, strict=True)
        for observer in self._pushed:
            answers = await observer.pushed(queue, requests, answers)
        for place, answer in zip(places, answers, strict=True):
            if isinstance(answer, DuetimeError):
                told[place] = answer

    async def _followers(self, queue: Queue, one: Finish) -> tuple[Push, Pushed]:
        """Those jobs that followed from a finish that are there, as a push that was repeated and kept them."""
        now = (await self._store.ping()).now
        following = following_jobs(one, one.join.of if one.join else 0)
        jobs = await get_all(self._store, queue, [job.id for job in following])
        there = [(new, job) for new, job in zip(following, jobs, strict=True) if job]
        kept = [Moved(Event.KEPT, job.id, job.born, job.attempt, job.due_at) for _, job in there]
        return Push([new for new, _ in there]), Pushed(kept, now, repeated=True)

    async def cancel(self, queue: Queue, ids: Sequence[str]) -> Sequence[Moved | StoreUnavailable | None]:
        if self._observers.must_prepare:
            await self._observers.prepare("cancel")
        call = self._observers.begin("cancel")
        try:
            answers = await self._store.cancel(queue, ids)
            if self._observers.must_prepare:
                await look_again(self._observers, "cancel")
            for one in self._moved:
                one.moved(queue, answers)
        finally:
            self._observers.end(call)
        return answers

    async def ack_by_id(self, queue: Queue, ids: Sequence[str]) -> Sequence[Moved | StoreUnavailable | None]:
        """Cancel in the name of a consumer that has finished."""
        if self._observers.must_prepare:
            await self._observers.prepare("cancel")
        call = self._observers.begin("cancel")
        try:
            answers = await self._store.cancel(queue, ids, finished=True)
            if self._observers.must_prepare:
                await look_again(self._observers, "cancel")
            for one in self._acked_by_id:
                await one.acked_by_id(queue, ids, answers)
        finally:
            self._observers.end(call)
        return answers

    # --- alone

    async def release(self, lease: Lease, delay_ms: int, error: str) -> Moved:
        return await self._settle("release", lease, partial(self._store.release, lease, delay_ms, error))

    async def give_back(self, lease: Lease, delay_ms: int | None) -> Moved:
        return await self._settle("give_back", lease, partial(self._store.give_back, lease, delay_ms))

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
            await self._observers.prepare(verb)
        number = self._observers.begin(verb)
        try:
            answer = await call()
            if self._observers.must_prepare:
                await look_again(self._observers, verb)
            recorded = tell(answer)
        finally:
            self._observers.end(number)
        await recorded
        return answer

    async def reap(self, limit: int) -> Reaped:
        return await self._observers.whole(self._reap(limit))

    async def _reap(self, limit: int) -> Reaped:
        with _bugs_as_outages():
            if self._observers.must_prepare:
                await self._observers.prepare("reap")
            call = self._observers.begin("reap")
        try:
            reaped = await self._store.reap(limit, recorded=self._recorded)
            self._recorded = ()
            with _bugs_as_outages():
                if self._observers.must_prepare:
                    await look_again(self._observers, "reap")
            for one in self._reaped:
                with suppress(StoreUnavailable), _bugs_as_outages():  # the other observers are told all the same
                    one.reaped(reaped)
            with _bugs_as_outages():
                if reaped.pushed and await self._tell_pushed(reaped):
                    self._recorded = reaped.receipts
        finally:
            self._observers.end(call)
        return reaped

    async def _tell_pushed(self, reaped: Reaped) -> bool:
        """Put on record what other programs have pushed, before consumers of this process hear of it.

        True if all of it is on record.
        """
        if self._observers.must_prepare:
            await self._observers.prepare("push")
        is_told = True
        for queue, pushed in reaped.pushed.items():
            requests, answers = zip(*pushed, strict=True)
            for one in self._pushed:
                answers = await one.pushed(queue, requests, answers)
            is_told &= not any(isinstance(answer, DuetimeError) for answer in answers)
        await self._observers.flush()
        return is_told


@contextmanager
def _bugs_as_outages() -> Generator[None]:
    """Log an unexpected error of an observer and raise StoreUnavailable instead, so that the reaper tries again later.

    Any other error would end the reaper, and with it the engine.
    """
    try:
        yield
    except DuetimeError:
        raise
    except Exception as error:
        log.exception("observer_failed")
        raise StoreUnavailable(f"an observer of the engine failed: {error!r}") from error

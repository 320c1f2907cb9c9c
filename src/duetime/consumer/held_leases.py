"""The leases that a consumer holds: renewal, batched acks and retries during outages of the store.

A lease is held from `add` until its job is acked, released, killed or given back, and is renewed meanwhile; run the
object as a duty (`duties.py`) for that. Acks gather per queue while one is under way, so a busy consumer needs
few calls. A call that fails because the store is unavailable is repeated until the store answers: the job is done, and
only the report is late. If the lease was lost meanwhile, LeaseLost is the answer.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from duetime.duties import Duty
from duetime.engine.requests import finish_weight
from duetime.model.backoff import Outage
from duetime.model.errors import DuetimeError, LeaseLost, StoreUnavailable
from duetime.model.job import Lease, Moved, chunks
from duetime.model.names import Queue
from duetime.stores.finishes import Finish, Finished

log = logging.getLogger("duetime.consumer")

T = TypeVar("T")

_queue_of = attrgetter("queue")

RENEWED_TOGETHER = 50
"""How many leases are renewed concurrently: enough for thousands, few enough to let the store serve others."""
ROUNDS_PER_LEASE = 20

Answer = Moved | DuetimeError | None
"""The outcome of an ack: the move, an error, or None if the job did not exist any more."""
OnAck = Callable[[Answer], None]
Spawn = Callable[[Coroutine[Any, Any, None]], object]


class LeaseStore(Protocol):
    """The calls about leases. An Engine has them, and `ClientLeases` has them for a client."""

    async def ack(self, leases: Sequence[Lease]) -> Sequence[Answer]: ...
    async def finish(self, finishes: Sequence[Finish]) -> Sequence[Finished | DuetimeError | None]: ...
    async def release(self, lease: Lease, *, delay_ms: int = 0, error: str = "") -> Moved: ...
    async def give_back(self, leases: Sequence[Lease], *, delay_ms: int | None = None) -> Sequence[Answer]: ...
    async def kill(self, lease: Lease, *, error: str = "") -> Moved: ...
    async def extend(self, lease: Lease, ttr_ms: int) -> int: ...


@dataclass(slots=True)
class HeldLease:
    """`is_ending`: the end of the job is being reported, so a lost lease is no news."""

    renewed_at: float
    on_lost: Callable[[], None] | None
    is_ending: bool = False


@dataclass(frozen=True, slots=True)
class PendingAck:
    lease: Lease
    reply: OnAck | None
    finish: Finish | None


def _has_finish(pending: PendingAck) -> bool:
    return pending.finish is not None


def _weight(pending: PendingAck) -> int:
    return finish_weight(pending.finish) if pending.finish else 0


class HeldLeases(Duty):
    """`store` returns where the calls go; it may raise StoreUnavailable. `spawn` starts the tasks that send acks."""

    name = "lease renewal"

    def __init__(
        self, store: Callable[[], LeaseStore], lease_ms: int, spawn: Spawn, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._lease_ms = lease_ms
        self._spawn = spawn
        self._now = now
        self._held: dict[Lease, HeldLease] = {}
        self._acks: dict[Queue, list[PendingAck]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, lease: Lease) -> bool:
        return lease in self._held

    def add(self, lease: Lease, on_lost: Callable[[], None] | None = None) -> HeldLease:
        """Renew this lease from now on. `on_lost` is called once if a renewal finds that it was lost."""
        held = self._held[lease] = HeldLease(self._now(), on_lost)
        return held

    def drop(self, lease: Lease) -> None:
        """Stop renewing this lease."""
        self._held.pop(lease, None)

    # --- renewal

    async def run_once(self) -> float:
        """Renew every lease of which a third has passed, the oldest first. A third leaves time for a second try."""
        oldest = self._now() - self._lease_ms / 3000
        due = [(held.renewed_at, lease) for lease, held in self._held.items() if held.renewed_at <= oldest]
        for batch in chunks(sorted(due, key=lambda one: one[0]), RENEWED_TOGETHER):
            await asyncio.gather(*(self._renew(lease) for _, lease in batch))
        return self._lease_ms / 1000 / ROUNDS_PER_LEASE

    async def _renew(self, lease: Lease) -> None:
        held = self._held.get(lease)
        if held is None:  # it ended while other leases were renewed
            return
        now = self._now()
        try:
            await self._store().extend(lease, self._lease_ms)
            held.renewed_at = now
        except LeaseLost:
            if not held.is_ending and self._held.pop(lease, None) and held.on_lost:
                held.on_lost()
        except DuetimeError as error:
            log.warning("lease_not_renewed", extra={"job": lease.id, "error": error.message})
        except Exception:
            # The other leases are still to be renewed.
            log.exception("lease_not_renewed", extra={"job": lease.id})

    # --- the end of a job

    def ack(self, lease: Lease, reply: OnAck | None = None, finish: Finish | None = None) -> None:
        """Finish a job, with what follows from it if there is a `finish`. `reply` is called with the store's answer."""
        if held := self._held.get(lease):
            held.is_ending = True
        is_sending = lease.queue in self._acks
        self._acks.setdefault(lease.queue, []).append(PendingAck(lease, reply, finish))
        if not is_sending:
            self._spawn(self._send_acks(lease.queue))

    async def release(self, lease: Lease, *, delay_ms: int = 0, error: str = "") -> Moved:
        return await self._end(lease, lambda store: store.release(lease, delay_ms=delay_ms, error=error))

    async def give_back(self, lease: Lease, *, delay_ms: int | None = None) -> Moved:
        async def give_back(store: LeaseStore) -> Moved:
            [answer] = await store.give_back([lease], delay_ms=delay_ms)
            if isinstance(answer, Moved):
                return answer
            raise answer or LeaseLost.of(lease)

        return await self._end(lease, give_back)

    async def kill(self, lease: Lease, *, error: str = "") -> Moved:
        return await self._end(lease, lambda store: store.kill(lease, error=error))

    async def give_back_all(self) -> None:
        """Give back every job that is still held, once nothing else reports about them. Does not wait for a store that
        is unavailable: the leases then expire.
        """
        for leases in chunks(sorted(self._held, key=_queue_of), key=_queue_of):
            try:
                await self._store().give_back(leases)
            except DuetimeError as error:
                queue, jobs = str(leases[0].queue), [lease.id for lease in leases]
                log.info("not_given_back", extra={"queue": queue, "jobs": jobs, "error": error.message})
        self._held.clear()

    async def _end(self, lease: Lease, call: Callable[[LeaseStore], Awaitable[Moved]]) -> Moved:
        """A cancelled call leaves the lease held, for `give_back_all`."""
        held = self._held.get(lease) or self.add(lease)
        held.is_ending = True
        try:
            moved = await self._persist(call)
        except Exception:
            self.drop(lease)
            raise
        self.drop(lease)
        return moved

    async def _send_acks(self, queue: Queue) -> None:
        # Jobs that end in the same loop iteration are acked together.
        await asyncio.sleep(0)
        try:
            while pending := self._acks[queue]:
                self._acks[queue] = []
                # Plain acks first: a call is either an ack or a finish.
                for some in chunks(sorted(pending, key=_has_finish), size=_weight, key=_has_finish):
                    await self._send(some)
        finally:
            del self._acks[queue]

    async def _send(self, some: Sequence[PendingAck]) -> None:
        """If one finish is refused, the call fails for all of them, so they are then sent one by one."""
        leases, finishes = [one.lease for one in some], [one.finish for one in some if one.finish]
        answers: Sequence[Finished | Answer]
        try:
            if finishes:
                answers = await self._persist(lambda store: store.finish(finishes))
            else:
                answers = await self._persist(lambda store: store.ack(leases))
        except DuetimeError as error:
            if finishes and len(some) > 1:
                for one in some:
                    await self._send([one])
                return
            answers = [error] * len(some)
        except Exception as error:
            log.exception("not_acked", extra={"queue": str(leases[0].queue), "jobs": len(some)})
            answers = [DuetimeError(f"ack failed: {error!r}")] * len(some)
        finally:
            for lease in leases:
                self._held.pop(lease, None)
        for one, answer in zip(some, answers, strict=True):
            if one.reply:
                one.reply(answer.acked if isinstance(answer, Finished) else answer)
            elif isinstance(answer, DuetimeError):
                log.info("not_acked", extra={"job": one.lease.id, "error": answer.message})

    async def _persist(self, call: Callable[[LeaseStore], Awaitable[T]]) -> T:
        """Repeat until the store has answered; an answer that was lost may turn into LeaseLost."""
        outage = Outage()
        while True:
            try:
                return await call(self._store())
            except StoreUnavailable as error:
                if outage.failed():
                    log.warning("store_unavailable", extra={"error": error.message})
                await asyncio.sleep(outage.pause_s)

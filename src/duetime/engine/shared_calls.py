"""One store call for all requests of a queue that came together, and each request's share of its answer.

The requests wait in a group commit per verb (`group_commit.py`), which calls these. Consumers of this process hear here
of jobs that were pushed, and the reaper hears of leases that were given out.
"""

from collections.abc import Sequence
from typing import Any

from duetime.engine.heavy_calls import HeavyCalls
from duetime.engine.observed_store import ObservedStore
from duetime.engine.reaper import Reaper
from duetime.engine.waiting import WaitingRoom, Wants
from duetime.engine.wheel import Wheel
from duetime.errors import DuetimeError, LeaseLost, StoreUnavailable
from duetime.job import Delivery, Lease, Moved
from duetime.names import Queue
from duetime.stores.base import Ask, Push, Pushed
from duetime.stores.pushed_parts import pushed_parts

MAX_WHEELS = 10_000


class SharedCalls:
    def __init__(self, store: ObservedStore, room: WaitingRoom, reaper: Reaper) -> None:
        self._store = store
        self._room = room
        self._reaper = reaper
        self._heavy = HeavyCalls()
        self._wheels: dict[Queue, Wheel] = {}

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        """Consumers hear of the jobs here and not from the callers: one that went away has pushed all the same."""
        jobs = 0
        for request in requests:
            jobs += len(request.jobs)
        answers = await self._heavy.make(jobs, self._store.push, queue, requests)
        _, parts = pushed_parts(requests, answers)
        pushed = [part.jobs for part in parts if isinstance(part, Pushed) and not part.repeated]
        self.moved(queue, pushed[0] if len(pushed) == 1 else [moved for jobs in pushed for moved in jobs])
        return answers

    async def reserve(self, queue: Queue, wants: Wants) -> Sequence[list[Delivery]]:
        """Requests that follow each other with the same ttr share one ask."""
        wheel = self._wheel(queue)
        groups = _merge(wants)
        asks = [Ask(sum(limits), ttr_ms, wheel.take(sum(limits))) for ttr_ms, limits in groups]
        unused = sum([ask.limit for ask in asks])
        known = self._room.news
        try:
            reserved = await self._heavy.make(unused, self._store.reserve, queue, asks)
            unused -= sum(map(len, reserved.deliveries))
        finally:
            wheel.put_back(unused)
        self._room.learn(queue, reserved, since=known)
        shares: list[list[Delivery]] = []
        for (ttr_ms, limits), deliveries in zip(groups, reserved.deliveries, strict=True):
            if deliveries:
                self._reaper.expect(ttr_ms / 1000)
            at = 0
            for limit in limits:
                shares.append(list(deliveries[at : at + limit]))
                at += limit
        return shares

    async def ack(
        self, queue: Queue, requests: Sequence[Sequence[Lease]]
    ) -> Sequence[Sequence[Moved | LeaseLost | None]]:
        leases = [lease for some in requests for lease in some]
        return _split(await self._heavy.make(len(leases), self._store.ack, queue, leases), requests)

    async def cancel(self, queue: Queue, requests: Sequence[Sequence[str]]) -> Sequence[Sequence[Moved | None]]:
        return _split(await self._store.cancel(queue, [job_id for ids in requests for job_id in ids]), requests)

    async def ack_by_id(self, queue: Queue, requests: Sequence[Sequence[str]]) -> Sequence[Sequence[Moved | None]]:
        return _split(await self._store.ack_by_id(queue, [job_id for ids in requests for job_id in ids]), requests)

    def moved(self, queue: Queue, answers: Sequence[object]) -> None:
        """This process put jobs into waiting: its own consumers need no wake from the store."""
        if due := [answer.due_at for answer in answers if isinstance(answer, Moved) and answer.due_at]:
            self._room.notice(queue, min(due))

    def _wheel(self, queue: Queue) -> Wheel:
        wheel = self._wheels.get(queue)
        if wheel is None:
            if len(self._wheels) >= MAX_WHEELS:
                self._wheels.clear()
            wheel = self._wheels[queue] = Wheel()
        return wheel


def _merge(wants: Wants) -> list[tuple[int, list[int]]]:
    """Groups requests that follow each other with the same ttr: (ttr_ms, their limits)."""
    groups: list[tuple[int, list[int]]] = []
    for limit, ttr_ms in wants:
        if groups and groups[-1][0] == ttr_ms:
            groups[-1][1].append(limit)
        else:
            groups.append((ttr_ms, [limit]))
    return groups


def _split(answers: Sequence[Any], requests: Sequence[Sequence[Any]]) -> list[Any]:
    """Each request's answers; or the error of a request that was for a part of the store that is down."""
    shares: list[Any] = []
    at = 0
    for request in requests:
        shares.append(answers[at : at + len(request)])
        at += len(request)
    if not [answer for answer in answers if isinstance(answer, StoreUnavailable)]:
        return shares
    return [_error_in(share) or share for share in shares]


def _error_in(share: Sequence[Any]) -> StoreUnavailable | None:
    down = next((answer for answer in share if isinstance(answer, StoreUnavailable)), None)
    if down and any(isinstance(answer, Moved) for answer in share):
        return StoreUnavailable(down.message, unknown=True)
    return down

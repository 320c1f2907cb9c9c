"""One store call for all requests of a queue that came together, and each request's share of its answer.

The requests wait in a group commit per verb (`group_commit.py`), which calls these. Consumers of this process hear here
of jobs that were pushed, and the reaper hears of leases that were given out.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from duetime.engine.heavy_calls import HeavyCalls
from duetime.engine.reaper import Reaper
from duetime.engine.recorder import Recorders, Step
from duetime.engine.result_waiting import ResultWaiting
from duetime.engine.waiting import WaitingRoom, Wants
from duetime.engine.wheel import Wheel
from duetime.model.errors import DuetimeError, LeaseLost, StoreUnavailable
from duetime.model.job import Delivery, Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Reserved, Store
from duetime.stores.finishes import Finish, Finished, KeptResult
from duetime.stores.pushed_parts import pushed_parts

T = TypeVar("T")

MAX_WHEELS = 10_000


class SharedCalls:
    def __init__(
        self, store: Store, recorders: Recorders, room: WaitingRoom, results: ResultWaiting, reaper: Reaper
    ) -> None:
        self._store, self._recorders = store, recorders
        self._results = results
        self.room = room
        self._reaper = reaper
        self._heavy = HeavyCalls()
        self._wheels: dict[Queue, Wheel] = {}

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        """Consumers hear of the jobs here and not from the callers: one that went away has pushed all the same."""
        jobs = 0
        for request in requests:
            jobs += len(request.jobs)
        step = Step("push", queue, requests, len(requests))
        answers = await self._call(jobs, step, lambda: self._store.push(queue, requests))
        _, parts = pushed_parts(requests, answers)
        pushed = [part.jobs for part in parts if isinstance(part, Pushed) and not part.repeated]
        self.moved(queue, pushed[0] if len(pushed) == 1 else [moved for jobs in pushed for moved in jobs])
        return answers

    async def reserve(self, queue: Queue, wants: Wants) -> Sequence[list[Delivery]]:
        """Requests that follow each other with the same ttr share one ask."""
        wheel = self.wheel(queue)
        groups = _merge(wants)
        asks = [Ask(sum(limits), ttr_ms, wheel.take(sum(limits))) for ttr_ms, limits in groups]
        unused = sum([ask.limit for ask in asks])
        known = self.room.news
        try:
            step = Step("reserve", queue, asks, len(wants))
            reserved = await self._call(unused, step, lambda: self._store.reserve(queue, asks))
            unused -= sum(map(len, reserved.deliveries))
        finally:
            wheel.put_back(unused)
        self.learn(queue, asks, reserved, since=known)
        shares: list[list[Delivery]] = []
        for (_, limits), deliveries in zip(groups, reserved.deliveries, strict=True):
            at = 0
            for limit in limits:
                shares.append(list(deliveries[at : at + limit]))
                at += limit
        return shares

    def learn(self, queue: Queue, asks: Sequence[Ask], reserved: Reserved, *, since: int) -> None:
        """Tell waiting consumers and the reaper what a reserve has found; `since` is the room's `news` before it."""
        self.room.learn(queue, reserved, since=since)
        for ask, deliveries in zip(asks, reserved.deliveries, strict=True):
            if deliveries:
                self._reaper.expect(ask.ttr_ms / 1000)

    async def ack(
        self, queue: Queue, requests: Sequence[Sequence[Lease]]
    ) -> Sequence[Sequence[Moved | LeaseLost | None]]:
        leases = [lease for some in requests for lease in some]
        step = Step("ack", queue, leases, len(requests))
        return _split(await self._call(len(leases), step, lambda: self._store.ack(queue, leases)), requests)

    async def finish(
        self, queue: Queue, requests: Sequence[Sequence[Finish]]
    ) -> Sequence[Sequence[Finished | DuetimeError | None]]:
        """Those who wait here for jobs and results hear of them at once."""
        finishes = [one for some in requests for one in some]
        jobs = sum([1 + len(one.then) for one in finishes])
        step = Step("finish", queue, finishes, len(requests))
        answers = await self._call(jobs, step, lambda: self._store.finish(queue, finishes))
        done = [(one, answer) for one, answer in zip(finishes, answers, strict=True) if isinstance(answer, Finished)]
        self.moved(queue, [moved for _, answer in done for moved in answer.then])
        if kept := [one.lease.id for one, _ in done if one.keeps_result]:
            self._results.notice(queue, kept)
        return _split(answers, requests)

    async def results(
        self, queue: Queue, requests: Sequence[Sequence[str]]
    ) -> Sequence[Mapping[str, KeptResult] | DuetimeError]:
        """The results that are there, by id."""
        ids = list(dict.fromkeys(job_id for some in requests for job_id in some))
        found: dict[str, KeptResult] = {}
        while ids:
            step = Step("results", queue, ids, len(requests))
            answers = await self._recorders.run(step, lambda some=ids: self._store.results(queue, some))
            found.update({one.id: one for one in answers if one})
            ids = ids[len(answers) :]
        return [{job_id: found[job_id] for job_id in some if job_id in found} for some in requests]

    async def cancel(self, queue: Queue, requests: Sequence[Sequence[str]]) -> Sequence[Sequence[Moved | None]]:
        ids = [job_id for some in requests for job_id in some]
        step = Step("cancel", queue, ids, len(requests))
        return _split(await self._recorders.run(step, lambda: self._store.cancel(queue, ids)), requests)

    async def ack_by_id(self, queue: Queue, requests: Sequence[Sequence[str]]) -> Sequence[Sequence[Moved | None]]:
        """Cancel in the name of a consumer that has finished."""
        ids = [job_id for some in requests for job_id in some]
        step = Step("ack_by_id", queue, ids, len(requests))
        return _split(await self._recorders.run(step, lambda: self._store.cancel(queue, ids, finished=True)), requests)

    def _call(self, jobs: int, step: Step, call: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        return self._heavy.make(jobs, self._recorders.run, step, call)

    def moved(self, queue: Queue, answers: Sequence[object]) -> None:
        """This process put jobs into waiting: its own consumers need no wake from the store."""
        if due := [answer.due_at for answer in answers if isinstance(answer, Moved) and answer.due_at]:
            self.room.notice(queue, min(due))

    def wheel(self, queue: Queue) -> Wheel:
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
    if down and any(isinstance(answer, Moved | Finished) for answer in share):
        return StoreUnavailable(down.message, unknown=True)
    return down

"""Two stores as one: `hot` has the jobs that are due within the horizon, `cold` the later ones.

So a queue of a billion jobs that are due next year costs the fast store no memory. A promoter (`tiers.py`) brings jobs
to hot long before they are due. Consumers ask hot alone, and a delivery never waits for cold. What the contract
promises for one job holds as on any store. Where both tiers are concerned, a tiered pool promises less:

- A push of several jobs is all or nothing in each tier, not over both. Two pushes of one id at the same moment, one due
  before the horizon and one after it, may both be accepted; then both jobs are delivered, one after the other.
- While cold is down, pushes that are due within the horizon and all deliveries go on. Later ones are refused, or with
  `spill` accepted into hot. Ids and dead letters are then not searched in cold, and counts and totals are refused.
- `max_jobs` holds in each tier. A job that a full hot tier refuses waits in cold until there is room.
- A job may be delivered again after its ack if cold did not answer for six hours after the job was copied to hot.
- Counts may count jobs twice that are being promoted at that moment.
- A job never goes back from hot to cold: jobs that were rescheduled, replaced or released there, or follow from a
  finished one, stay in hot however late they are due. A job of cold that is rescheduled or replaced stays in cold if
  both times are after the horizon.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from duetime.model.clock import Clock, SystemClock
from duetime.model.errors import DuetimeError, JobDead, JobRunning, LeaseLost, StoreUnavailable
from duetime.model.job import (
    STEP_JOBS,
    Counts,
    IfExists,
    Job,
    Lease,
    Moved,
    QueueTotals,
    State,
    Totals,
    payload_bytes,
    sum_counts,
    within_step,
)
from duetime.model.names import Queue
from duetime.stores.base import (
    Ask,
    BlockingOneJob,
    OneJob,
    Page,
    Purged,
    Push,
    Pushed,
    QueueRules,
    Reaped,
    Reserved,
    ResultSink,
    RulesChange,
    Send,
    Store,
    StoreInfo,
    Withdrawal,
    get_all,
    part_of,
)
from duetime.stores.finishes import Finish, Finished
from duetime.stores.forwarding import ForwardingStore
from duetime.stores.group.member import PROBLEMS, Member
from duetime.stores.group.store import add_totals, merge_reaped
from duetime.stores.group.verbs import join_parts, kept, merge_pages, with_kept, without_taken
from duetime.stores.tiered.tiers import LATE_MS, MARGIN_MS, Promoter, Tiers

T = TypeVar("T")

_Part = tuple[Sequence[int], Pushed | DuetimeError]
"""The positions of some jobs of a request, and the answer for them."""
_Share = tuple[bool, int, Sequence[int]]
"""True if it goes to cold, the number of the request, and the positions of its jobs."""


class TieredStore(ForwardingStore):
    """Verbs on jobs that a consumer holds and on results go to hot alone."""

    def __init__(self, tiers: Tiers, *, spill: bool, promote_per_s: int) -> None:
        super().__init__(tiers.hot)
        self._tiers, self._hot, self._cold, self._spill = tiers, tiers.hot, tiers.cold, spill
        self.promoter = Promoter(tiers, per_s=promote_per_s)
        self.duty = self.promoter.duty
        self.one_job = TieredOneJob(self._hot.one_job, tiers) if self._hot.one_job else None

    @classmethod
    async def open(  # noqa: PLR0913 - options of the URL
        cls,
        name: str,
        hot: Callable[[], Awaitable[Store]],
        cold: Callable[[], Awaitable[Store]],
        *,
        horizon_ms: int,
        spill: bool = False,
        promote_per_s: int = 0,
        clock: Clock | None = None,
    ) -> "TieredStore":
        """Raises StoreUnavailable if hot cannot be reached, InvalidSettings. Cold may come later."""
        member = Member("cold", cold, _do_nothing)
        store = await hot()
        try:
            await member.start()
        except BaseException:
            await store.close()
            raise
        tiers = Tiers(name, store, member, horizon_ms, clock or SystemClock())
        return cls(tiers, spill=spill, promote_per_s=promote_per_s)

    # --- push

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        """Each job goes to its tier, or to the tier where its id is already.

        The mark of a request is set in both tiers, because the horizon has moved when the request is repeated: after
        the jobs, without any job where there is none for a tier.
        """
        in_cold = await self._ids_for_cold(queue, requests)
        parts: list[list[_Part]] = [[] for _ in requests]
        first: list[_Share] = []
        marks: list[_Share] = []
        for number, request in enumerate(requests):
            split: tuple[list[int], list[int]] = ([], [])
            for at, job in enumerate(request.jobs):
                split[job.id in in_cold].append(at)
            if split[1] and not self._cold.is_up:
                refusal = StoreUnavailable(
                    "the cold tier is down, and the job is due after the horizon: push it again later", unknown=False
                )
                parts[number].append((split[1], refusal))
                continue
            for is_cold, places in enumerate(split):
                if places or not (is_cold or split[1]):
                    first.append((bool(is_cold), number, places))
                elif request.mark and (self._cold.is_up or not is_cold):
                    marks.append((bool(is_cold), number, places))
        await self._send(queue, requests, first, parts)
        done = [share for share in marks if all(isinstance(answer, Pushed) for _, answer in parts[share[1]])]
        await self._send(queue, requests, done, parts)
        answers = [join_parts(request.jobs, part) for request, part in zip(requests, parts, strict=True)]
        await self._promote_replaced(queue, requests, answers, in_cold)
        return answers

    async def _send(
        self, queue: Queue, requests: Sequence[Push], shares: Sequence[_Share], parts: Sequence[list[_Part]]
    ) -> None:
        """Push these shares of requests to both tiers at the same time, and add the answers to `parts`."""

        async def push(store: Store, mine: Sequence[_Share]) -> Sequence[Pushed | DuetimeError]:
            return await store.push(queue, [part_of(requests[number], places) for _, number, places in mine])

        hot, cold = [share for share in shares if not share[0]], [share for share in shares if share[0]]
        answered = await asyncio.gather(
            push(self._hot, hot) if hot else _nothing(),
            self._cold.call(lambda store: push(store, cold)) if cold else _nothing(),
            return_exceptions=True,
        )
        for mine, found in zip((hot, cold), answered, strict=True):
            if isinstance(found, BaseException) and not isinstance(found, PROBLEMS):
                raise found
            answers = [found] * len(mine) if isinstance(found, PROBLEMS) else found
            for (_, number, places), answer in zip(mine, answers, strict=True):
                parts[number].append((places, answer))

    async def _ids_for_cold(self, queue: Queue, requests: Sequence[Push]) -> set[str]:
        """The ids that are to be pushed to cold. A replacement of a job of cold that a promoter may be moving just now
        takes place in hot.
        """
        now, last = self._tiers.now(), self._tiers.horizon()
        near, far, made = set[str](), set[str](), set[str]()
        for request in requests:
            for job in request.jobs:
                (far if job.due(now) > last and job.id not in near else near).add(job.id)
                if request.made_ids:
                    made.add(job.id)
        far -= near
        if far and self._spill and not self._cold.is_up:
            far.clear()
        if known := sorted(far - made):
            far -= {job.id for job in await get_all(self._hot, queue, known) if job}
        if (known := sorted(near - made)) and self._cold.is_up:
            with suppress(*PROBLEMS):  # cold is down: see the module's docstring
                there = await self._tiers.read_cold(queue, known)
                replaced = {
                    job.id for request in requests if request.if_exists is IfExists.REPLACE for job in request.jobs
                }
                moving = [job for job in there if job.id in replaced and job.due_at <= last + MARGIN_MS]
                await self._tiers.promote(queue, moving)
                far |= {job.id for job in there} - {job.id for job in moving}
        return far

    async def _promote_replaced(
        self, queue: Queue, requests: Sequence[Push], answers: Sequence[Pushed | DuetimeError], in_cold: set[str]
    ) -> None:
        """Jobs that were replaced in cold may be due soon now."""
        if not any(request.if_exists is IfExists.REPLACE for request in requests):
            return
        last = self._tiers.horizon()
        moved = [one for answer in answers if isinstance(answer, Pushed) for one in answer.jobs]
        near = [one.id for one in moved if one.id in in_cold and one.due_at <= last]
        with suppress(*PROBLEMS):  # the promoter will do it
            await self._tiers.promote(queue, await self._tiers.read_cold(queue, near))

    async def finish(
        self, queue: Queue, finishes: Sequence[Finish]
    ) -> Sequence[Finished | LeaseLost | DuetimeError | None]:
        """The jobs that follow go to hot, because nothing atomic spans two stores; an id that cold has is kept."""
        ids = sorted({job.id for one in finishes for job in one.may_follow})
        taken: dict[str, Moved] = {}
        if ids and self._cold.is_up:
            with suppress(*PROBLEMS):
                taken = {job.id: kept(job) for job in await self._tiers.read_cold(queue, ids)}
        if not taken:
            return await self._hot.finish(queue, finishes)
        answers = await self._hot.finish(queue, [without_taken(one, taken) for one in finishes])
        return [with_kept(one, answer, taken) for one, answer in zip(finishes, answers, strict=True)]

    # --- jobs by id: what hot does not have is brought there from cold

    async def cancel(
        self, queue: Queue, ids: Sequence[str], *, finished: bool = False
    ) -> Sequence[Moved | StoreUnavailable | None]:
        return await self._in_hot(
            queue, ids, lambda store, places: store.cancel(queue, [ids[place] for place in places], finished=finished)
        )

    async def withdraw(
        self, queue: Queue, withdrawals: Sequence[Withdrawal]
    ) -> Sequence[Moved | StoreUnavailable | None]:
        return await self._in_hot(
            queue,
            [one.id for one in withdrawals],
            lambda store, places: store.withdraw(queue, [withdrawals[place] for place in places]),
        )

    async def reschedule(
        self, queue: Queue, ids: Sequence[str], *, delay_ms: int = 0, due_at: int | None = None
    ) -> Sequence[Moved | JobRunning | JobDead | DuetimeError | None]:
        is_far = (self._tiers.now() + delay_ms if due_at is None else due_at) > self._tiers.horizon()

        async def move(
            store: Store, places: Sequence[int]
        ) -> Sequence[Moved | JobRunning | JobDead | DuetimeError | None]:
            return await store.reschedule(queue, [ids[place] for place in places], delay_ms=delay_ms, due_at=due_at)

        async def move_in_cold(jobs: Sequence[Job]) -> dict[str, Any]:
            """A job that is far and stays far need not pass through hot."""
            far = [job.id for job in jobs if is_far and job.due_at > self._tiers.horizon() + MARGIN_MS]
            if not far:
                return {}
            answers = await self._cold.call(
                lambda store: store.reschedule(queue, far, delay_ms=delay_ms, due_at=due_at)
            )
            return dict(zip(far, answers, strict=True))

        return await self._in_hot(queue, ids, move, move_in_cold)

    async def _in_hot(
        self,
        queue: Queue,
        ids: Sequence[str],
        verb: Callable[[Store, Sequence[int]], Awaitable[Sequence[T | None]]],
        in_cold: Callable[[Sequence[Job]], Awaitable[dict[str, Any]]] | None = None,
    ) -> list[T | StoreUnavailable | None]:
        """Runs a verb on the jobs at the given positions, and again on those that hot did not have, after cold was
        searched. The second time also finds jobs that a promoter moved meanwhile. `in_cold` may answer for jobs
        of cold, by id. Dead letters of cold stay there.
        """
        answers: list[T | StoreUnavailable | None] = list(await verb(self._hot, range(len(ids))))
        missing = [place for place, answer in enumerate(answers) if answer is None]
        if not missing:
            return answers
        done: dict[str, Any] = {}
        try:
            there = await self._tiers.read_cold(queue, [ids[place] for place in missing])
            waiting = [job for job in there if job.state is not State.DEAD]
            if in_cold:
                done = await in_cold(waiting)
            if dead := {job.id for job in there} - {job.id for job in waiting}:
                places = [place for place in missing if ids[place] in dead]
                answered = await self._cold.call(lambda store: verb(store, places))
                done |= {ids[place]: answer for place, answer in zip(places, answered, strict=True)}
            await self._tiers.promote(queue, [job for job in waiting if job.id not in done])
        except PROBLEMS as problem:
            for place in missing:
                answers[place] = StoreUnavailable(problem.message, **problem.fields)
            return answers
        again = [place for place in missing if ids[place] not in done]
        for place in missing:
            answers[place] = done.get(ids[place])
        if again:
            for place, answer in zip(again, await verb(self._hot, again), strict=True):
                answers[place] = answer
        return answers

    # --- both tiers

    async def reap(self, limit: int = 500, *, recorded: Sequence[str] = ()) -> Reaped:
        parts = [await self._hot.reap(limit, recorded=recorded)]
        left = limit - sum(map(len, parts[0].moved.values()))
        if left and self._cold.is_up:
            with suppress(*PROBLEMS):
                parts.append(await self._cold.call(lambda store: store.reap(left, recorded=recorded)))
        return merge_reaped(parts)

    async def get(self, queue: Queue, ids: Sequence[str]) -> Sequence[Job | None]:
        ids = ids[:STEP_JOBS]
        found = list(await self._hot.get(queue, ids))
        missing = [place for place, job in enumerate(found) if job is None]
        if missing:
            there = await self._cold.call(lambda store: store.get(queue, [ids[place] for place in missing]))
            if len(there) < len(missing):  # cold ended at its bound
                found = found[: missing[len(there)]]
            for place, job in zip(missing, there, strict=False):
                found[place] = job
            moved = [place for place in missing if place < len(found) and found[place] is None]
            if moved:
                again = await self._hot.get(queue, [ids[place] for place in moved])
                for place, job in zip(moved, again, strict=False):
                    found[place] = job
        return list(within_step(found, payload_bytes))

    async def list_jobs(self, queue: Queue, state: State, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Merges the lists of both tiers by their order, so that a job which is promoted meanwhile is seen once."""
        if state is State.LEASED or (state is State.DEAD and not self._cold.is_up):
            return await self._hot.list_jobs(queue, state, cursor=cursor, limit=limit)
        cold = await self._cold.call(lambda store: store.list_jobs(queue, state, cursor=cursor, limit=limit))
        # A job that is promoted between the two calls is in both lists.
        hot = await self._hot.list_jobs(queue, state, cursor=cursor, limit=limit)
        in_hot = {(job.id, job.born) for job in hot.jobs}
        only_cold = [job for job in cold.jobs if (job.id, job.born) not in in_hot]
        return merge_pages([hot, Page(only_cold, cold.cursor)], limit)

    async def counts(self, queues: Sequence[Queue]) -> Sequence[Counts]:
        return [
            sum_counts([hot, msgspec.structs.replace(cold, cold=cold.total)])
            for hot, cold in await self._from_both(lambda store: store.counts(queues))
        ]

    async def totals(self, queues: Sequence[Queue]) -> Sequence[QueueTotals]:
        """A promotion counts as accepted in hot and as cancelled in cold, where nothing else is ever cancelled."""
        return [
            add_totals([hot, _without_promotions(cold)])
            for hot, cold in await self._from_both(lambda store: store.totals(queues))
        ]

    async def due_histogram(self, queue: Queue, edges: Sequence[int]) -> Sequence[int]:
        return [sum(pair) for pair in await self._from_both(lambda store: store.due_histogram(queue, edges))]

    async def queues(self, namespace: str | None = None) -> Sequence[Queue]:
        found = set(await self._hot.queues(namespace))
        if self._cold.is_up:
            with suppress(*PROBLEMS):
                found |= set(await self._cold.call(lambda store: store.queues(namespace)))
        return sorted(found)

    async def respawn(
        self,
        queue: Queue,
        *,
        ids: Sequence[str] | None = None,
        limit: int = 1,
        ttl_ms: int = 0,
        tries: int | None = None,
    ) -> Sequence[Moved | StoreUnavailable]:
        """Dead letters of cold are jobs that expired there because no promoter ran; respawned, they are promoted."""
        moved = list(await self._hot.respawn(queue, ids=ids, limit=limit, ttl_ms=ttl_ms, tries=tries))
        done = {one.id for one in moved if isinstance(one, Moved)}
        left = None if ids is None else [job_id for job_id in ids[:STEP_JOBS] if job_id not in done]
        rest = min(limit, STEP_JOBS) - len(done) if left is None else len(left)
        if rest <= 0 or not self._cold.is_up:
            return moved
        try:
            moved += await self._cold.call(
                lambda store: store.respawn(queue, ids=left, limit=rest, ttl_ms=ttl_ms, tries=tries)
            )
        except PROBLEMS as problem:
            moved.append(StoreUnavailable(problem.message, **problem.fields))
        order = {job_id: place for place, job_id in enumerate(ids or ())}
        return sorted(moved, key=lambda one: order.get(one.id, 0) if isinstance(one, Moved) else len(order))

    async def purge(self, queue: Queue, states: Sequence[State], *, limit: int | None = None) -> Purged:
        """Jobs that are promoted at that moment may stay."""
        problems: list[StoreUnavailable] = []
        first = Purged(0, 0)
        try:
            first = await self._cold.call(lambda store: store.purge(queue, states, limit=limit))
        except PROBLEMS as problem:
            problems.append(StoreUnavailable(problem.message, **problem.fields))
        left = None if limit is None else limit - first.removed
        if first.more or left == 0:
            return first
        second = await self._hot.purge(queue, states, limit=left)
        return Purged(first.removed + second.removed, second.now, second.more, (*problems, *second.problems))

    async def configure(self, queue: Queue, change: RulesChange | None = None) -> QueueRules:
        """Changes cold before hot. Cold is never paused, so that jobs of a paused queue are promoted in time."""
        if change is not None:
            of_cold = msgspec.structs.replace(change, paused=msgspec.UNSET)
            await self._cold.call(lambda store: store.configure(queue, of_cold))
        return await self._hot.configure(queue, change)

    async def ping(self) -> StoreInfo:
        hot = await self._hot.ping()
        problems: dict[str, DuetimeError] = dict(hot.problems)
        members = {"hot": hot}
        try:
            members["cold"] = await self._cold.ping()
            if (late_ms := await self.promoter.late_ms()) > LATE_MS:
                late = f"jobs in the cold tier have been due for {late_ms / 1000:.0f} s: promotion is late"
                problems["promoter"] = StoreUnavailable(late)
        except PROBLEMS as problem:
            problems["cold"] = problem
        kinds = [hot.kind, *([members["cold"].kind] if "cold" in members else [])]
        return msgspec.structs.replace(
            hot,
            kind=f"tiered: {' before '.join(kinds)}",
            epoch=f"hot={hot.epoch};cold={self._cold.epoch}",
            problems=problems,
            persistence="; ".join(f"{name}: {info.persistence}" for name, info in members.items() if info.persistence),
            members=members,
        )

    async def check(self) -> Sequence[str]:
        hot, cold = await self._hot.check(), await self._cold.call(lambda store: store.check())
        return [*(f"hot: {problem}" for problem in hot), *(f"cold: {problem}" for problem in cold)]

    async def close(self) -> None:
        await asyncio.gather(self._hot.close(), self._cold.close(), return_exceptions=True)

    async def _from_both(self, verb: Callable[[Store], Awaitable[Sequence[T]]]) -> list[tuple[T, T]]:
        """The answers of hot and cold in pairs. Raises StoreUnavailable while one is down: half a number is wrong."""
        hot, cold = await asyncio.gather(verb(self._hot), self._cold.call(verb))
        return list(zip(hot, cold, strict=True))


class TieredOneJob:
    """Single-job calls of hot. A push with an id that a client chose must be searched in cold, and is not one."""

    def __init__(self, hot: OneJob, tiers: Tiers) -> None:
        self._hot, self._tiers = hot, tiers

    def push(self, queue: Queue, request: Push, reply: ResultSink[Sequence[Pushed | DuetimeError]]) -> Send | None:
        if not request.made_ids:
            return None
        now, last = self._tiers.now(), self._tiers.horizon()
        if any(job.due(now) > last for job in request.jobs):
            return None
        return self._hot.push(queue, request, reply)

    def reserve(self, queue: Queue, ask: Ask, reply: ResultSink[Reserved]) -> Send | None:
        return self._hot.reserve(queue, ask, reply)

    def ack(
        self, lease: Lease, reply: ResultSink[Sequence[Moved | LeaseLost | StoreUnavailable | None]]
    ) -> Send | None:
        return self._hot.ack(lease, reply)

    def blocking(self) -> BlockingOneJob | None:
        return None


async def _do_nothing(member: Member, store: Store) -> None:
    pass


async def _nothing() -> Sequence[Pushed | DuetimeError]:
    return []


def _without_promotions(cold: QueueTotals) -> QueueTotals:
    def less(totals: Totals) -> Totals:
        return msgspec.structs.replace(totals, accepted=totals.accepted - totals.cancelled, cancelled=0)

    return QueueTotals(less(cold.running), {day: less(totals) for day, totals in cold.days.items()})

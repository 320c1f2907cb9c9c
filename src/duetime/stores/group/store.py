"""Several stores as one: a pool that outgrew one server.

A job lives on one member, its home by a stable hash of (queue, id) (`layout.py`). One member that is down, damaged or
full affects only its share: its pushes are refused, its jobs wait, everything else goes on. A verb that did something
on one member and failed on another reports both. What the contract promises for one job holds as on any store. Across
jobs a group promises less:

- A push of several jobs is all or nothing on each member, not over all of them.
- Reserve keeps the order (due_at, then id) on each member, and takes the member with the earliest job first.
- `max_jobs` and marks hold on each member, and a mark only while its jobs' homes stay.
- A job that follows from a finished one lives on that one's member. If its id does not begin as that of the finished
  one does (`layout.py`), a push of the same id elsewhere may find the id free.
- Counts, totals and lists are refused while a member is down: a part of them would be wrong.

A member that is to go away drains: it takes nothing new, and its jobs are delivered and found until it is empty.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar

import msgspec

from duetime.duties import Duty, Rounds, run_duty
from duetime.model.errors import DuetimeError, JobDead, JobRunning, LeaseLost, StoreUnavailable
from duetime.model.job import (
    STEP_JOBS,
    Counts,
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
    Store,
    StoreInfo,
    Wake,
    Withdrawal,
)
from duetime.stores.finishes import Finish, Finished, JoinCount, KeptResult
from duetime.stores.group.member import PROBLEMS, Member, MemberProblem, unknown_first
from duetime.stores.group.members import Members
from duetime.stores.group.verbs import (
    find_each,
    find_lease,
    finish,
    merge_pages,
    push,
    reserve,
)
from duetime.stores.registry import Registry

T = TypeVar("T")

LISTEN_AGAIN_S = 0.2
_BEYOND = object()  # a job that a member did not answer, because it ended at its bound


class GroupStore:
    one_job: OneJob | None = None
    duty: Duty | None = None

    def __init__(self, members: Members) -> None:
        self._members = members

    @classmethod
    async def open(
        cls, name: str, members: Mapping[str, Callable[[], Awaitable[Store]]], drain: Sequence[str] = ()
    ) -> "GroupStore":
        """`members` open the stores by name; members in `drain` take no new jobs.

        Raises InvalidSettings when a member that may have jobs is not named, StoreUnavailable when all are down.
        """
        group = cls(Members(name, members, drain))
        try:
            await group._members.open()
        except BaseException:
            await group.close()
            raise
        return group

    @property
    def registry(self) -> Registry:
        return self._members.registry

    # --- the hot path

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        return await push(self._members, queue, requests)

    async def reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved:
        return await reserve(self._members, queue, asks)

    async def ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved | LeaseLost | StoreUnavailable | None]:
        return await find_each(
            self._members,
            queue,
            [lease.id for lease in leases],
            lambda places, store: store.ack(queue, [leases[place] for place in places]),
        )

    async def finish(self, queue: Queue, finishes: Sequence[Finish]) -> Sequence[Finished | DuetimeError | None]:
        return await finish(self._members, queue, finishes)

    async def results(self, queue: Queue, ids: Sequence[str]) -> Sequence[KeptResult | None]:
        """Asks all members: a result that is not there yet is the usual case, and must not cost a search."""
        answers = await self._members.ask(lambda store: store.results(queue, ids))
        reached = min(map(len, answers.require_one().found.values()))
        found: list[KeptResult | None] = []
        for kept in zip(*(part[:reached] for part in answers.found.values()), strict=True):
            there = [one for one in kept if one]
            if not there:
                answers.require_all()
            found.append(max(there, key=lambda one: one.born, default=None))
        return found

    async def joins(self, queue: Queue, *, after: str = "") -> Sequence[JoinCount]:
        """A join is counted on one member. If its home has changed meanwhile, the greater count is the answer."""
        answers = (await self._members.ask(lambda store: store.joins(queue, after=after))).require_all()
        ends = [part[-1].name for part in answers.values() if len(part) == STEP_JOBS]
        counting: dict[str, JoinCount] = {}
        for one in (one for part in answers.values() for one in part):
            if one.name not in counting or counting[one.name].count < one.count:
                counting[one.name] = one
        return [counting[name] for name in sorted(counting) if not ends or name <= min(ends)][:STEP_JOBS]

    async def raise_joins(self, queue: Queue, joins: Sequence[JoinCount]) -> None:
        """Each at the home of the jobs that join, whose ids begin alike. Raises a member's problem."""
        shares: dict[str, list[JoinCount]] = {}
        for one in joins:
            shares.setdefault(self._members.homes(queue, one.name)[0], []).append(one)

        async def send(share: list[JoinCount], store: Store) -> None:
            await store.raise_joins(queue, share)

        calls = {name: partial(send, share) for name, share in shares.items()}
        (await self._members.ask_each(calls)).require_all()

    async def release(self, lease: Lease, delay_ms: int, error: str = "") -> Moved:
        return await find_lease(self._members, lease, lambda store: store.release(lease, delay_ms, error))

    async def give_back(
        self, queue: Queue, give_backs: Sequence[GiveBack]
    ) -> Sequence[Moved | LeaseLost | StoreUnavailable]:
        return await find_each(
            self._members,
            queue,
            [one.lease.id for one in give_backs],
            lambda places, store: store.give_back(queue, [give_backs[place] for place in places]),
        )

    async def kill(self, lease: Lease, error: str = "") -> Moved:
        return await find_lease(self._members, lease, lambda store: store.kill(lease, error))

    async def extend(self, lease: Lease, ttr_ms: int) -> int:
        return await find_lease(self._members, lease, lambda store: store.extend(lease, ttr_ms))

    async def cancel(
        self, queue: Queue, ids: Sequence[str], *, finished: bool = False
    ) -> Sequence[Moved | StoreUnavailable | None]:
        return await find_each(
            self._members,
            queue,
            ids,
            lambda places, store: store.cancel(queue, [ids[place] for place in places], finished=finished),
        )

    async def withdraw(
        self, queue: Queue, withdrawals: Sequence[Withdrawal]
    ) -> Sequence[Moved | StoreUnavailable | None]:
        return await find_each(
            self._members,
            queue,
            [one.id for one in withdrawals],
            lambda places, store: store.withdraw(queue, [withdrawals[place] for place in places]),
        )

    async def reschedule(
        self, queue: Queue, ids: Sequence[str], *, delay_ms: int = 0, due_at: int | None = None
    ) -> Sequence[Moved | JobRunning | JobDead | DuetimeError | None]:
        return await find_each(
            self._members,
            queue,
            ids,
            lambda places, store: store.reschedule(
                queue, [ids[place] for place in places], delay_ms=delay_ms, due_at=due_at
            ),
        )

    async def reap(self, limit: int = 500, *, recorded: Sequence[str] = ()) -> Reaped:
        """What the reachable members moved. No two members give the same receipt, so each may get all of them."""
        share = max(limit // len(self._members.names), 1)
        found = (await self._members.ask(lambda store: store.reap(share, recorded=recorded))).require_one().found
        return merge_reaped(list(found.values()))

    async def wakeups(self) -> AsyncIterator[Wake]:
        """Wakes of all members. After a lost member is back, its first wake is "check every queue"."""
        received: asyncio.Queue[Wake] = asyncio.Queue()

        async def listen(member: Member) -> float:
            if member.is_up:
                async for wake in await member.call(_listen):
                    received.put_nowait(wake)
            return LISTEN_AGAIN_S

        duties = [Rounds(f"listener of group member {one.name}", partial(listen, one)) for one in self._members]
        listeners = [asyncio.create_task(run_duty(duty)) for duty in duties]
        try:
            while True:
                yield await received.get()
        finally:
            for listener in listeners:
                listener.cancel()
            await asyncio.gather(*listeners, return_exceptions=True)

    # --- reading and administering

    async def heads(self, queues: Sequence[Queue], *, waiting: bool = False) -> Sequence[int | None]:
        found = (await self._members.ask(lambda store: store.heads(queues, waiting=waiting))).require_one().found
        return [_earliest(heads) for heads in zip(*found.values(), strict=True)]

    async def get(self, queue: Queue, ids: Sequence[str]) -> Sequence[Job | None]:
        """When a member ends at its bound, the answer ends before the first job that this member did not answer."""

        async def get(places: Sequence[int], store: Store) -> Sequence[Any]:
            found = await store.get(queue, [ids[place] for place in places])
            return [*found, *[_BEYOND] * (len(places) - len(found))]

        answers = await find_each(self._members, queue, ids[:STEP_JOBS], get)
        for problem in answers:
            if isinstance(problem, DuetimeError):
                raise problem
        return list(within_step(takewhile(lambda answer: answer is not _BEYOND, answers), payload_bytes))

    async def list_jobs(self, queue: Queue, state: State, *, cursor: str | None = None, limit: int = 100) -> Page:
        answers = await self._members.ask(lambda store: store.list_jobs(queue, state, cursor=cursor, limit=limit))
        return merge_pages(list(answers.require_all().values()), limit)

    async def counts(self, queues: Sequence[Queue]) -> Sequence[Counts]:
        found = (await self._members.ask(lambda store: store.counts(queues))).require_all()
        return [sum_counts(counts) for counts in zip(*found.values(), strict=True)]

    async def totals(self, queues: Sequence[Queue]) -> Sequence[QueueTotals]:
        found = (await self._members.ask(lambda store: store.totals(queues))).require_all()
        return [add_totals(totals) for totals in zip(*found.values(), strict=True)]

    async def queues(self, namespace: str | None = None) -> Sequence[Queue]:
        found = (await self._members.ask(lambda store: store.queues(namespace))).require_one().found
        return sorted({queue for queues in found.values() for queue in queues})

    async def due_histogram(self, queue: Queue, edges: Sequence[int]) -> Sequence[int]:
        found = (await self._members.ask(lambda store: store.due_histogram(queue, edges))).require_all()
        return [sum(numbers) for numbers in zip(*found.values(), strict=True)]

    async def respawn(
        self,
        queue: Queue,
        *,
        ids: Sequence[str] | None = None,
        limit: int = 1,
        ttl_ms: int = 0,
        tries: int | None = None,
    ) -> Sequence[Moved | StoreUnavailable]:
        moved: list[Moved] = []
        problems: list[MemberProblem] = []
        for name in self._members.names:
            left = min(limit, STEP_JOBS) - len(moved)
            if ids is None and left <= 0:
                break
            try:
                answers = await self._members.call(
                    name,
                    lambda store, left=left: store.respawn(queue, ids=ids, limit=left, ttl_ms=ttl_ms, tries=tries),
                )
                moved += [answer for answer in answers if isinstance(answer, Moved)]  # no member is a group
            except PROBLEMS as problem:
                problems.append(problem)
        problems = unknown_first(problems)
        if len(problems) == len(self._members.names):
            raise problems[0]
        if ids is not None:
            order = {job_id: place for place, job_id in enumerate(ids)}
            moved.sort(key=lambda one: order[one.id])
        return [*moved, *map(_unavailable, problems)]

    async def purge(self, queue: Queue, states: Sequence[State], *, limit: int | None = None) -> Purged:
        removed, now, more = 0, 0, False
        problems: list[MemberProblem] = []
        for name in self._members.names:
            left = None if limit is None else limit - removed
            if left == 0 or more:
                break
            try:
                step = await self._members.call(name, lambda store, left=left: store.purge(queue, states, limit=left))
            except PROBLEMS as problem:
                problems.append(problem)
                continue
            removed, now, more = removed + step.removed, max(now, step.now), step.more
        problems = unknown_first(problems)
        if len(problems) == len(self._members.names):
            raise problems[0]
        return Purged(removed, now, more, tuple(map(_unavailable, problems)))

    async def configure(self, queue: Queue, change: RulesChange | None = None) -> QueueRules:
        """Changes all members, and returns the rules of the first that answers.

        Raises StoreUnavailable if only some members could be changed; a repetition changes the others.
        """
        answers = (await self._members.ask(lambda store: store.configure(queue, change))).require_one()
        if change is not None:
            for problem in answers.problems.values():
                names = ", ".join(answers.found)
                raise StoreUnavailable(f"the rules of {queue} changed on {names}; {problem.message}", unknown=True)
        return next(iter(answers.found.values()))

    async def ping(self) -> StoreInfo:
        """Describes the members that answer; `problems` names the others. Their epochs are as last known."""
        pings = await asyncio.gather(*(member.ping() for member in self._members), return_exceptions=True)
        members: dict[str, StoreInfo] = {}
        problems: dict[str, MemberProblem] = {}
        for member, answer in zip(self._members, pings, strict=True):
            if isinstance(answer, StoreInfo):
                members[member.name] = msgspec.structs.replace(answer, drain=self._members.drain_of(member.name))
            elif isinstance(answer, MemberProblem):
                problems[member.name] = answer
            else:
                raise answer
        if not members:
            raise next(iter(problems.values()))
        found = list(members.values())
        kinds = sorted({info.kind for info in found})
        versions = sorted({info.version for info in found})
        fullest = max(found, key=lambda info: info.used_bytes / info.max_bytes if info.max_bytes else 0)
        return StoreInfo(
            f"group of {'/'.join(kinds)}",
            "/".join(versions),
            ";".join(f"{member.name}={member.epoch}" for member in self._members),
            max(one.now for one in found),
            fullest.used_bytes,
            fullest.max_bytes,
            problems,
            "; ".join(sorted({info.persistence for info in found if info.persistence})),
            members,
            own_bytes=sum(info.own_bytes for info in found),
        )

    async def check(self) -> Sequence[str]:
        found = (await self._members.ask(lambda store: store.check())).require_all()
        return [f"member {name}: {problem}" for name, problems in found.items() for problem in problems]

    async def close(self) -> None:
        await self._members.close()


async def _listen(store: Store) -> AsyncIterator[Wake]:
    return store.wakeups()


def _unavailable(problem: MemberProblem) -> StoreUnavailable:
    return StoreUnavailable(problem.message, **problem.fields)


def _earliest(times: Iterable[int | None]) -> int | None:
    return min((at for at in times if at is not None), default=None)


def merge_reaped(parts: Sequence[Reaped]) -> Reaped:
    moved: dict[Queue, list[Moved]] = {}
    pushed: dict[Queue, list[tuple[Push, Pushed]]] = {}
    for reaped in parts:
        for queue, happened in reaped.moved.items():
            moved.setdefault(queue, []).extend(happened)
        for queue, accepted in reaped.pushed.items():
            pushed.setdefault(queue, []).extend(accepted)
    receipts = tuple(receipt for reaped in parts for receipt in reaped.receipts)
    return Reaped(
        moved, _earliest(reaped.next_at for reaped in parts), max(reaped.now for reaped in parts), pushed, receipts
    )


def add_totals(parts: Sequence[QueueTotals]) -> QueueTotals:
    dates = sorted({each for one in parts for each in one.days})
    days = {each: _sum([one.days[each] for one in parts if each in one.days]) for each in dates}
    return QueueTotals(_sum([one.running for one in parts]), days)


def _sum(parts: Sequence[Totals]) -> Totals:
    return Totals(*map(sum, zip(*map(msgspec.structs.astuple, parts), strict=True)))

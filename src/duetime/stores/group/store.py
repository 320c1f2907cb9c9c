"""Several stores as one: a pool that outgrew one server.

A job lives on one member, its home by a stable hash of (queue, id) (`layout.py`). One member down affects only
its share: its pushes are refused, its jobs wait, everything else goes on. What the contract promises for one job holds
as on any store. Across jobs a group promises less, and nobody should be surprised:

- A push of several jobs is all or nothing on each member, not over all of them.
- Order (due_at, then id) and lists are in order on each member; reserve takes the member with the earliest job first.
- `max_jobs` and marks hold on each member, and a mark only while its jobs' homes stay. Counts are refused while a
  member is down: half a number would be a wrong one.

A member that is to go away drains: it takes nothing new, and its jobs are delivered and found until it is empty.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from duetime.errors import DuetimeError, InvalidSettings, JobDead, JobRunning, LeaseLost, StoreUnavailable
from duetime.job import STEP_BYTES, STEP_JOBS, Counts, Delivery, Job, Lease, Moved, State, payload_bytes
from duetime.names import Queue
from duetime.stores.base import (
    Ask,
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
)
from duetime.stores.get_all import get_all
from duetime.stores.group import layout
from duetime.stores.group.member import Member
from duetime.stores.registry import Registry

T = TypeVar("T")

log = logging.getLogger("duetime.stores")

KIND = "group"
"""The registry record on each member that remembers the group's layouts."""
LISTEN_AGAIN_S = 0.2
_BEYOND = object()  # stands for a job that a member did not come to


class GroupStore:
    """`members` are the stores by name; those in `drain` take nothing new."""

    def __init__(self, name: str, members: Mapping[str, Callable[[], Awaitable[Store]]], drain: Sequence[str]) -> None:
        current = tuple(sorted(set(members) - set(drain)))
        if not current:
            raise InvalidSettings(f"group {name}: at least one member must take new jobs")
        self._name = name
        self._members = {one: Member(one, members[one], self._ready) for one in sorted(members)}
        self._draining = frozenset(drain)
        self._layouts = layout.Layouts(current)

    @classmethod
    async def open(
        cls, name: str, members: Mapping[str, Callable[[], Awaitable[Store]]], drain: Sequence[str] = ()
    ) -> "GroupStore":
        """Raises InvalidSettings when a member that may have jobs is not named, StoreUnavailable when all are down."""
        group = cls(name, members, drain)
        try:
            # All come to their end before one fails: a store that opens after the close would stay open.
            starts = await asyncio.gather(
                *(member.start() for member in group._members.values()), return_exceptions=True
            )
            for error in filter(None, starts):
                raise error
            if not any(member.is_up for member in group._members.values()):
                raise StoreUnavailable(f"no member of group {name} can be reached")
            # Whoever was asked first does not know yet what the others remember.
            await group._every(group._remember)
        except BaseException:
            await group.close()
            raise
        return group

    # --- what the members remember

    async def _ready(self, member: Member, store: Store) -> None:
        record = await store.registry.get(KIND, self._name)
        known = layout.read(record.value) if record else ()
        layouts = layout.merge(self._layouts.current, [*self._layouts.earlier, *known])
        if member.name in self._draining and await _is_empty(store):
            layouts = layout.without(layouts, [member.name])
            log.info("group_member_empty", extra={"group": self._name, "member": member.name})
        if lost := sorted(layouts.names - self._members.keys()):
            raise InvalidSettings(
                f"group {self._name}: member {lost[0]} may still have jobs; name it, and in drain, until it is empty"
            )
        self._layouts = layouts
        await self._remember(store)

    async def _remember(self, store: Store) -> None:
        record = await store.registry.get(KIND, self._name)
        value = layout.write(self._layouts)
        if record is None or record.value != value:
            await store.registry.put(KIND, self._name, value)

    @property
    def registry(self) -> Registry:
        """The first member's: give a group of servers a registry of its own if that one must not be special."""
        return next(iter(self._members.values())).store.registry

    # --- the hot path

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        places = await self._places(queue, {job.id for request in requests for job in request.jobs})
        parts: dict[str, list[tuple[int, list[int]]]] = {}
        for at, request in enumerate(requests):
            shares: dict[str, list[int]] = {}
            for place, job in enumerate(request.jobs):
                shares.setdefault(places[job.id], []).append(place)
            for name, share in (shares or {self._layouts.current[0]: []}).items():
                parts.setdefault(name, []).append((at, share))

        async def send(name: str) -> Sequence[Pushed | DuetimeError]:
            cut = [_share(requests[at], share) for at, share in parts[name]]
            try:
                return await self._members[name].call(lambda store: store.push(queue, cut))
            except StoreUnavailable as error:
                return [error] * len(cut)

        answers: list[list[tuple[list[int], Pushed | DuetimeError]]] = [[] for _ in requests]
        for name, found in zip(parts, await asyncio.gather(*map(send, parts)), strict=True):
            for (at, share), answer in zip(parts[name], found, strict=True):
                answers[at].append((share, answer))
        return [_join(len(request.jobs), got) for request, got in zip(requests, answers, strict=True)]

    async def _places(self, queue: Queue, ids: set[str]) -> Mapping[str, str]:
        """Where each id is to be pushed: where it lives already, else its home.

        Only the few whose home has changed are looked for.
        """
        places: dict[str, str] = {}
        moved: dict[str, list[str]] = {}
        for job_id in ids:
            homes = self._layouts.homes(queue, job_id)
            places[job_id] = homes[0]
            for old in homes[1:]:
                moved.setdefault(old, []).append(job_id)
        for name, looked_for in moved.items():
            member = self._members[name]
            try:
                jobs = await member.call(lambda store, ids=looked_for: get_all(store, queue, ids))
            except StoreUnavailable:
                jobs = [None] * len(looked_for)  # its jobs cannot be delivered either: a new one does not double one
            places.update({job_id: name for job_id, job in zip(looked_for, jobs, strict=True) if job})
        return places

    async def reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved:
        heads = await self._every(lambda store: store.heads([queue]))
        order = sorted((head, name) for name, [head] in heads.items() if head is not None)
        # Without a job anywhere one member is asked all the same: it knows whether the queue is paused.
        names = [name for _, name in order] or list(heads)[:1]
        waiting = {name: head for name, [head] in heads.items() if head is not None}
        deliveries: list[list[Delivery]] = [[] for _ in asks]
        expired: list[Moved] = []
        now, paused = 0, False
        for name in names:
            left = [_rest(ask, len(got)) for ask, got in zip(asks, deliveries, strict=True)]
            if now and (waiting.get(name, 0) > now or _is_enough(left, deliveries)):
                break
            try:
                got = await self._members[name].call(lambda store, left=left: store.reserve(queue, left))
            except StoreUnavailable:
                waiting.pop(name, None)
                continue
            for mine, more in zip(deliveries, got.deliveries, strict=True):
                mine.extend(more)
            expired += got.expired
            now, paused = max(now, got.now), paused or got.paused
            waiting.pop(name, None)
            if got.next_at is not None:
                waiting[name] = got.next_at
        if not now:
            raise StoreUnavailable(f"no member of group {self._name} answers")
        return Reserved(deliveries, min(waiting.values(), default=None), now, expired, paused)

    async def ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved | LeaseLost | StoreUnavailable | None]:
        return await self._look_for(
            queue,
            [lease.id for lease in leases],
            lambda store, places: store.ack(queue, [leases[place] for place in places]),
        )

    async def release(self, lease: Lease, delay_ms: int, error: str = "") -> Moved:
        return await self._held(lease, lambda store: store.release(lease, delay_ms, error))

    async def give_back(self, lease: Lease) -> Moved:
        return await self._held(lease, lambda store: store.give_back(lease))

    async def kill(self, lease: Lease, error: str = "") -> Moved:
        return await self._held(lease, lambda store: store.kill(lease, error))

    async def extend(self, lease: Lease, ttr_ms: int) -> int:
        return await self._held(lease, lambda store: store.extend(lease, ttr_ms))

    async def cancel(self, queue: Queue, ids: Sequence[str]) -> Sequence[Moved | StoreUnavailable | None]:
        return await self._look_for(
            queue, ids, lambda store, places: store.cancel(queue, [ids[place] for place in places])
        )

    async def reschedule(
        self, queue: Queue, ids: Sequence[str], *, delay_ms: int = 0, due_at: int | None = None
    ) -> Sequence[Moved | JobRunning | JobDead | DuetimeError | None]:
        return await self._look_for(
            queue,
            ids,
            lambda store, places: store.reschedule(
                queue, [ids[place] for place in places], delay_ms=delay_ms, due_at=due_at
            ),
        )

    async def reap(self, limit: int = 500) -> Reaped:
        share = max(limit // len(self._members), 1)
        found = await self._every(lambda store: store.reap(share))
        moved: dict[Queue, list[Moved]] = {}
        for reaped in found.values():
            for queue, happened in reaped.moved.items():
                moved.setdefault(queue, []).extend(happened)
        now = max(reaped.now for reaped in found.values())
        return Reaped(moved, _earliest(reaped.next_at for reaped in found.values()), now)

    async def wakeups(self) -> AsyncIterator[Wake]:
        """Of all members. One that cannot be heard is listened to again, and then everything is looked at."""
        heard: asyncio.Queue[Wake] = asyncio.Queue()

        async def listen(member: Member) -> None:
            while True:
                try:
                    wakes = await member.call(_listen)
                    async for wake in wakes:
                        heard.put_nowait(wake)
                except DuetimeError:
                    pass  # the calls to it say so
                await asyncio.sleep(LISTEN_AGAIN_S)

        listeners = [asyncio.create_task(listen(member)) for member in self._members.values()]
        try:
            while True:
                yield await heard.get()
        finally:
            for listener in listeners:
                listener.cancel()
            await asyncio.gather(*listeners, return_exceptions=True)

    # --- looking and administering

    async def heads(self, queues: Sequence[Queue]) -> Sequence[int | None]:
        found = await self._every(lambda store: store.heads(queues))
        return [_earliest(heads) for heads in zip(*found.values(), strict=True)]

    async def get(self, queue: Queue, ids: Sequence[str]) -> Sequence[Job | None]:
        """A member that ends at its bound ends the answer before the first job that it did not come to."""

        async def look(store: Store, places: Sequence[int]) -> Sequence[Any]:
            found = await store.get(queue, [ids[place] for place in places])
            return [*found, *[_BEYOND] * (len(places) - len(found))]

        jobs, room = list[Job | None](), STEP_BYTES
        for answer in await self._look_for(queue, ids[:STEP_JOBS], look):
            if isinstance(answer, DuetimeError):
                raise answer
            room -= payload_bytes(answer) if isinstance(answer, Job) else 0
            if answer is _BEYOND or (jobs and room < 0):
                break
            jobs.append(answer)
        return jobs

    async def list_jobs(self, queue: Queue, state: State, *, cursor: str | None = None, limit: int = 100) -> Page:
        """One member after the other."""
        names = list(self._members)
        first, _, own = cursor.partition(":") if cursor else (names[0], "", "")
        jobs: list[Job] = []
        for name in names[names.index(first) if first in names else len(names) :]:
            left = limit - len(jobs)
            page = await self._members[name].call(
                lambda store, own=own, left=left: store.list_jobs(queue, state, cursor=own or None, limit=left)
            )
            jobs += page.jobs
            if page.cursor is not None:
                return Page(jobs, f"{name}:{page.cursor}")
            own = ""
            if len(jobs) >= limit and name != names[-1]:
                return Page(jobs, f"{names[names.index(name) + 1]}:")
        return Page(jobs, None)

    async def counts(self, queues: Sequence[Queue]) -> Sequence[Counts]:
        found = await self._all(lambda store: store.counts(queues))
        return [_add(counts) for counts in zip(*found.values(), strict=True)]

    async def queues(self, namespace: str | None = None) -> Sequence[Queue]:
        found = await self._every(lambda store: store.queues(namespace))
        return sorted({queue for queues in found.values() for queue in queues})

    async def due_histogram(self, queue: Queue, edges: Sequence[int]) -> Sequence[int]:
        found = await self._all(lambda store: store.due_histogram(queue, edges))
        return [sum(numbers) for numbers in zip(*found.values(), strict=True)]

    async def respawn(
        self,
        queue: Queue,
        *,
        ids: Sequence[str] | None = None,
        limit: int = 1,
        ttl_ms: int = 0,
        tries: int | None = None,
    ) -> Sequence[Moved]:
        moved: list[Moved] = []
        for member in self._members.values():
            left = min(limit, STEP_JOBS) - len(moved)
            if ids is None and left <= 0:
                break
            moved += await member.call(
                lambda store, left=left: store.respawn(queue, ids=ids, limit=left, ttl_ms=ttl_ms, tries=tries)
            )
        if ids is not None:
            order = {job_id: place for place, job_id in enumerate(ids)}
            moved.sort(key=lambda one: order[one.id])
        return moved

    async def purge(self, queue: Queue, states: Sequence[State], *, limit: int | None = None) -> Purged:
        removed, now = 0, 0
        for member in self._members.values():
            left = None if limit is None else limit - removed
            if left == 0:
                break
            step = await member.call(lambda store, left=left: store.purge(queue, states, limit=left))
            removed, now = removed + step.removed, max(now, step.now)
            if step.more:
                return Purged(removed, now, more=True)
        return Purged(removed, now)

    async def configure(self, queue: Queue, change: RulesChange | None = None) -> QueueRules:
        """On all members; asks the first that answers. A repeated call finishes what one in an outage began."""
        if change is None:
            found = await self._every(lambda store: store.configure(queue))
        else:
            found = await self._all(lambda store: store.configure(queue, change))
        return next(iter(found.values()))

    async def ping(self) -> StoreInfo:
        """Raises while any member is down: the others serve, but somebody should know."""
        found = await self._all(lambda store: store.ping())
        kinds = sorted({info.kind for info in found.values()})
        versions = sorted({info.version for info in found.values()})
        epochs = [f"{name}={info.epoch}" for name, info in found.items()]
        fullest = max(found.values(), key=lambda info: info.used_bytes / info.max_bytes if info.max_bytes else 0)
        return StoreInfo(
            f"group of {'/'.join(kinds)}",
            "/".join(versions),
            ";".join(epochs),
            max(one.now for one in found.values()),
            fullest.used_bytes,
            fullest.max_bytes,
        )

    async def check(self) -> Sequence[str]:
        found = await self._all(lambda store: store.check())
        return [f"member {name}: {problem}" for name, problems in found.items() for problem in problems]

    async def close(self) -> None:
        await asyncio.gather(*(member.close() for member in self._members.values()), return_exceptions=True)

    # --- how members are asked

    async def _every(self, verb: Callable[[Store], Awaitable[T]]) -> dict[str, T]:
        """The answers of those that can answer. Raises StoreUnavailable if none can."""
        names = list(self._members)
        found = await asyncio.gather(*(self._members[name].call(verb) for name in names), return_exceptions=True)
        answers: dict[str, T] = {}
        for name, answer in zip(names, found, strict=True):
            if isinstance(answer, StoreUnavailable):
                continue
            if isinstance(answer, BaseException):
                raise answer
            answers[name] = answer
        if not answers:
            raise StoreUnavailable(f"no member of group {self._name} answers")
        return answers

    async def _all(self, verb: Callable[[Store], Awaitable[T]]) -> dict[str, T]:
        """The answers of all. Raises the first error."""
        names = list(self._members)
        found = await asyncio.gather(*(self._members[name].call(verb) for name in names))
        return dict(zip(names, found, strict=True))

    async def _held(self, lease: Lease, verb: Callable[[Store], Awaitable[T]]) -> T:
        """Where the lease is held: the last place says that it is lost."""
        *before, last = self._layouts.homes(lease.queue, lease.id)
        for name in before:
            try:
                return await self._members[name].call(verb)
            except LeaseLost:
                continue
        return await self._members[last].call(verb)

    async def _look_for(
        self, queue: Queue, ids: Sequence[str], verb: Callable[[Store, Sequence[int]], Awaitable[Sequence[Any]]]
    ) -> list[Any]:
        """One answer per id from the first of its homes that knows it; the error of one that is down for its share."""
        answers: list[Any] = [None] * len(ids)
        asked: dict[str, list[int]] = {}
        homes = [self._layouts.homes(queue, job_id) for job_id in ids]
        for turn in range(max(map(len, homes), default=0)):
            asked.clear()
            for place, names in enumerate(homes):
                if turn < len(names) and (answers[place] is None or isinstance(answers[place], LeaseLost)):
                    asked.setdefault(names[turn], []).append(place)
            found = await asyncio.gather(*(self._share(name, places, verb) for name, places in asked.items()))
            for places, share in zip(asked.values(), found, strict=True):
                for place, answer in zip(places, share, strict=True):
                    answers[place] = answers[place] if answer is None else answer
        return answers

    async def _share(
        self, name: str, places: Sequence[int], verb: Callable[[Store, Sequence[int]], Awaitable[Sequence[Any]]]
    ) -> Sequence[Any]:
        try:
            return await self._members[name].call(lambda store: verb(store, places))
        except StoreUnavailable as error:
            return [error] * len(places)


async def _listen(store: Store) -> AsyncIterator[Wake]:
    return store.wakeups()


async def _is_empty(store: Store) -> bool:
    queues = await store.queues()
    return not any(counts.total for counts in await store.counts(queues)) if queues else True


def _share(request: Push, places: Sequence[int]) -> Push:
    """The part of a request that one member gets, with the request's mark."""
    if len(places) == len(request.jobs):
        return request
    return replace(request, jobs=[request.jobs[place] for place in places])


def _join(size: int, parts: Sequence[tuple[Sequence[int], Pushed | DuetimeError]]) -> Pushed | DuetimeError:
    """One answer out of the members' parts. An error of one part is the request's, and says what else was done."""
    done = [(places, answer) for places, answer in parts if isinstance(answer, Pushed)]
    failed = [answer for _, answer in parts if isinstance(answer, DuetimeError)]
    if failed:
        error = next((one for one in failed if not isinstance(one, StoreUnavailable)), failed[0])
        if done and isinstance(error, StoreUnavailable):
            return StoreUnavailable(error.message, unknown=True)
        return error
    if len(done) == 1:
        return done[0][1]
    jobs: list[Moved | None] = [None] * size
    for places, answer in done:
        for place, moved in zip(places, answer.jobs, strict=True):
            jobs[place] = moved
    return Pushed(
        [moved for moved in jobs if moved],
        max(answer.now for _, answer in done),
        all(answer.repeated for _, answer in done),
    )


def _is_enough(left: Sequence[Ask], deliveries: Sequence[Sequence[Delivery]]) -> bool:
    """All are served, or the call is at its bound."""
    got = [delivery for share in deliveries for delivery in share]
    full = len(got) >= STEP_JOBS or sum(map(payload_bytes, got)) >= STEP_BYTES
    return full or not any(ask.limit for ask in left)


def _rest(ask: Ask, got: int) -> Ask:
    """What is left of an ask; its quotas are spent from the first on."""
    quotas: list[int] = []
    for quota in ask.quotas:
        spent = min(quota, got)
        got -= spent
        quotas.append(quota - spent)
    left = ask.limit - sum(ask.quotas) + sum(quotas) - got
    return Ask(left, ask.ttr_ms, (quotas[0], quotas[1], quotas[2]))


def _earliest(times: Iterable[int | None]) -> int | None:
    return min((at for at in times if at is not None), default=None)


def _add(parts: Sequence[Counts]) -> Counts:
    return Counts(
        delayed=sum(one.delayed for one in parts),
        ready=sum(one.ready for one in parts),
        leased=sum(one.leased for one in parts),
        dead=sum(one.dead for one in parts),
        expired=sum(one.expired for one in parts),
        now=max(one.now for one in parts),
        damaged=sum(one.damaged for one in parts),
    )

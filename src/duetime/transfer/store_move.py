"""Moves everything from one store to another, live: jobs batch by batch, rules, registry, the pool's journal.

A queue is paused at the source first, so that no consumer leases its jobs there while they are copied. Producers may go
on there, and consumers and producers may work at the target from the start. For each batch: copy it to the target under
marks, then withdraw exactly what was copied from the source. After a crash between the two the jobs are in both stores,
but the source is paused, and the next run finds the marks. The counts of joins go before the jobs that join.
docs/decisions/026-moving-between-stores.md has the why.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from duetime.client.embedded_transport import embedded_engine
from duetime.client.transport import check_is_store
from duetime.journal import registration
from duetime.model.errors import Conflict, InvalidRequest, StoreUnavailable
from duetime.model.ids import IdMaker
from duetime.model.job import Counts, Job, Moved, State, chunks, sum_counts
from duetime.model.masking import mask
from duetime.model.names import Queue, placing_part
from duetime.stores.base import QueueRules, RulesChange, Store, Withdrawal, list_all
from duetime.stores.registry import MOVED_AWAY
from duetime.transfer.put_back import MARK_LIFE_MS, put_back, read_joins, seen_due
from duetime.transfer.registry_records import (
    MOVE,
    MOVE_QUEUE,
    read_counters,
    read_records,
    write_counters,
    write_records,
)
from duetime.transfer.transfer_lock import TransferLock

CURRENT = "current"
PASS_EVERY_S = 0.2
STATES = (State.READY, State.DELAYED, State.DEAD)
STALE_MS = MARK_LIFE_MS - MARK_LIFE_MS // 24

Progress = Callable[[int, int], None]
"""Called with the number of jobs that were moved so far, and of those known to be left."""


class MoveRun(Struct, frozen=True):
    """The record of a move that is not done, at its source. `at` is the source's time when it last worked."""

    id: str
    to: str
    epoch: str
    at: int


class MovedTo(Struct, frozen=True):
    """The record at a source from which everything was moved."""

    to: str
    at: int


@dataclass
class QueueMove:
    """What happened to one queue. `left` are the jobs still at the source when the move ended."""

    queue: Queue
    moved: dict[str, int] = field(default_factory=lambda: {state.value: 0 for state in STATES})
    left: int = 0
    is_verified: bool = False

    @property
    def total(self) -> int:
        return sum(self.moved.values())


@dataclass
class MoveReport:
    queues: list[QueueMove] = field(default_factory=list[QueueMove])
    records: int = 0
    other_records: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])
    skew_ms: int = 0

    @property
    def moved(self) -> int:
        return sum(one.total for one in self.queues)

    @property
    def left(self) -> int:
        return sum(one.left for one in self.queues)

    @property
    def is_complete(self) -> bool:
        return not self.left and all(one.is_verified for one in self.queues)


@asynccontextmanager
async def opened(source_url: str, target_url: str) -> AsyncGenerator[tuple[Store, Store]]:
    """Both stores, each under an engine that takes back leases and journals if the pool does."""
    for url in (source_url, target_url):
        refusal = f"a move must be between stores (sqlite:, redis:, postgresql:, mysql:), got {mask(url)}"
        check_is_store(url, refusal)
        if url.startswith("memory:"):
            raise InvalidRequest(refusal)
    async with embedded_engine(source_url) as source, embedded_engine(target_url) as target:
        if (await source.store.ping()).epoch == (await target.store.ping()).epoch:
            raise InvalidRequest("from and to must be different stores")
        yield source.store, target.store


async def clock_skew_ms(source: Store, target: Store) -> int:
    """How far the target's clock is ahead of the source's, beyond the time that the calls took."""
    before = (await source.ping()).now
    there = (await target.ping()).now
    after = (await source.ping()).now
    return max(there - after, 0) or min(there - before, 0)


async def survey(store: Store) -> dict[Queue, Counts]:
    """What there is to move."""
    queues = list(await store.queues())
    return dict(zip(queues, await store.counts(queues), strict=True)) if queues else {}


class StoreMove:
    """One run of a move. `wait_s` is how long it waits for leased jobs to come back."""

    def __init__(
        self, source: Store, target: Store, to: str, *, wait_s: float, progress: Progress = lambda done, left: None
    ):
        self._source, self._target, self._to = source, target, mask(to)
        self._wait_s, self._progress = wait_s, progress
        self._run = MoveRun("", "", "", 0)
        self._queues: dict[Queue, QueueMove] = {}
        self._before: dict[Queue, tuple[int, int]] = {}
        self._problems: dict[tuple[Queue, str], str] = {}
        self._delivered: set[tuple[Queue, str, int]] = set()
        self._withdrawn: dict[tuple[Queue, str, int], int] = {}
        """How often a copy was withdrawn because the job changed at the source meanwhile."""
        self._leased: dict[Queue, set[str]] = {}
        """How the ids of the leased jobs began when the counts of joins were last brought to the target."""
        self._known = self._undone = 0
        self._lock = TransferLock(source.registry, "move")

    async def run(self, *, follow: Callable[[], bool] = lambda: False) -> MoveReport:
        """Until nothing is left at the source, or the time for leases is up; as long as `follow` says, go on."""
        report = MoveReport()
        async with self._lock:
            await self._begin(report)
            await self._copy_registry(report)
            await self._end(report, await self._move_all(follow))
        return report

    async def _move_all(self, follow: Callable[[], bool]) -> Mapping[Queue, Counts]:
        deadline = asyncio.get_running_loop().time() + self._wait_s
        while True:
            moved, counts = await self._pass()
            left = sum_counts(list(counts.values()))
            is_late = asyncio.get_running_loop().time() > deadline
            if not moved and not follow() and (is_late or not left.leased):
                return counts
            if not moved:
                await asyncio.sleep(PASS_EVERY_S)

    async def _begin(self, report: MoveReport) -> None:
        here, there = await self._source.ping(), await self._target.ping()
        report.skew_ms = await clock_skew_ms(self._source, self._target)
        if await self._target.registry.get(MOVE, CURRENT):
            raise Conflict("a move from the target is not done: finish that one first")
        registry = self._source.registry
        if record := await registry.get(MOVE, CURRENT):
            self._run = msgspec.json.decode(record.value, type=MoveRun)
            if self._run.epoch != there.epoch:
                raise Conflict(
                    f"a move to {self._run.to} is not done: finish that one first, or its jobs would be doubled"
                )
            if here.now - self._run.at > STALE_MS:
                raise Conflict(
                    f"the move to {self._run.to} stopped two days ago, and the marks of its last batch are gone: check "
                    "which jobs of the source are at the target, cancel them at the source, and then delete the record "
                    f"of the kind {MOVE!r}"
                )
        else:
            self._run = MoveRun(IdMaker().make(), self._to, there.epoch, here.now)
        await self._note_time(here.now)
        await self._reopen_target()
        await self._join_journals()

    async def _note_time(self, now: int) -> None:
        self._run = msgspec.structs.replace(self._run, at=now)
        await self._source.registry.put(MOVE, CURRENT, msgspec.json.encode(self._run))

    async def _reopen_target(self) -> None:
        """A target that was the source of an earlier move has paused queues, and a record that says so."""
        registry = self._target.registry
        for record in await registry.list_records(MOVE_QUEUE):
            namespace, _, name = record.key.partition("/")
            if record.value == b"resumed":
                await self._target.configure(Queue(namespace, name), RulesChange(paused=False))
            await registry.delete(MOVE_QUEUE, record.key)
        await registry.delete(MOVED_AWAY, CURRENT)

    async def _join_journals(self) -> None:
        """The journal goes on: the pool is the same one in another store."""
        here, there = await registration.find_journaling(self._source), await registration.find_journaling(self._target)
        if here is None:
            return
        if there is None:
            there = await registration.begin_journaling(self._target, here.pool)
        if here.pool != there.pool:
            raise Conflict(
                f"both stores have a journal, as the pools {here.pool!r} and {there.pool!r}: end one of them with "
                "`duetime journal end --url URL`"
            )
        if here.since < there.since:
            await self._target.registry.put(registration.POOL_KIND, registration.POOL_KEY, msgspec.json.encode(here))

    async def _copy_registry(self, report: MoveReport) -> None:
        records = await read_records(self._source.registry)
        others = await write_records(self._target.registry, records)
        await write_counters(self._target.registry, await read_counters(self._source.registry))
        report.records = len(records) - len(others)
        report.other_records = [f"{one.kind} {one.key}" for one in others]

    # --- jobs

    async def _pass(self) -> tuple[int, Mapping[Queue, Counts]]:
        """Move what waits or is dead in every queue; answers how many jobs were met, and what is left then."""
        await self._lock.check()
        before = self._total() + self._undone
        for queue in sorted(await self._source.queues()):
            if queue not in self._queues:
                await self._open_queue(queue)
            held = await self._move_joins(queue)
            for state in STATES:
                await self._move_state(queue, state, held)
        counts = await survey(self._source)
        self._known = self._total() + sum_counts(list(counts.values())).total
        self._progress(self._total(), self._known)
        return self._total() + self._undone - before, counts

    def _total(self) -> int:
        return sum(one.total for one in self._queues.values())

    async def _open_queue(self, queue: Queue) -> None:
        """Pause it at the source, noting first whether it was; bring its rules to the target."""
        rules = await self._source.configure(queue)
        key = f"{queue.namespace}/{queue.name}"
        if await self._source.registry.get(MOVE_QUEUE, key) is None:
            await self._source.registry.put(MOVE_QUEUE, key, b"paused" if rules.paused else b"resumed")
        record = await self._source.registry.get(MOVE_QUEUE, key)
        was = msgspec.structs.replace(rules, paused=record is not None and record.value == b"paused")
        if await self._target.configure(queue) == QueueRules() != was:
            await self._target.configure(queue, RulesChange(**msgspec.structs.asdict(was)))
        if not rules.paused:
            await self._source.configure(queue, RulesChange(paused=True))
        self._queues[queue] = QueueMove(queue)

    async def _move_joins(self, queue: Queue) -> set[str]:
        """Bring the counts of joins to the target. Answers how the ids of leased jobs begin: each of them may still be
        counted at the source, so that the jobs that can join with it wait for its end. The others' counts are final,
        because nobody can lease a job of the paused queue.
        """
        leased: set[str] = set()
        async for jobs in list_all(self._source, queue, State.LEASED):
            leased |= {placing_part(job.id) for job in jobs}
        if self._leased.get(queue) != leased:
            joins = await read_joins(self._source, queue)
            for some in chunks([one for one in joins if placing_part(one.name) not in leased]):
                await self._target.raise_joins(queue, some)
            self._leased[queue] = leased
        return leased

    async def _move_state(self, queue: Queue, state: State, held: set[str]) -> None:
        async for found in list_all(self._source, queue, state):
            if jobs := [job for job in found if placing_part(job.id) not in held]:
                self._queues[queue].moved[state.value] += await self._move_jobs(queue, jobs)
                self._progress(self._total(), max(self._known, self._total()))

    async def _move_jobs(self, queue: Queue, jobs: Sequence[Job]) -> int:
        fresh = [job for job in jobs if (queue, job.id, job.born) not in self._delivered]
        problems = await self._put_back(queue, fresh)
        arrived = [job for job, problem in zip(fresh, problems, strict=True) if not problem]
        arrived += [job for job in jobs if (queue, job.id, job.born) in self._delivered]
        for job, problem in zip(fresh, problems, strict=True):
            self._problems[queue, job.id] = problem
        if not arrived:
            return 0
        await self._lock.check()
        removed = await self._source.withdraw(queue, [Withdrawal(job.id, job.born, seen_due(job)) for job in arrived])
        changed: list[Job] = []
        for job, answer in zip(arrived, removed, strict=True):
            if isinstance(answer, StoreUnavailable):
                raise answer
            if answer is None:
                changed.append(job)
        await self._undo(queue, changed)
        return len(arrived) - len(changed)

    async def _put_back(self, queue: Queue, jobs: Sequence[Job]) -> list[str]:
        """A copy that was withdrawn has left its mark, so that the job needs another one to be copied again."""
        runs = [self._withdrawn.get((queue, job.id, job.born), 0) for job in jobs]
        problems: dict[int, str] = {}
        for times in sorted(set(runs)):
            places = [place for place, run in enumerate(runs) if run == times]
            run = f"{self._run.id}.{times}" if times else self._run.id
            found = await put_back(self._target, queue, [jobs[place] for place in places], run)
            problems.update(zip(places, found, strict=True))
        return [problems[place] for place in range(len(jobs))]

    async def _undo(self, queue: Queue, changed: Sequence[Job]) -> None:
        """Jobs that changed at the source after they were listed: withdraw the copies. A copy that a consumer has
        taken meanwhile is the job from now on, and what is left of it at the source goes without being copied. A copy
        that cannot be reached stays, and `put_back` replaces it in the next pass.
        """
        if not changed:
            return
        self._undone += len(changed)
        await self._lock.check()
        undone = await self._target.withdraw(queue, [Withdrawal(job.id, job.born, seen_due(job)) for job in changed])
        for job, answer in zip(changed, undone, strict=True):
            key = (queue, job.id, job.born)
            if answer is None:
                self._delivered.add(key)
            elif isinstance(answer, Moved):
                self._withdrawn[key] = self._withdrawn.get(key, 0) + 1

    # --- the end

    async def _end(self, report: MoveReport, counts: Mapping[Queue, Counts]) -> None:
        for queue, one in sorted(self._queues.items()):
            one.left = counts[queue].total if queue in counts else 0
            one.is_verified = not one.left and await self._is_sound(queue)
            report.queues.append(one)
        report.problems = [f"{queue} {job_id}: {why}" for (queue, job_id), why in sorted(self._problems.items()) if why]
        if report.left:
            await self._note_time((await self._source.ping()).now)
            return
        moved = MovedTo(self._to, (await self._source.ping()).now)
        await self._source.registry.put(MOVED_AWAY, CURRENT, msgspec.json.encode(moved))
        await self._source.registry.delete(MOVE, CURRENT)

    async def _is_sound(self, queue: Queue) -> bool:
        """Whether the target holds no more and no less than its own totals say. Live traffic between the two reads can
        differ, so it is asked again.
        """
        for _ in range(20):
            [counts], [totals] = await self._target.counts([queue]), await self._target.totals([queue])
            [again] = await self._target.totals([queue])
            sums: Any = totals.running
            expected = sums.accepted - sums.acked - sums.cancelled - sums.expired
            if counts.total <= expected and sums.accepted >= self._queues[queue].total - counts.expired:
                return True
            if again == totals:
                return False
        return False

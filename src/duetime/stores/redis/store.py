"""The Redis store: the hot path.

Every step is one run of one Lua script, and so it is atomic; lua/modules/keys.lua describes the layout. Jobs go
in and come out as flat lists of bytes, which keeps a batch cheap on both sides.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec

from duetime.model.clock import Clock
from duetime.model.errors import (
    DuetimeError,
    ExpiresBeforeDue,
    JobDead,
    JobRunning,
    LeaseLost,
    StoreFull,
    StoreUnavailable,
)
from duetime.model.job import STEP_BYTES, STEP_JOBS, Delivery, Event, Lease, Moved, chunks
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Reaped, Reserved, Wake, Withdrawal
from duetime.stores.direct import UnusualQueues
from duetime.stores.redis import keys, one_job, pushes
from duetime.stores.redis.codec import (
    LEASED,
    REASONS,
    RECORD,
    pack_fence,
    read_info,
    read_moved,
)
from duetime.stores.redis.connect import connect
from duetime.stores.redis.damage import read_happened
from duetime.stores.redis.direct import DirectRedis
from duetime.stores.redis.finishing import RedisFinishing
from duetime.stores.redis.link import Link
from duetime.stores.redis.pipe import Argument, pack_arguments
from duetime.stores.redis.posted import PostedRedis
from duetime.stores.redis.pushes import Batch
from duetime.stores.redis.scripts import checked

AGENDA_PAGE = 16
"""How many queues of each partition are looked at in one round of reaping."""
REAP_WAVE = 32
"""How many queues are reaped in one round trip."""
REAP_ROUNDS = 8
NEVER = float("inf")
"""The time in the agenda of a queue that does not need the reaper."""

T = TypeVar("T")


class RedisStore(RedisFinishing):
    """Keeps the contract of `stores.base.Store`."""

    def __init__(self, link: Link, clock: Clock | None) -> None:
        super().__init__(link, clock)
        self._unusual = UnusualQueues()
        self._url = ""

    @classmethod
    async def open(cls, url: str, *, clock: Clock | None = None) -> "RedisStore":
        """Connect and draw the data set's epoch if it has none. A `clock` replaces Redis's own."""
        store = cls(connect(url), clock)
        store._url = url
        try:
            await store.ping()
        except BaseException:
            await store.close()
            raise
        return store

    # --- see stores/direct.py

    def direct_calls(self) -> DirectRedis | None:
        return DirectRedis.of(self._url, self._clock, self._unusual) if self._url else None

    def posted_calls(self) -> PostedRedis:
        return PostedRedis(self._link, self._clock, self._unusual)

    # --- the hot path

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        if len(requests) == 1 and (pushed := await self._push_one(queue, requests[0])):
            return [pushed]
        return await self._push_batches(queue, pushes.batches(requests))

    async def _push_one(self, queue: Queue, request: Push) -> Pushed | DuetimeError | None:
        """Push one plain job by a shorter script. Returns None if that script declined, and then nothing was done."""
        arguments = one_job.push_arguments(request)
        if arguments is None or self._unusual.has("push_one", queue):
            return None
        try:
            answer = await self._scripts.run("push_one", keys.prefix(queue), self._now(), *arguments)
        except StoreFull as full:
            return full
        if answer is None:
            self._unusual.add("push_one", queue)
        return one_job.read_pushed(request, answer) if answer else None

    async def _push_batches(self, queue: Queue, batches: Iterable[Batch]) -> list[Pushed | DuetimeError]:
        answers: list[Pushed | DuetimeError] = []
        for batch in batches:
            try:
                answers += await self._push_batch(queue, batch)
            except StoreUnavailable as error:
                if not answers:
                    raise
                answers += [error] * len(batch.requests)  # the batches before it are done, and keep their answers
        return answers

    async def _push_batch(self, queue: Queue, batch: Batch) -> list[Pushed | DuetimeError]:
        try:
            answer = await self._scripts.run(batch.script, keys.prefix(queue), self._now(), *batch.arguments())
        except StoreFull as full:
            if len(batch.requests) == 1:
                return [full]
        else:
            if (answers := batch.read(answer)) is not None:
                return answers
        # Nothing was done. Each request by itself: one that needs room must not fail one that needs none.
        return await self._push_batches(queue, batch.split())

    async def run_packed(self, script: str, queue: Queue, packed: bytes, count: int) -> Any:
        """Run a script with now and these `count` packed arguments (`pipe.pack_arguments`). It is repeated if its
        answer was lost.
        """
        now = pack_arguments((self._now(),))
        return await self._scripts.run_packed(script, keys.prefix(queue), now + packed, count + 1, again=True)

    async def reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved:
        if len(asks) == 1 and asks[0].limit == 1 and (found := await self._reserve_one(queue, asks[0])):
            return found
        wanted: list[Argument] = []
        for ask in asks:
            wanted += (ask.limit, ask.ttr_ms, *ask.quotas)
        answer = await self._scripts.run("reserve", keys.prefix(queue), self._now(), STEP_JOBS, STEP_BYTES, *wanted)
        now, next_at, paused, given, expired, ids, records, raws, infos = answer
        if paused:
            return Reserved([[] for _ in asks], None, now, paused=True)
        deliveries: list[list[Delivery]] = []
        found = zip(ids, RECORD.iter_unpack(records), raws, strict=True)
        for ask, count in zip(asks, given, strict=True):
            deliveries.append(one_job.read_deliveries(queue, islice(found, count), now + ask.ttr_ms))
        if infos:
            deliveries = _with_infos(deliveries, infos)
        return Reserved(deliveries, next_at, now, read_happened(queue, expired))

    async def _reserve_one(self, queue: Queue, ask: Ask) -> Reserved | None:
        if self._unusual.has("reserve_one", queue):
            return None
        answer = await self._scripts.run("reserve_one", keys.prefix(queue), self._now(), ask.ttr_ms)
        if answer is None:
            self._unusual.add("reserve_one", queue)
            return None
        return one_job.read_reserved(queue, ask, answer)

    async def ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved | LeaseLost | StoreUnavailable | None]:
        if len(leases) != 1 or self._unusual.has("ack_one", queue):
            return await self._ack(queue, leases)
        try:
            moved = await self._ack_one(queue, leases[0])
            return [moved] if moved else await self._ack(queue, leases)
        except StoreUnavailable as lost:
            if not lost.outcome_unknown:
                raise
        try:
            return await self._ack(queue, leases)
        except StoreUnavailable as error:
            raise error.after_a_loss() from error

    async def _ack(
        self, queue: Queue, leases: Sequence[Lease]
    ) -> Sequence[Moved | LeaseLost | StoreUnavailable | None]:
        answers: list[Moved | LeaseLost | StoreUnavailable | None] = []
        # No id occurs twice in a run, so that the second ack of a lease sees what the first did.
        for some in chunks(leases, distinct=lambda lease: [lease.id]):
            ids = [lease.id for lease in some]
            fences = b"".join([pack_fence(LEASED, lease.born, lease.attempt) for lease in some])
            latest = max([lease.born for lease in some])
            try:
                letters = await self._scripts.run(
                    "ack", keys.prefix(queue), self._now(), STEP_BYTES, latest, fences, *ids, again=True
                )
            except StoreUnavailable as error:
                if not answers:
                    raise
                answers += [error] * (len(leases) - len(answers))  # the acks before it have happened
                break
            if letters.count(b"a") == len(some):
                answers += [Moved(Event.ACKED, lease.id, lease.born, lease.attempt) for lease in some]
            else:
                answers += [_read_ack(lease, letter) for lease, letter in zip(some, letters, strict=True)]
        return answers

    async def _ack_one(self, queue: Queue, lease: Lease) -> Moved | None:
        arguments = one_job.ack_arguments(lease)
        if await self._scripts.run("ack_one", keys.prefix(queue), self._now(), *arguments):
            return one_job.acked(lease)
        self._unusual.add("ack_one", queue)
        return None

    async def release(self, lease: Lease, delay_ms: int, error: str = "") -> Moved:
        return _held(lease, await self._on_lease("release", lease, delay_ms, error))

    async def give_back(self, lease: Lease, delay_ms: int | None = None) -> Moved:
        return _held(lease, await self._on_lease("give_back", lease, "" if delay_ms is None else delay_ms))

    async def kill(self, lease: Lease, error: str = "") -> Moved:
        return _held(lease, await self._on_lease("kill", lease, error))

    async def extend(self, lease: Lease, ttr_ms: int) -> int:
        lease_end = await self._on_lease("extend", lease, ttr_ms, again=True)
        if lease_end is None:
            raise _lease_lost(lease)
        return lease_end

    async def _on_lease(self, verb: str, lease: Lease, *arguments: Argument, again: bool = False) -> Any:
        return await self._scripts.run(
            verb,
            keys.prefix(lease.queue),
            self._now(),
            lease.id,
            pack_fence(LEASED, lease.born, lease.attempt),
            *arguments,
            again=again,
        )

    async def cancel(
        self, queue: Queue, ids: Sequence[str], *, finished: bool = False
    ) -> Sequence[Moved | StoreUnavailable | None]:
        return await self._on_ids("cancel", queue, ids, ("1" if finished else "",), _read_cancelled)

    async def withdraw(
        self, queue: Queue, withdrawals: Sequence[Withdrawal]
    ) -> Sequence[Moved | StoreUnavailable | None]:
        arguments: list[Argument] = []
        for one in withdrawals:
            reason = 0 if one.reason is None else REASONS.index(one.reason)
            arguments += [one.id, one.born, one.due_at, reason, one.error]
        packed = await self._scripts.run("withdraw", keys.prefix(queue), self._now(), *arguments)
        return [_read_cancelled(one.id, moved) for one, moved in zip(withdrawals, packed, strict=True)]

    async def reschedule(
        self, queue: Queue, ids: Sequence[str], *, delay_ms: int = 0, due_at: int | None = None
    ) -> Sequence[Moved | JobRunning | JobDead | DuetimeError | None]:
        when = f"+{delay_ms}" if due_at is None else due_at
        return await self._on_ids("reschedule", queue, ids, (when,), _read_rescheduled)

    async def _on_ids(
        self,
        verb: str,
        queue: Queue,
        ids: Sequence[str],
        arguments: tuple[Argument, ...],
        read: Callable[[str, bytes | None], T],
    ) -> list[T | StoreUnavailable]:
        """Run a verb on ids, in as many steps as the bounds of a step require."""
        answers: list[T | StoreUnavailable] = []
        while len(answers) < len(ids):
            some = ids[len(answers) : len(answers) + STEP_JOBS]
            try:
                packed = await self._scripts.run(verb, keys.prefix(queue), self._now(), STEP_BYTES, *arguments, *some)
            except StoreUnavailable as error:
                if not answers:
                    raise
                return answers + [error] * (len(ids) - len(answers))  # the steps before it have happened
            answers += [read(name, answer) for name, answer in zip(some, packed, strict=False)]
        return answers

    async def reap(self, limit: int = 500, *, recorded: Sequence[str] = ()) -> Reaped:
        moved: dict[Queue, list[Moved]] = {}
        problems: list[DuetimeError] = []
        now, agenda = await self._agenda(1)
        for _ in range(REAP_ROUNDS):
            if limit <= 0 or problems or not agenda or agenda[0][0] > now:
                break
            try:
                now, agenda = await self._agenda(AGENDA_PAGE)
                due = [queue for at, queue in agenda if at <= now]
                while due and limit > 0:
                    wave, due = due[: min(REAP_WAVE, limit)], due[min(REAP_WAVE, limit) :]
                    limit -= await self._reap_wave(wave, limit // len(wave), moved, problems)
                now, agenda = await self._agenda(1)
            except StoreUnavailable as error:
                problems.append(error)
        if problems and not moved:
            raise problems[0]
        # The moved jobs must be reported, so the problem is not raised now. The next call is due at once and meets it.
        next_at = now if problems else agenda[0][0] if agenda else NEVER
        return Reaped(moved, None if next_at == NEVER else int(next_at), now)

    async def _agenda(self, count: int) -> tuple[int, list[tuple[float, Queue]]]:
        """The store's time, and the first queues of each partition by the time at which they need the reaper."""
        heads = [(key, ("ZRANGE", key, 0, count - 1, "WITHSCORES")) for key in keys.AGENDAS]
        time, *pages = checked(await self._link.many([(keys.AGENDAS[0], ("TIME",)), *heads]))
        now = self._clock.now_ms() if self._clock else int(time[0]) * 1000 + int(time[1]) // 1000
        entries = [
            (float(page[i + 1]), Queue.parse(page[i].decode())) for page in pages for i in range(0, len(page), 2)
        ]
        return now, sorted(entries)

    async def _reap_wave(
        self, queues: Sequence[Queue], limit: int, moved: dict[Queue, list[Moved]], problems: list[DuetimeError]
    ) -> int:
        """Reap queues in one round trip and return how many jobs moved. One bad queue does not hold up the others."""
        runs = [([keys.prefix(queue)], (self._now(), limit, STEP_BYTES)) for queue in queues]
        total = 0
        for queue, answer in zip(queues, await self._scripts.run_many("reap", runs, again=False), strict=True):
            if isinstance(answer, DuetimeError):
                problems.append(answer)
            elif happened := read_happened(queue, answer[2:]):
                moved.setdefault(queue, []).extend(happened)
                total += len(happened)
        return total

    async def wakeups(self) -> AsyncIterator[Wake]:
        async for message in self._link.subscribe(keys.WAKE):
            if message is None:
                yield Wake()
            else:
                name, _, news = message.decode().partition(" ")
                if news.startswith("r"):
                    yield Wake(Queue.parse(name), results=tuple(filter(None, news[1:].split("\n"))))
                else:
                    yield Wake(Queue.parse(name), int(news))


def _with_infos(deliveries: Iterable[list[Delivery]], infos: Iterable[bytes | None]) -> list[list[Delivery]]:
    left = iter(infos)
    return [[_with_info(delivery, next(left)) for delivery in some] for some in deliveries]


def _with_info(delivery: Delivery, info: bytes | None) -> Delivery:
    if info is None:
        return delivery
    error, attributes = read_info(info)
    return msgspec.structs.replace(delivery, error=error, attributes=attributes)


def _read_ack(lease: Lease, letter: int) -> Moved | LeaseLost | None:
    if letter == ord("a"):
        return Moved(Event.ACKED, lease.id, lease.born, lease.attempt)
    return _lease_lost(lease) if letter == ord("l") else None


def _held(lease: Lease, moved: bytes | None) -> Moved:
    if moved is None:
        raise _lease_lost(lease)
    return read_moved(lease.id, moved)


def _read_cancelled(job_id: str, moved: bytes | None) -> Moved | None:
    return None if moved is None else read_moved(job_id, moved)


def _read_rescheduled(job_id: str, answer: bytes | None) -> Moved | DuetimeError | None:
    match answer:
        case None:
            return None
        case b"r":
            return JobRunning.of(job_id)
        case b"d":
            return JobDead.of(job_id)
        case b"l":
            return ExpiresBeforeDue.of(job_id)
        case _:
            return read_moved(job_id, answer)


def _lease_lost(lease: Lease) -> LeaseLost:
    return LeaseLost.of(lease.id, lease.attempt)

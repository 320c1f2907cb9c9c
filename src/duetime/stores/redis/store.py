"""The Redis store.

Every step is one run of one Lua script, and so it is atomic; lua/modules/keys.lua describes the layout. Jobs go
in and come out as flat lists of bytes, which keeps a batch cheap on both sides.
"""

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from struct import Struct
from typing import Any, TypeVar, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import astuple
from redis.exceptions import OutOfMemoryError

from duetime.duties import Duty
from duetime.model.clock import MAX_INSTANT, Clock
from duetime.model.errors import (
    DuetimeError,
    ExpiresBeforeDue,
    JobDead,
    JobRunning,
    LeaseLost,
    StoreDamaged,
    StoreFull,
    StoreUnavailable,
)
from duetime.model.job import (
    DAY_MS,
    STEP_BYTES,
    STEP_JOBS,
    TOTAL_DAYS,
    Counts,
    Delivery,
    Job,
    Lease,
    Moved,
    QueueTotals,
    State,
    Totals,
    chunks,
    utc_date,
)
from duetime.model.names import Queue
from duetime.stores.base import (
    MAX_WAKE_RESULTS,
    Ask,
    Cursor,
    GiveBack,
    Page,
    Purged,
    Push,
    Pushed,
    QueueRules,
    Reaped,
    Reserved,
    RulesChange,
    StoreInfo,
    Wake,
    Withdrawal,
)
from duetime.stores.finishes import Finish, Finished, JoinCount, KeptResult, distinct_finishes, following_jobs
from duetime.stores.redis import keys, one_job, pushes, walk
from duetime.stores.redis.codec import (
    LEASED,
    REASONS,
    RECORD,
    TOTALS_BYTES,
    PackedEntry,
    pack_fence,
    pack_options,
    read_happened,
    read_info,
    read_job,
    read_moved,
    read_totals,
)
from duetime.stores.redis.connect import connect
from duetime.stores.redis.link import Link
from duetime.stores.redis.one_job import RedisOneJob
from duetime.stores.redis.pipe import Argument, pack_arguments
from duetime.stores.redis.pushes import Batch, read_refusal
from duetime.stores.redis.registry import RedisRegistry
from duetime.stores.redis.scripts import Scripts, checked, read_time

log = logging.getLogger("duetime.stores")

AGENDA_PAGE = 16
"""How many queues of each partition one round of reaping reads."""
REAP_WAVE = 32
"""How many queues are reaped in one round trip."""
REAP_ROUNDS = 8
NEVER = float("inf")
"""The time in the agenda of a queue that does not need the reaper."""

COUNTING_STEPS = 100_000
"""How often a count is repeated at most. No sweep needs as many steps; the bound only prevents an endless loop."""
SCAN_KEYS = 1000
_KEPT = Struct(">QQ")
"""The bytes before a result: kept_until and born."""

T = TypeVar("T")
R = TypeVar("R")


class RedisStore:
    """Keeps the contract of `stores.base.Store`."""

    duty: Duty | None = None

    def __init__(self, link: Link, clock: Clock | None, url: str = "") -> None:
        self._link, self._clock = link, clock
        self._scripts = Scripts(link)
        self._version = ""
        self.registry = RedisRegistry(link, self._scripts, clock)
        self.one_job = RedisOneJob(self, link, clock, url)
        self._backoff = self.one_job.backoff

    @classmethod
    async def open(cls, url: str, *, clock: Clock | None = None) -> "RedisStore":
        """Connect and draw the data set's epoch if it has none. A `clock` replaces Redis's own."""
        store = cls(connect(url), clock, url)
        try:
            await store.ping()
        except BaseException:
            await store.close()
            raise
        return store

    def _now(self) -> Argument:
        """The time as scripts take it: that of the given clock, or an empty text, and then they ask Redis."""
        return "" if self._clock is None else self._clock.now_ms()

    # --- the hot path

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        if len(requests) == 1 and (pushed := await self._push_one(queue, requests[0])):
            return [pushed]
        return await self._push_batches(queue, pushes.batches(requests))

    async def _push_one(self, queue: Queue, request: Push) -> Pushed | DuetimeError | None:
        """Push one plain job by a shorter script. Returns None if that script declined, and then nothing was done."""
        arguments = one_job.push_arguments(request)
        if arguments is None or self._backoff.has("push_one", queue):
            return None
        try:
            answer = await self._scripts.run("push_one", keys.prefix(queue), self._now(), *arguments)
        except StoreFull as full:
            return full
        if answer is None:
            self._backoff.add("push_one", queue)
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
            left = iter(infos)
            deliveries = [[_with_info(delivery, next(left)) for delivery in some] for some in deliveries]
        return Reserved(deliveries, next_at, now, read_happened(queue, expired))

    async def _reserve_one(self, queue: Queue, ask: Ask) -> Reserved | None:
        if self._backoff.has("reserve_one", queue):
            return None
        answer = await self._scripts.run("reserve_one", keys.prefix(queue), self._now(), ask.ttr_ms)
        if answer is None:
            self._backoff.add("reserve_one", queue)
            return None
        return one_job.read_reserved(queue, ask, answer)

    async def ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved | LeaseLost | StoreUnavailable | None]:
        if len(leases) != 1 or self._backoff.has("ack_one", queue):
            return await self._ack(queue, leases)
        try:
            moved = await self._ack_one(queue, leases[0])
        except StoreUnavailable as lost:
            if not lost.outcome_unknown:
                raise
            return await self.ack_general(leases[0], after_a_loss=True)
        return [moved] if moved else await self._ack(queue, leases)

    async def ack_general(
        self, lease: Lease, *, after_a_loss: bool
    ) -> Sequence[Moved | LeaseLost | StoreUnavailable | None]:
        """Finish a job by the general script. `after_a_loss`: the answer to an earlier ack of it was lost."""
        try:
            return await self._ack(lease.queue, [lease])
        except StoreUnavailable as error:
            raise (error.after_a_loss() if after_a_loss else error) from error

    async def _ack(
        self, queue: Queue, leases: Sequence[Lease]
    ) -> Sequence[Moved | LeaseLost | StoreUnavailable | None]:
        async def ack(some: Sequence[Lease]) -> list[Moved | LeaseLost | None]:
            ids = [lease.id for lease in some]
            fences = b"".join([pack_fence(LEASED, lease.born, lease.attempt) for lease in some])
            latest = max([lease.born for lease in some])
            letters = await self._scripts.run(
                "ack", keys.prefix(queue), self._now(), STEP_BYTES, latest, fences, *ids, again=True
            )
            return [_read_ack(lease, letter) for lease, letter in zip(some, letters, strict=True)]

        # No id occurs twice in a run, so that the second ack of a lease sees what the first did.
        return await _in_parts(chunks(leases, distinct=lambda lease: [lease.id]), len(leases), ack)

    async def _ack_one(self, queue: Queue, lease: Lease) -> Moved | None:
        arguments = one_job.ack_arguments(lease)
        if await self._scripts.run("ack_one", keys.prefix(queue), self._now(), *arguments):
            return lease.acked()
        self._backoff.add("ack_one", queue)
        return None

    async def finish(self, queue: Queue, finishes: Sequence[Finish]) -> Sequence[Finished | DuetimeError | None]:
        async def finish(some: Sequence[Finish]) -> list[Finished | DuetimeError | None]:
            arguments = [argument for one in some for argument in _arguments(one)]
            now, *found = await self._scripts.run(
                "finish", keys.prefix(queue), self._now(), STEP_BYTES, MAX_WAKE_RESULTS, *arguments, again=True
            )
            return [_read_finished(one, answer, now) for one, answer in zip(some, found, strict=True)]

        return await _in_parts(distinct_finishes(finishes), len(finishes), finish)

    async def results(self, queue: Queue, ids: Sequence[str]) -> Sequence[KeptResult | None]:
        if not ids:
            return []
        found = await self._scripts.run(
            "results", keys.prefix(queue), self._now(), STEP_BYTES, *ids[:STEP_JOBS], again=True
        )
        return [_read_kept(job_id, value) for job_id, value in zip(ids, found, strict=False)]

    async def joins(self, queue: Queue, *, after: str = "") -> Sequence[JoinCount]:
        prefix, cursor = keys.prefix(queue), b"0"
        found: set[str] = set()
        start = f"{prefix}:join:"
        while True:
            command = ("SCAN", cursor, "MATCH", f"{start}*", "COUNT", SCAN_KEYS)
            cursor, page = checked([await self._link.call(prefix, command, again=True)])[0]
            found |= {key.decode().removeprefix(start) for key in page}
            if cursor == b"0":
                break
        names: list[str] = sorted(name for name in found if name > after)
        counting: list[JoinCount] = []
        for at in range(0, len(names), STEP_JOBS):
            some = names[at : at + STEP_JOBS]
            flat = await self._scripts.run("joins", prefix, self._now(), *some, again=True)
            counting += [JoinCount(some[int(flat[i]) - 1], flat[i + 1], flat[i + 2]) for i in range(0, len(flat), 3)]
            if len(counting) >= STEP_JOBS:
                break
        return counting[:STEP_JOBS]

    async def raise_joins(self, queue: Queue, joins: Sequence[JoinCount]) -> None:
        arguments = [argument for one in joins for argument in (one.name, one.count, one.left_ms)]
        await self._scripts.run("raise_joins", keys.prefix(queue), self._now(), *arguments, again=True)

    async def release(self, lease: Lease, delay_ms: int, error: str = "") -> Moved:
        return _held(lease, await self._on_lease("release", lease, delay_ms, error))

    async def give_back(
        self, queue: Queue, give_backs: Sequence[GiveBack]
    ) -> Sequence[Moved | LeaseLost | StoreUnavailable]:
        async def give_back(some: Sequence[GiveBack]) -> list[Moved | LeaseLost]:
            arguments: list[Argument] = []
            for lease, delay_ms in [(one.lease, one.delay_ms) for one in some]:
                fence = pack_fence(LEASED, lease.born, lease.attempt)
                arguments += [lease.id, fence, "" if delay_ms is None else delay_ms]
            packed = await self._scripts.run("give_back", keys.prefix(queue), self._now(), *arguments)
            return [
                LeaseLost.of(one.lease) if moved is None else read_moved(one.lease.id, moved)
                for one, moved in zip(some, packed, strict=True)
            ]

        # No id occurs twice in a run: see `_ack`.
        return await _in_parts(chunks(give_backs, distinct=lambda one: [one.lease.id]), len(give_backs), give_back)

    async def kill(self, lease: Lease, error: str = "") -> Moved:
        return _held(lease, await self._on_lease("kill", lease, error))

    async def extend(self, lease: Lease, ttr_ms: int) -> int:
        lease_end = await self._on_lease("extend", lease, ttr_ms, again=True)
        if lease_end is None:
            raise LeaseLost.of(lease)
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
        # The moved jobs must be reported, so the problem is not raised. The next call is due immediately and meets it.
        next_at = now if problems else agenda[0][0] if agenda else NEVER
        return Reaped(moved, None if next_at == NEVER else int(next_at), now)

    async def _agenda(self, count: int) -> tuple[int, list[tuple[float, Queue]]]:
        """The store's time, and the first queues of each partition by the time at which they need the reaper. A name
        that cannot be read is moved to the end, where it hides no queue.
        """
        heads = [(key, ("ZRANGE", key, 0, count - 1, "WITHSCORES")) for key in keys.AGENDAS]
        time, *pages = checked(await self._link.many([(keys.AGENDAS[0], ("TIME",)), *heads]))
        now = read_time(time, self._clock)
        entries: list[tuple[float, Queue]] = []
        for key, page in zip(keys.AGENDAS, pages, strict=True):
            for name, at in zip(page[::2], map(float, page[1::2]), strict=True):
                try:
                    entries.append((at, _read_queue(name)))
                except StoreDamaged as error:
                    if at < NEVER:
                        log.error("reaper_skips_queue", extra={"queue": repr(name), "error": error.message})
                        checked([await self._link.call(key, ("ZADD", key, "XX", "+inf", name), again=True)])
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
            if (wake := Wake() if message is None else _read_wake(message)) is not None:
                yield wake

    # --- reading and administering

    async def heads(self, queues: Sequence[Queue], *, waiting: bool = False) -> Sequence[int | None]:
        by_partition: dict[str, list[int]] = {}
        prefixes = [keys.prefix(queue) for queue in queues]
        for index, prefix in enumerate(prefixes):
            by_partition.setdefault(prefix[:7], []).append(index)
        groups = list(by_partition.values())
        runs = [([prefixes[index] for index in group], ()) for group in groups]
        answers = checked(await self._scripts.run_many("heads", runs))
        heads: list[int | None] = [None] * len(queues)
        for group, answer in zip(groups, answers, strict=True):
            for index, head in zip(group, answer, strict=True):
                heads[index] = head
        return heads

    async def get(self, queue: Queue, ids: Sequence[str]) -> Sequence[Job | None]:
        if not ids:
            return []
        now, *entries = await self._scripts.run(
            "get", keys.prefix(queue), self._now(), STEP_BYTES, *ids[:STEP_JOBS], again=True
        )
        found = zip(ids, entries, strict=False)
        return [None if entry is None else read_job(queue, name, PackedEntry(*entry), now) for name, entry in found]

    async def list_jobs(self, queue: Queue, state: State, *, cursor: str | None = None, limit: int = 100) -> Page:
        place = ("", "", "") if cursor is None else Cursor.parse(cursor)
        limit = min(limit, STEP_JOBS)
        arguments = (STEP_BYTES, state, limit, limit + STEP_JOBS, *place)
        now, more, priority, at, last, *flat = await self._scripts.run(
            "list", keys.prefix(queue), self._now(), *arguments, again=True
        )
        jobs = [
            read_job(queue, flat[i].decode(), PackedEntry(*flat[i + 1 : i + 5]), now) for i in range(0, len(flat), 5)
        ]
        return Page(jobs, f"{priority}:{at.decode()}:{last.decode()}" if more else None)

    async def counts(self, queues: Sequence[Queue]) -> Sequence[Counts]:
        counted: list[Counts] = [Counts()] * len(queues)
        left = list(range(len(queues)))
        for _ in range(COUNTING_STEPS):
            runs = [([keys.prefix(queues[i])], (self._now(), STEP_JOBS, STEP_BYTES)) for i in left]
            answers = checked(await self._scripts.run_many("counts", runs))
            behind: list[int] = []
            for index, answer in zip(left, answers, strict=True):
                if len(answer) == 1:
                    behind.append(index)
                else:
                    now, delayed, ready, leased, dead, expired, damaged = answer
                    counted[index] = Counts(delayed, ready, leased, dead, expired, now, damaged)
            left = behind
            if not left:
                return counted
        raise StoreUnavailable(f"the jobs of {queues[left[0]]} that became due are too many to be counted")

    async def totals(self, queues: Sequence[Queue]) -> Sequence[QueueTotals]:
        runs = [([keys.prefix(queue)], (self._now(),)) for queue in queues]
        return [_read_totals(*answer) for answer in checked(await self._scripts.run_many("totals", runs))]

    async def queues(self, namespace: str | None = None) -> Sequence[Queue]:
        members = checked(await self._link.many([(key, ("ZRANGE", key, 0, -1)) for key in keys.AGENDAS]))
        known = (_read_queue(name) for names in members for name in names)
        return sorted(queue for queue in known if namespace in (None, queue.namespace))

    async def due_histogram(self, queue: Queue, edges: Sequence[int]) -> Sequence[int]:
        below = await self._scripts.run("histogram", keys.prefix(queue), *edges, again=True)
        return [high - low for low, high in pairwise(below)]

    async def respawn(
        self,
        queue: Queue,
        *,
        ids: Sequence[str] | None = None,
        limit: int = 1,
        ttl_ms: int = 0,
        tries: int | None = None,
    ) -> Sequence[Moved]:
        count = min(limit, STEP_JOBS) if ids is None else ""
        if count == 0:
            return []
        chosen = ids[:STEP_JOBS] if ids is not None else ()
        arguments = (ttl_ms, "" if tries is None else tries, count, *chosen)
        answer = await self._scripts.run("respawn", keys.prefix(queue), self._now(), *arguments)
        return read_happened(queue, answer)

    async def purge(self, queue: Queue, states: Sequence[State], *, limit: int | None = None) -> Purged:
        everything = limit is None and set(states) == set(State)
        step = "" if everything else STEP_JOBS if limit is None else min(limit, STEP_JOBS)
        wanted = "" if limit is None else limit
        now, removed, more = await self._scripts.run(
            "purge", keys.prefix(queue), self._now(), step, wanted, STEP_JOBS, *states
        )
        return Purged(removed, now, more=bool(more))

    async def configure(self, queue: Queue, change: RulesChange | None = None) -> QueueRules:
        wanted = ["" if value is UNSET else int(value) for value in astuple(change or RulesChange())]
        paused, strict, expired_to_dead, max_jobs, max_body, kept, offline = await self._scripts.run(
            "configure", keys.prefix(queue), "0" if change is None else "1", *wanted, again=True
        )
        flags = bool(paused), bool(strict), bool(expired_to_dead)
        return QueueRules(*flags, max_jobs, max_body, bool(kept), bool(offline))

    async def ping(self) -> StoreInfo:
        commands = ("TIME",), ("SET", keys.EPOCH, secrets.token_hex(8), "NX"), ("GET", keys.EPOCH)
        commands = *commands, ("INFO", "memory"), ("INFO", "persistence")
        answers = await self._link.many([(keys.EPOCH, command) for command in commands])
        if isinstance(answers[1], OutOfMemoryError) and answers[2]:
            answers[1] = None  # a full Redis refuses SET before it checks NX; the epoch is there, so all is well
        time, _, epoch, memory, persistence = checked(answers)
        if not self._version:
            server = checked([await self._link.call(keys.EPOCH, ("INFO", "server"), again=True)])[0]
            self._version = _info(server).get("redis_version", "")
        now = read_time(time, self._clock)
        used, limit = (int(_info(memory).get(name, 0)) for name in ("used_memory", "maxmemory"))
        kept_by = _persistence(_info(persistence))
        return StoreInfo("redis", self._version, epoch.decode(), now, used, limit, persistence=kept_by)

    async def check(self) -> Sequence[str]:
        problems: list[str] = []
        for queue in await self.queues():
            [counts], [totals] = await self.counts([queue]), await self.totals([queue])
            problems += await walk.check_queue(self._link, queue, counts, totals.running)
        return problems

    async def close(self) -> None:
        await self._link.close()


def _read_queue(member: bytes) -> Queue:
    """The queue that a member of an agenda names. Raises StoreDamaged if no queue has this name."""
    try:
        queue = Queue.parse(member.decode())
    except UnicodeDecodeError:
        queue = Queue("", "")
    if not queue.name:
        raise StoreDamaged(f"the agenda of the queue {member!r} cannot be read: no queue has this name")
    return queue


def _read_wake(message: bytes) -> Wake | None:
    """Returns None for a message of another program: any user of this Redis may publish on the channel."""
    try:
        name, _, text = message.decode().partition(" ")
        if text.startswith("r"):
            return Wake(Queue.parse(name), results=tuple(filter(None, text[1:].split("\n"))))
        due_at = int(text)
    except ValueError:
        return None
    return Wake(Queue.parse(name), due_at) if 0 <= due_at <= MAX_INSTANT else None


async def _in_parts(
    parts: Iterable[Sequence[T]], total: int, run: Callable[[Sequence[T]], Awaitable[list[R]]]
) -> list[R | StoreUnavailable]:
    """The answers to requests that are sent part by part. A part that fails is the answer to all that are left, because
    the parts before it have happened. Raises StoreUnavailable if it is the first.
    """
    answers: list[R | StoreUnavailable] = []
    for part in parts:
        try:
            answers += await run(part)
        except StoreUnavailable as error:
            if not answers:
                raise
            return answers + [error] * (total - len(answers))
    return answers


def _with_info(delivery: Delivery, info: bytes | None) -> Delivery:
    if info is None:
        return delivery
    error, attributes = read_info(info)
    return msgspec.structs.replace(delivery, error=error, attributes=attributes)


def _read_ack(lease: Lease, letter: int) -> Moved | LeaseLost | None:
    if letter == ord("a"):
        return lease.acked()
    return LeaseLost.of(lease) if letter == ord("l") else None


def _held(lease: Lease, moved: bytes | None) -> Moved:
    if moved is None:
        raise LeaseLost.of(lease)
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


def _arguments(one: Finish) -> Iterator[Argument]:
    lease = one.lease
    yield lease.id
    yield pack_fence(LEASED, lease.born, lease.attempt)
    yield one.result or b""
    yield one.result_ttl_ms if one.keeps_result else 0
    join = one.join
    yield from (join.name, join.of, join.life_ms, len(join.then)) if join else ("", 0, 0, 0)
    yield len(one.then)
    for job in one.may_follow:
        yield job.id
        yield pack_options(job)
        yield f"+{job.delay_ms}" if job.due_at is None else job.due_at
        yield job.body


def _read_finished(one: Finish, answer: Any, now: int) -> Finished | DuetimeError | None:
    lease = one.lease
    if isinstance(answer, list):
        joined, *moves = cast("list[Any]", answer)
        then = [read_moved(job.id, moved) for job, moved in zip(following_jobs(one, joined), moves, strict=True)]
        return Finished(lease.acked(), then, now, joined)
    text = answer.decode()
    if text == "g":
        return None
    if text == "l":
        return LeaseLost.of(lease)
    return read_refusal(one.may_follow, None, text)


def _read_kept(job_id: str, value: bytes | None) -> KeptResult | None:
    if value is None:
        return None
    kept_until, born = _KEPT.unpack_from(value)
    return KeptResult(job_id, born, value[_KEPT.size :], kept_until)


def _read_totals(now: int, flat: Sequence[bytes]) -> QueueTotals:
    found = {
        int(day): read_totals(packed)
        for day, packed in zip(flat[::2], flat[1::2], strict=True)
        if day.isdigit() and len(packed) == TOTALS_BYTES
    }
    first = now // DAY_MS - TOTAL_DAYS + 1
    days = {utc_date(day): Totals(*numbers) for day, numbers in sorted(found.items()) if day >= first}
    return QueueTotals(Totals(*map(sum, zip(*found.values(), strict=True))), days)


def _persistence(info: Mapping[str, str]) -> str:
    """Persistence by INFO. Only CONFIG, which many servers forbid, knows how often snapshots are made."""
    if info.get("aof_enabled") != "1":
        return "snapshots at most, no append-only file"
    failed = info.get("aof_last_write_status", "ok") != "ok"
    return "append-only file, which cannot be written" if failed else "append-only file"


def _info(answer: Any) -> dict[str, str]:
    return dict(line.partition(":")[::2] for line in answer.decode().splitlines())

"""The part of the Redis store that looks and administers: what consoles, tools and tests call, off the hot path."""

import secrets
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec import UNSET
from msgspec.structs import astuple
from redis.exceptions import OutOfMemoryError

from duetime.model.clock import Clock
from duetime.model.errors import StoreUnavailable
from duetime.model.job import (
    DAY_MS,
    STEP_BYTES,
    STEP_JOBS,
    TOTAL_DAYS,
    Counts,
    Job,
    Moved,
    QueueTotals,
    State,
    Totals,
    utc_date,
)
from duetime.model.names import Queue
from duetime.stores.base import Page, Purged, QueueRules, RulesChange, StoreInfo
from duetime.stores.redis import keys, walk
from duetime.stores.redis.codec import TOTALS_BYTES, PackedEntry, read_job, read_totals
from duetime.stores.redis.damage import read_happened
from duetime.stores.redis.link import Link
from duetime.stores.redis.pipe import Argument
from duetime.stores.redis.registry import RedisRegistry
from duetime.stores.redis.scripts import Scripts, checked

COUNTING_STEPS = 100_000
"""How often a count is repeated at most. No sweep needs as many steps; the bound only prevents an endless loop."""


class RedisReads:
    """The part of the contract under "looking and administering"."""

    def __init__(self, link: Link, clock: Clock | None) -> None:
        self._link, self._clock = link, clock
        self._scripts = Scripts(link)
        self._version = ""
        self.registry = RedisRegistry(link, self._scripts, clock)

    def _now(self) -> Argument:
        """The time as scripts take it: that of the given clock, or an empty text, and then they ask Redis."""
        return "" if self._clock is None else self._clock.now_ms()

    async def heads(self, queues: Sequence[Queue]) -> Sequence[int | None]:
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
        place = cursor.split(":", 2) if cursor else ("", "", "")
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
        known = (Queue.parse(name.decode()) for names in members for name in names)
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
            answers[1] = None  # a full Redis refuses SET before it looks at NX; the epoch is there, so all is well
        time, _, epoch, memory, persistence = checked(answers)
        if not self._version:
            server = checked([await self._link.call(keys.EPOCH, ("INFO", "server"), again=True)])[0]
            self._version = _info(server).get("redis_version", "")
        now = self._clock.now_ms() if self._clock else int(time[0]) * 1000 + int(time[1]) // 1000
        used, limit = (int(_info(memory).get(name, 0)) for name in ("used_memory", "maxmemory"))
        said = _persistence(_info(persistence))
        return StoreInfo("redis", self._version, epoch.decode(), now, used, limit, persistence=said)

    async def check(self) -> Sequence[str]:
        problems: list[str] = []
        for queue in await self.queues():
            [counts], [totals] = await self.counts([queue]), await self.totals([queue])
            problems += await walk.check_queue(self._link, queue, counts, totals.running)
        return problems

    async def close(self) -> None:
        await self._link.close()


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
    """What INFO tells; how often snapshots are made is known to CONFIG alone, which many servers forbid."""
    if info.get("aof_enabled") != "1":
        return "snapshots at most, no append-only file"
    failed = info.get("aof_last_write_status", "ok") != "ok"
    return "append-only file, which cannot be written" if failed else "append-only file"


def _info(answer: Any) -> dict[str, str]:
    return dict(line.partition(":")[::2] for line in answer.decode().splitlines())

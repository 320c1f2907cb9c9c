"""Finishing jobs on Redis with what follows from it: new jobs, and results that are kept for a while."""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, cast

from duetime.model.errors import DuetimeError, LeaseLost, StoreUnavailable
from duetime.model.job import STEP_BYTES, STEP_JOBS, Event, Moved
from duetime.model.names import Queue
from duetime.stores.base import MAX_WAKE_RESULTS
from duetime.stores.finishes import Finish, Finished, JoinCount, KeptResult, distinct_finishes, following_jobs
from duetime.stores.redis import keys
from duetime.stores.redis.codec import LEASED, pack_fence, pack_options, read_moved
from duetime.stores.redis.pipe import Argument
from duetime.stores.redis.pushes import read_refusal
from duetime.stores.redis.reads import RedisReads
from duetime.stores.redis.scripts import checked

SCAN_KEYS = 1000
_KEPT = Struct(">QQ")
"""What stands before a result: kept_until and born."""


class RedisFinishing(RedisReads):
    """The part of the contract that is about `Finish`."""

    async def finish(self, queue: Queue, finishes: Sequence[Finish]) -> Sequence[Finished | DuetimeError | None]:
        answers: list[Finished | DuetimeError | None] = []
        for some in distinct_finishes(finishes):
            arguments = [argument for one in some for argument in _arguments(one)]
            try:
                now, *found = await self._scripts.run(
                    "finish", keys.prefix(queue), self._now(), STEP_BYTES, MAX_WAKE_RESULTS, *arguments, again=True
                )
            except StoreUnavailable as error:
                if not answers:
                    raise
                return answers + [error] * (len(finishes) - len(answers))  # those before it have happened
            answers += [_read_finished(one, answer, now) for one, answer in zip(some, found, strict=True)]
        return answers

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


def _arguments(one: Finish) -> Iterator[Argument]:
    lease = one.lease
    yield lease.id
    yield pack_fence(LEASED, lease.born, lease.attempt)
    yield one.result or b""
    yield one.result_ttl_ms if one.keeps_result else 0
    join = one.join
    yield from (join.name, join.of, join.life_ms, len(join.then)) if join else ("", 0, 0, 0)
    yield len(one.then)
    for job in [*one.then, *join.then] if join else one.then:
        yield job.id
        yield pack_options(job)
        yield f"+{job.delay_ms}" if job.due_at is None else job.due_at
        yield job.body


def _read_finished(one: Finish, answer: Any, now: int) -> Finished | DuetimeError | None:
    lease = one.lease
    if isinstance(answer, list):
        joined, *moves = cast("list[Any]", answer)
        then = [read_moved(job.id, moved) for job, moved in zip(following_jobs(one, joined), moves, strict=True)]
        return Finished(Moved(Event.ACKED, lease.id, lease.born, lease.attempt), then, now, joined)
    text = answer.decode()
    if text == "g":
        return None
    if text == "l":
        return LeaseLost.of(lease.id, lease.attempt)
    return read_refusal([*one.then, *(one.join.then if one.join else ())], None, text)


def _read_kept(job_id: str, value: bytes | None) -> KeptResult | None:
    if value is None:
        return None
    kept_until, born = _KEPT.unpack_from(value)
    return KeptResult(job_id, born, value[_KEPT.size :], kept_until)

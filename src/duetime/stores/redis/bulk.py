"""Loads columns into Redis: Arrow kernels build the bytes of whole requests, so that Python does little per job.

A step is one run of lua/push.lua with one group of jobs, so it does what any push does. Two arrays are made of the
columns, one of pairs of due_at and id and one of bodies. Each element is already encoded in Redis's protocol, so that a
step's request is a head of a few bytes and two slices. Several requests are on their way at a time.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute as pc  # pyright: ignore[reportMissingTypeStubs]

from duetime.model.errors import DuetimeError
from duetime.model.job import STEP_BYTES, Event, Moved
from duetime.model.names import Queue
from duetime.stores.base import Pushed, StoreInfo
from duetime.stores.bulk import Failed, JobColumns, Loaded, LoadStep, LostColumns, Pace, PlainBulk
from duetime.stores.redis.codec import BRIEF, HOW, read_marked, read_moved
from duetime.stores.redis.pipe import Command, pack
from duetime.stores.redis.store import RedisStore, read_refusal
from duetime.stores.repair_mark import REPAIR_LIFE_MS

UNDER_WAY = 2
"""Requests that are sent and not answered: enough to keep Redis busy, few enough not to hold up live traffic."""

_bulk: Any = pc
_arrow: Any = pa


class RedisBulk:
    """Keeps the contract of `stores.bulk.Bulk`."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    async def load(
        self, queue: Queue, columns: JobColumns, steps: Sequence[LoadStep], *, pace: Pace | None = None
    ) -> AsyncIterator[Loaded | Failed]:
        if columns.attributes is not None:
            async for answer in PlainBulk(self._store).load(queue, columns, steps, pace=pace):
                yield answer
            return
        encoded = Encoded(columns)
        waiting: list[asyncio.Task[Loaded | Failed]] = []
        try:
            for step in steps:
                if pace:
                    await pace(step.last - step.first)
                if len(waiting) == UNDER_WAY:
                    yield await waiting.pop(0)
                waiting.append(asyncio.create_task(self._send(queue, encoded, step)))
                await asyncio.sleep(0)  # the request is on its way before the next one is built
            while waiting:
                yield await waiting.pop(0)
        finally:
            for task in waiting:
                task.cancel()

    def _send(self, queue: Queue, encoded: "Encoded", step: LoadStep) -> Coroutine[Any, Any, Loaded | Failed]:
        async def send() -> Loaded | Failed:
            rest, count = encoded.request(step)
            try:
                now, answer = await self._store.push_packed(queue, rest, count)
            except DuetimeError as error:
                return Failed(step, error)
            return _read(encoded, step, answer, now)

        return send()

    async def put_back(self, queue: Queue, jobs: LostColumns) -> int | Sequence[Pushed | DuetimeError]:
        rest, count = _put_back_request(jobs)
        now, answer = await self._store.push_packed(queue, rest, count)
        return now if answer == 0 else await PlainBulk(self._store).put_back(queue, jobs)

    async def ping(self) -> StoreInfo:
        return await self._store.ping()

    async def close(self) -> None:
        await self._store.close()


class Encoded:
    """Columns that are encoded in Redis's protocol."""

    def __init__(self, columns: JobColumns) -> None:
        self.columns = columns
        self._times = columns.due_at.to_numpy()
        self._pairs, self._pair_ends = _places(columns.due_at, columns.ids)
        self._bodies, self._body_ends = _encoded(columns.bodies)
        self._how = HOW.pack(columns.ttl_ms, columns.tries, columns.priority, 0, 0)

    def request(self, step: LoadStep) -> tuple[bytes, int]:
        """All that follows the keys and the time in push.lua's arguments, and how many arguments that is."""
        first, last, mark, distinct = step
        size, times = last - first, self._times[first:last]
        kind = "K" if mark and mark.brief else "k"
        marked = (mark.name, mark.digest, mark.life_ms) if mark else ("", "", "")
        head = (
            STEP_BYTES,
            "1" if distinct else "",
            1,
            kind,
            *marked,
            1,
            self._how,
            size,
            "",
            int(times.min()),
            int(times.max()),
        )
        parts = (
            _arguments(head),
            self._pairs[self._pair_ends[first] : self._pair_ends[last]],
            self._bodies[self._body_ends[first] : self._body_ends[last]],
        )
        return b"".join(parts), len(head) + 3 * size


def _put_back_request(jobs: LostColumns) -> tuple[bytes, int]:
    """As `Encoded.request`, for jobs with a born of their own: neighbours that share all other options are a group."""
    (places, place_ends), (bodies, body_ends) = _places(jobs.due_at, jobs.ids, jobs.born), _encoded(jobs.bodies)
    times, runs = jobs.due_at.to_numpy(), list(jobs.runs())
    distinct = _bulk.count_distinct(jobs.ids).as_py() == len(times)
    head = (STEP_BYTES, "1" if distinct else "", 1, "P", "", "", REPAIR_LIFE_MS, len(runs))
    parts: list[bytes | memoryview] = [_arguments(head)]
    count = len(head)
    for first, last, options in runs:
        span = times[first:last]
        group = (HOW.pack(*options, 0), last - first, "b", int(span.min()), int(span.max()))
        parts += (
            _arguments(group),
            places[place_ends[first] : place_ends[last]],
            bodies[body_ends[first] : body_ends[last]],
        )
        count += len(group) + 4 * (last - first)
    return b"".join(parts), count


def _arguments(values: Command) -> bytes:
    """The values in Redis's protocol, without the head of a command."""
    packed = pack(values)
    return packed[packed.index(b"$") :]


def _places(due_at: Any, names: Any, *more: Any) -> tuple[memoryview, Any]:
    """For each job: due_at, id, and what else is given."""
    parts: list[Any] = []
    for column in (due_at, names, *more):
        text = column.cast(_arrow.string())
        parts += ("$", _bulk.binary_length(text).cast(_arrow.string()), "\r\n", text, "\r\n")
    return _pieces(_join(*parts, ""))


def _encoded(values: Any) -> tuple[memoryview, Any]:
    length = _bulk.binary_length(values).cast(_arrow.string()).cast(_arrow.binary())
    return _pieces(_join(b"$", length, b"\r\n", values, b"\r\n", b""))


def _join(*parts: Any) -> Any:
    return _bulk.binary_join_element_wise(
        *[_arrow.scalar(one) if isinstance(one, bytes | str) else one for one in parts]
    )


def _pieces(values: Any) -> tuple[memoryview, Any]:
    """The bytes of all values one after the other, and the offset at which each begins; nothing is copied."""
    _, offsets, data = values.buffers()
    starts = _arrow.Array.from_buffers(_arrow.int32(), len(values) + 1, [None, offsets], offset=values.offset)
    return memoryview(data), starts.to_numpy()


def _read(encoded: Encoded, step: LoadStep, answer: Any, now: int) -> Loaded | Failed:
    match answer:
        case int():
            return Loaded(step, now, answer)
        case bytes():
            # Only a refusal needs rows as objects, to say what is wrong with one of them.
            jobs = encoded.columns.jobs(step.first, step.last)
            return Failed(step, read_refusal(jobs, step.mark, answer.decode()))
        case [b"repeated", packed] if len(packed) == BRIEF.size:
            born, at = BRIEF.unpack(packed)
            return Loaded(step, at, born, repeated=True)
        case [b"repeated", packed]:
            moved: Sequence[Moved] = list(read_marked(packed))
            return Loaded(step, _time_of(moved, now), 0, moved, repeated=True)
        case _:
            ids = encoded.columns.ids.slice(step.first, step.last - step.first).to_pylist()
            return Loaded(step, now, 0, [read_moved(name, one) for name, one in zip(ids, answer, strict=True)])


def _time_of(moved: Sequence[Moved], now: int) -> int:
    """The time of a push that is known only by its full mark: the earliest born of the jobs that it accepted."""
    return min([one.born for one in moved if one.event is Event.ACCEPTED], default=now)

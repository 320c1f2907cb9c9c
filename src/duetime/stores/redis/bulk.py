"""Loads columns into Redis: Arrow kernels build the bytes of whole requests, so that Python does little per job.

A step is one run of lua/push.lua with one group of jobs, so it does what any push does. Lost jobs are put back by
lua/put_back.lua. Two arrays are made of the columns, one of due_at and id (and born) and one of bodies. Each element is
already encoded in Redis's protocol, so that a group is a head of a few bytes and two slices.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute as pc  # pyright: ignore[reportMissingTypeStubs]

from duetime.model.errors import DuetimeError
from duetime.model.job import STEP_BYTES, Event, Moved
from duetime.model.names import Queue
from duetime.stores.base import REPAIR_LIFE_MS, Pushed
from duetime.stores.bulk import Failed, JobColumns, Loaded, LoadStep, LostColumns, Pace, PlainBulk
from duetime.stores.redis.codec import BRIEF, OPTIONS, read_marked, read_moved
from duetime.stores.redis.pipe import pack_arguments
from duetime.stores.redis.pushes import mark_arguments, read_put_back, read_refusal
from duetime.stores.redis.store import RedisStore

UNDER_WAY = 2
"""Requests that are sent and not answered: enough to keep Redis busy, few enough not to hold up live traffic."""

_bulk: Any = pc
_arrow: Any = pa


class RedisBulk(PlainBulk):
    """Keeps the contract of `stores.bulk.Bulk`."""

    def __init__(self, store: RedisStore) -> None:
        super().__init__(store)
        self._redis = store

    async def load(
        self, queue: Queue, columns: JobColumns, steps: Sequence[LoadStep], *, pace: Pace | None = None
    ) -> AsyncIterator[Loaded | Failed]:
        if columns.attributes is not None:
            async for answer in super().load(queue, columns, steps, pace=pace):
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

    async def _send(self, queue: Queue, encoded: "Encoded", step: LoadStep) -> Loaded | Failed:
        try:
            now, answer = await self._redis.run_packed("push", queue, *encoded.request(step))
        except DuetimeError as error:
            return Failed(step, error)
        return _read(encoded, step, answer, now)

    async def put_back(self, queue: Queue, jobs: LostColumns) -> int | Sequence[Pushed | DuetimeError]:
        if _bulk.count_distinct(jobs.ids).as_py() < len(jobs.ids):
            return await super().put_back(queue, jobs)
        answer = await self._redis.run_packed("put_back", queue, *_put_back_request(jobs))
        return answer[0] if len(answer) == 1 else read_put_back(jobs.jobs(), answer)


class Encoded:
    """Columns that are encoded in Redis's protocol."""

    def __init__(self, columns: JobColumns) -> None:
        self.columns = columns
        self._groups = Groups(columns.due_at, columns.ids, bodies=columns.bodies)
        self._options = OPTIONS.pack(columns.ttl_ms, columns.tries, columns.priority, 0, 0)

    def request(self, step: LoadStep) -> tuple[bytes, int]:
        """What lua/push.lua takes after now, packed, and how many arguments that is."""
        mark = mark_arguments(step.mark, step.if_exists)
        head = (STEP_BYTES, "1" if step.distinct else "", 1, step.if_exists.value, *mark, 1)
        parts, count = self._groups.arguments(self._options, step.first, step.last)
        return b"".join((pack_arguments(head), *parts)), len(head) + count


def _put_back_request(jobs: LostColumns) -> tuple[bytes, int]:
    """What lua/put_back.lua takes after now, packed, and how many arguments that is."""
    groups = Groups(jobs.due_at, jobs.ids, jobs.born, bodies=jobs.bodies)
    packed, total = [pack_arguments((STEP_BYTES, REPAIR_LIFE_MS))], 2
    for first, last, options in jobs.runs():
        parts, count = groups.arguments(OPTIONS.pack(*options, 0), first, last)
        packed += parts
        total += count
    return b"".join(packed), total


class Groups:
    """Jobs as `q.read_group` of lua/modules/add.lua reads them. `columns` are due_at, id and, for lost jobs, born."""

    def __init__(self, *columns: Any, bodies: Any) -> None:
        self._times, self._width = columns[0].to_numpy(), len(columns) + 1
        texts = [column.cast(_arrow.string()) for column in columns]
        parts = [part for text in texts for part in ("\r\n$", _length(text), "\r\n", text)]
        self._places, self._place_ends = _pieces(_join(*parts, ""))
        self._bodies, self._body_ends = _pieces(
            _join(b"\r\n$", _length(bodies).cast(_arrow.binary()), b"\r\n", bodies, b"")
        )

    def arguments(self, options: bytes, first: int, last: int) -> tuple[list[Any], int]:
        """Rows first to last - 1 as one group of these options: pieces of packed arguments, and how many these are."""
        span = self._times[first:last]
        head = (options, last - first, "", int(span.min()), int(span.max()))
        places = self._places[self._place_ends[first] : self._place_ends[last]]
        bodies = self._bodies[self._body_ends[first] : self._body_ends[last]]
        return [pack_arguments(head), places, bodies], len(head) + self._width * (last - first)


def _length(values: Any) -> Any:
    return _bulk.binary_length(values).cast(_arrow.string())


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
            # The time of a push that is known only by its full mark: the earliest born of the jobs that it accepted.
            at = min([one.born for one in moved if one.event is Event.ACCEPTED], default=now)
            return Loaded(step, at, 0, moved, repeated=True)
        case _:
            ids = encoded.columns.ids.slice(step.first, step.last - step.first).to_pylist()
            return Loaded(step, now, 0, [read_moved(name, one) for name, one in zip(ids, answer, strict=True)])

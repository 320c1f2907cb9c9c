"""Loading jobs by columns: how a table with millions of rows gets into a store.

Ids, bodies and times come as Arrow arrays. The Redis loader builds its requests from these arrays without making a
Python object per row; other stores get ordinary pushes. Each step is one `Push` in all its effects: atomic, at most
STEP_JOBS jobs, idempotent by its ids (with if_exists=keep) and, with a mark, done once for as long as the mark lives.
`open.open_bulk(url)` returns the loader of a store.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from msgspec import json, structs

from duetime.model.errors import DuetimeError
from duetime.model.job import Event, IfExists, Moved, NewJob, Priority
from duetime.model.names import Queue
from duetime.stores.base import Mark, Push, Pushed, Store, StoreInfo, repair_mark

Pace = Callable[[int], Awaitable[None]]
"""Called with a number of jobs before they are sent; returns when they may go."""


class Pacer:
    """Limits the jobs per second; unused capacity is not saved for later."""

    def __init__(self, jobs_per_second: float) -> None:
        self._rate = jobs_per_second
        self._free_at = 0.0

    async def wait(self, jobs: int) -> None:
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now)
        pause = self._free_at - now
        self._free_at += jobs / self._rate
        if pause > 0:
            await asyncio.sleep(pause)


class JobColumns(NamedTuple):
    """Jobs that share their options: Arrow arrays (string, binary, int64) of one length, without nulls.

    `attributes` is an array of JSON objects (string, with nulls), or None if no job has any; it makes the load slower.
    """

    ids: Any
    bodies: Any
    due_at: Any
    ttl_ms: int
    tries: int
    priority: Priority
    attributes: Any = None

    def jobs(self, first: int, last: int) -> list[NewJob]:
        """Rows first to last - 1 as objects, for stores that want them."""
        size = last - first
        columns = (column.slice(first, size).to_pylist() for column in (self.ids, self.bodies, self.due_at))
        jobs = [
            NewJob(job_id, body, due_at=due_at, ttl_ms=self.ttl_ms, tries=self.tries, priority=self.priority)
            for job_id, body, due_at in zip(*columns, strict=True)
        ]
        if self.attributes is None:
            return jobs
        texts: list[str | None] = self.attributes.slice(first, size).to_pylist()
        return [
            structs.replace(job, attributes=json.decode(text, type=dict[str, str])) if text else job
            for job, text in zip(jobs, texts, strict=True)
        ]


class LostColumns(NamedTuple):
    """Jobs that a store has lost and gets back under their old born: Arrow arrays of one length, without nulls."""

    ids: Any
    bodies: Any
    due_at: Any
    ttl_ms: Any
    tries: Any
    priority: Any
    attempt: Any
    born: Any

    def runs(self) -> Iterator[tuple[int, int, list[int]]]:
        """Neighbours that differ in id, body, due_at and born only: the first one's row, the row after the last one,
        and their ttl_ms, tries, priority and attempt.
        """
        options: list[Any] = [column.to_numpy() for column in (self.ttl_ms, self.tries, self.priority, self.attempt)]
        differs: Any = sum(column[1:] != column[:-1] for column in options)
        for first, last in pairwise([0, *(differs.nonzero()[0] + 1).tolist(), len(self.ids)]):
            yield first, last, [int(column[first]) for column in options]

    def jobs(self) -> list[NewJob]:
        """The rows as objects, for stores that want them."""
        return [
            NewJob(job_id, body, due_at=due_at, ttl_ms=ttl_ms, tries=tries, priority=Priority(priority), **rest)
            for job_id, body, due_at, ttl_ms, tries, priority, rest in zip(
                *(column.to_pylist() for column in self[:6]),
                (
                    {"attempt": attempt, "born": born}
                    for attempt, born in zip(self.attempt.to_pylist(), self.born.to_pylist(), strict=True)
                ),
                strict=True,
            )
        ]


class LoadStep(NamedTuple):
    """Rows `first` to `last` - 1 of the columns, pushed in one request. `distinct`: no id occurs twice among them."""

    first: int
    last: int
    mark: Mark | None = None
    distinct: bool = True
    if_exists: IfExists = IfExists.KEEP


class Loaded(NamedTuple):
    """What became of a step, in this call or (`repeated`) in the earlier one that set its mark.

    `moved` is empty if all jobs were accepted with the same `born`. `at` is the store's time of the push that accepted
    them.
    """

    step: LoadStep
    at: int
    born: int
    moved: Sequence[Moved] = ()
    repeated: bool = False

    def count(self, *events: Event) -> int:
        """How many jobs of the step one of these events happened to."""
        if not self.moved:
            return self.step.last - self.step.first if Event.ACCEPTED in events else 0
        return sum(one.event in events for one in self.moved)


class Failed(NamedTuple):
    """A step that the store refused; nothing of it was done, unless the error says that the outcome is unknown."""

    step: LoadStep
    error: DuetimeError


class Bulk(Protocol):
    def load(
        self, queue: Queue, columns: JobColumns, steps: Sequence[LoadStep], *, pace: Pace | None = None
    ) -> AsyncIterator[Loaded | Failed]:
        """Push the steps and yield one answer per step, in their order. A store may have several under way."""
        ...

    async def put_back(self, queue: Queue, jobs: LostColumns) -> int | Sequence[Pushed | DuetimeError]:
        """Push at most STEP_JOBS lost jobs, each as a request of its own with if_exists=keep and its `repair_mark`.

        Returns an answer per job, or the store's time if every job was accepted by this call.
        """
        ...

    async def cancel(self, queue: Queue, ids: Sequence[str]) -> Sequence[Moved | DuetimeError | None]:
        """As the store's: None where there is no such job."""
        ...

    async def reschedule(self, queue: Queue, ids: Sequence[str], due_at: int) -> Sequence[Moved | DuetimeError | None]:
        """As the store's: None where there is no such job."""
        ...

    async def ping(self) -> StoreInfo: ...

    async def close(self) -> None: ...


class PlainBulk:
    """The loader for stores that take jobs as objects: an ordinary push for each step, one after the other."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def load(
        self, queue: Queue, columns: JobColumns, steps: Sequence[LoadStep], *, pace: Pace | None = None
    ) -> AsyncIterator[Loaded | Failed]:
        for step in steps:
            if pace:
                await pace(step.last - step.first)
            request = Push(columns.jobs(step.first, step.last), step.if_exists, step.mark)
            [answer] = await self._store.push(queue, [request])
            yield loaded(step, answer)

    async def put_back(self, queue: Queue, jobs: LostColumns) -> int | Sequence[Pushed | DuetimeError]:
        return await self._store.push(queue, [Push([job], mark=repair_mark(job)) for job in jobs.jobs()])

    async def cancel(self, queue: Queue, ids: Sequence[str]) -> Sequence[Moved | DuetimeError | None]:
        return await self._store.cancel(queue, ids)

    async def reschedule(self, queue: Queue, ids: Sequence[str], due_at: int) -> Sequence[Moved | DuetimeError | None]:
        return await self._store.reschedule(queue, ids, due_at=due_at)

    async def ping(self) -> StoreInfo:
        return await self._store.ping()

    async def close(self) -> None:
        await self._store.close()


def loaded(step: LoadStep, answer: Pushed | DuetimeError) -> Loaded | Failed:
    """Turns the answer to an ordinary push into the answer to a step."""
    if isinstance(answer, DuetimeError):
        return Failed(step, answer)
    first = answer.jobs[0]
    alike = all(
        one.event is Event.ACCEPTED and one.born == first.born and not one.attempt and not one.was
        for one in answer.jobs
    )
    at = min(answer.now, first.born) if answer.repeated and alike else answer.now
    return Loaded(step, at, first.born if alike else 0, () if alike else answer.jobs, answer.repeated)

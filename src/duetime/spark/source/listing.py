"""Paging through a store's jobs, directly or through a server, and cutting the delayed ones into ranges of due time."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import NamedTuple, Protocol

from duetime.client import AsyncClient, calls, connect_async
from duetime.clock import MAX_INSTANT
from duetime.job import STEP_JOBS, Job, State
from duetime.names import Queue
from duetime.spark.load.options import LoadOptions
from duetime.stores.base import Page, Store
from duetime.stores.open import cursor_at, open_store

SMALL = 5_000
"""So few delayed jobs are not worth a second range."""
ROUNDS = 6
PIECES = 16


class Bounds(NamedTuple):
    """Epoch milliseconds, both inclusive."""

    first: int
    last: int

    def within(self, first: int, last: int) -> "Bounds":
        return Bounds(max(self.first, first), min(self.last, last))

    def holds(self, due_at: int) -> bool:
        return self.first <= due_at <= self.last


class ListingPlace(Protocol):
    """What can be listed both in a store and through a server."""

    async def queues(self) -> Sequence[Queue]: ...

    async def page(self, queue: Queue, state: State, cursor: str | None) -> Page: ...

    async def histogram(self, queue: Queue, edges: Sequence[int]) -> Sequence[int]: ...


class Listing:
    """Reads the jobs of a store or a server page by page; it changes nothing."""

    def __init__(self, place: ListingPlace, url: str) -> None:
        self._place = place
        self._url = url
        self.queues = place.queues
        self.histogram = place.histogram

    @classmethod
    @asynccontextmanager
    async def open(cls, options: LoadOptions) -> AsyncGenerator["Listing"]:
        if options.is_http:
            async with connect_async(options.url, namespace=options.namespace, token=options.token) as client:
                yield cls(_OnServer(client), options.url)
            return
        store = await open_store(options.store_url)
        try:
            yield cls(_InStore(store), options.url)
        finally:
            await store.close()

    @property
    def can_begin_anywhere(self) -> bool:
        return cursor_at(self._url, 0) is not None

    async def jobs(self, queue: Queue, state: State, bounds: Bounds) -> AsyncIterator[list[Job]]:
        """Pages of the jobs that are due within the bounds."""
        sorted_by_due = state is State.DELAYED
        cursor = cursor_at(self._url, bounds.first) if sorted_by_due and bounds.first else None
        while True:
            page = await self._place.page(queue, state, cursor)
            yield [job for job in page.jobs if bounds.holds(job.due_at)]
            past_the_end = sorted_by_due and page.jobs and page.jobs[-1].due_at > bounds.last
            if page.cursor is None or past_the_end:
                return
            cursor = page.cursor


class _InStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def queues(self) -> Sequence[Queue]:
        return await self._store.queues()

    async def page(self, queue: Queue, state: State, cursor: str | None) -> Page:
        return await self._store.list_jobs(queue, state, cursor=cursor, limit=STEP_JOBS)

    async def histogram(self, queue: Queue, edges: Sequence[int]) -> Sequence[int]:
        return await self._store.due_histogram(queue, edges)


class _OnServer:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def queues(self) -> Sequence[Queue]:
        return [status.queue for status in await self._client.send(calls.statuses(self._client.namespace))]

    async def page(self, queue: Queue, state: State, cursor: str | None) -> Page:
        return await self._client.send(calls.list_jobs(queue, state, cursor, STEP_JOBS))

    async def histogram(self, queue: Queue, edges: Sequence[int]) -> Sequence[int]:
        return await self._client.send(calls.due_histogram(queue, edges))


async def split_ranges(listing: Listing, queue: Queue, bounds: Bounds, parts: int) -> list[Bounds]:
    """At most about `parts` ranges that cover the bounds, with about as many delayed jobs in each.

    Ranges that are too full are cut into pieces of equal time, and cut again, which takes a few cheap calls.
    """
    whole = [(bounds, await _count(listing, queue, bounds))]
    if parts == 1 or not listing.can_begin_anywhere or whole[0][1] <= SMALL:
        return [bounds]
    most = max(whole[0][1] // parts, SMALL)
    for _ in range(ROUNDS):
        cut: list[tuple[Bounds, int]] = []
        for range_, count in whole:
            cut += [(range_, count)] if count <= most else await _cut(listing, queue, range_)
        if len(cut) == len(whole):
            break
        whole = cut
    return _merged(whole, most)


async def _cut(listing: Listing, queue: Queue, range_: Bounds) -> list[tuple[Bounds, int]]:
    step = max((range_.last - range_.first) // PIECES, 1)
    starts = [*range(range_.first, range_.last, step)][:PIECES] or [range_.first]
    edges = [*starts, range_.last + 1]
    counts = await listing.histogram(queue, edges)
    return [(Bounds(low, high - 1), count) for (low, high), count in zip(pairwise(edges), counts, strict=True)]


async def _count(listing: Listing, queue: Queue, bounds: Bounds) -> int:
    if bounds.first > bounds.last:
        return 0
    [count] = await listing.histogram(queue, [bounds.first, min(bounds.last, MAX_INSTANT) + 1])
    return count


def _merged(ranges: Sequence[tuple[Bounds, int]], most: int) -> list[Bounds]:
    """Joins neighbouring ranges that together have at most `most` jobs."""
    merged: list[tuple[Bounds, int]] = []
    for range_, count in ranges:
        if merged and merged[-1][1] + count <= most:
            before, so_far = merged[-1]
            merged[-1] = Bounds(before.first, range_.last), so_far + count
        else:
            merged.append((range_, count))
    return [range_ for range_, _ in merged]

"""Paging through a store's jobs, directly or through a server, and cutting the waiting ones into ranges.

A range is one of due time; where too many jobs are due in the same millisecond, also of ids within it.
"""

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import NamedTuple

from duetime.client import calls
from duetime.client.store_link import AsyncStoreLink
from duetime.model.clock import MAX_INSTANT
from duetime.model.job import STEP_JOBS, Job, Priority, State
from duetime.model.names import Queue
from duetime.spark.load.options import LoadOptions

SMALL = 5_000
"""So few delayed jobs are not worth a second range."""
ROUNDS = 16
"""So often 16 pieces are cut again to get from all of time to a millisecond, and from there to ids."""
PIECES = 16
SURROGATES = 0xD800, 0xDFFF


class Bounds(NamedTuple):
    """Epoch milliseconds, both inclusive.

    Of the jobs that are due at `first`, those with an id up to `after_id` are left out; of those due at `last`, the
    ones with an id beyond `last_id`, if there is one.
    """

    first: int
    last: int
    after_id: str = ""
    last_id: str | None = None

    def within(self, first: int, last: int) -> "Bounds":
        return Bounds(max(self.first, first), min(self.last, last))

    def holds(self, job: Job) -> bool:
        return (job.due_at, job.id) > (self.first, self.after_id) and not self.is_past(job)

    def is_past(self, job: Job) -> bool:
        """Returns True if the job comes after the end."""
        return job.due_at > self.last or (
            job.due_at == self.last and self.last_id is not None and job.id > self.last_id
        )

    def joined(self, following: "Bounds") -> "Bounds":
        return Bounds(self.first, following.last, self.after_id, following.last_id)


class Listing:
    """Reads the jobs of a store or a server page by page; it changes nothing."""

    def __init__(self, link: AsyncStoreLink, options: LoadOptions) -> None:
        self._send = link.send
        # A server lists the queues of the namespace that the token is for, a store those of all namespaces.
        self._namespace = options.namespace if link.is_server else None
        self.can_begin_anywhere = not link.is_server

    @classmethod
    @asynccontextmanager
    async def open(cls, options: LoadOptions) -> AsyncGenerator["Listing"]:
        async with AsyncStoreLink.open(options.store_url, options.token) as link:
            yield cls(link, options)

    async def queues(self) -> Sequence[Queue]:
        return await self._send(calls.queue_names(self._namespace))

    async def histogram(self, queue: Queue, edges: Sequence[int]) -> Sequence[int]:
        return await self._send(calls.due_histogram(queue, edges))

    async def jobs(self, queue: Queue, state: State, bounds: Bounds) -> AsyncIterator[list[Job]]:
        """Pages of the jobs that are due within the bounds."""
        for priority, cursor in self._starts(state, bounds):
            async for jobs in self._run(queue, state, cursor):
                mine = [job for job in jobs if priority in (None, job.priority)]
                yield [job for job in mine if bounds.holds(job)]
                # In a run that is sorted by due time, nothing of interest follows the end of the bounds.
                if cursor and (len(mine) < len(jobs) or (mine and bounds.is_past(mine[-1]))):
                    break

    def _starts(self, state: State, bounds: Bounds) -> list[tuple[Priority | None, str | None]]:
        """Where runs of jobs sorted by due time begin; one run without a cursor if the whole state has to be read."""
        if not self.can_begin_anywhere or bounds == Bounds(0, MAX_INSTANT):
            return [(None, None)]
        match state:
            case State.DELAYED:
                return [(None, f"0:{bounds.first}:{bounds.after_id}")]
            case State.READY:
                return [(each, f"{int(each)}:{bounds.first}:{bounds.after_id}") for each in Priority]
            case _:
                return [(None, None)]

    async def _run(self, queue: Queue, state: State, cursor: str | None) -> AsyncIterator[Sequence[Job]]:
        while True:
            page = await self._send(calls.list_jobs(queue, state, cursor, STEP_JOBS))
            yield page.jobs
            if page.cursor is None:
                return
            cursor = page.cursor

    async def next_id(self, queue: Queue, due_at: int, after_id: str) -> str | None:
        """The first id after this one among the waiting jobs that are due at this millisecond."""
        found: list[str] = []
        bounds = Bounds(due_at, due_at, after_id)
        for state in (State.DELAYED, State.READY):
            for priority, cursor in self._starts(state, bounds):
                page = await self._send(calls.list_jobs(queue, state, cursor, 1))
                found += [job.id for job in page.jobs if job.due_at == due_at and priority in (None, job.priority)]
        return min(found, default=None)


async def split_ranges(listing: Listing, queue: Queue, bounds: Bounds, parts: int) -> list[Bounds]:
    """At most about `parts` ranges that cover the bounds, with about as many waiting jobs in each.

    Ranges that are too full are cut into pieces of equal time, and cut again, which takes a few cheap calls.
    """
    whole = [(bounds, await _count(listing, queue, bounds))]
    if parts == 1 or not listing.can_begin_anywhere or whole[0][1] <= SMALL:
        return [bounds]
    most = max(whole[0][1] // parts, SMALL)
    for _ in range(ROUNDS):
        cut: list[tuple[Bounds, int]] = []
        for range_, count in whole:
            if count <= most or range_.after_id or range_.last_id:
                cut.append((range_, count))
            elif range_.first == range_.last:
                cut += await _cut_by_id(listing, queue, range_, count)
            else:
                cut += await _cut(listing, queue, range_)
        if len(cut) == len(whole):
            break
        whole = cut
    return _merged(whole, most)


async def _cut(listing: Listing, queue: Queue, range_: Bounds) -> list[tuple[Bounds, int]]:
    step = max((range_.last + 1 - range_.first) // PIECES, 1)
    starts = [*range(range_.first, range_.last + 1, step)][:PIECES]
    edges = [*starts, range_.last + 1]
    counts = await listing.histogram(queue, edges)
    return [(Bounds(low, high - 1), count) for (low, high), count in zip(pairwise(edges), counts, strict=True)]


async def _cut_by_id(listing: Listing, queue: Queue, range_: Bounds, count: int) -> list[tuple[Bounds, int]]:
    """Pieces of one millisecond, cut where ids begin with another character. How many jobs each has is a guess."""
    due_at = range_.first
    pivots: list[str] = []
    first = await listing.next_id(queue, due_at, "")
    for depth in range(len(first or "")):
        prefix, at = (first or "")[:depth], first or ""
        while len(pivots) < PIECES and (pivot := _above(at[: depth + 1])):
            found = await listing.next_id(queue, due_at, pivot)
            if found is None or not found.startswith(prefix) or len(found) == depth:
                break
            pivots.append(pivot)
            at = found
        if len(pivots) >= PIECES // 2:
            break
    edges = sorted(set(pivots))
    share = count // (len(edges) + 1)
    return [
        (Bounds(due_at, due_at, after, last), share) for after, last in zip(["", *edges], [*edges, None], strict=True)
    ]


def _above(text: str) -> str:
    """The same text with its last character replaced by the next one; empty if there is none."""
    code = ord(text[-1]) + 1
    if SURROGATES[0] <= code <= SURROGATES[1]:
        code = SURROGATES[1] + 1
    return text[:-1] + chr(code) if code <= sys.maxunicode else ""


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
            merged[-1] = before.joined(range_), so_far + count
        else:
            merged.append((range_, count))
    return [range_ for range_, _ in merged]

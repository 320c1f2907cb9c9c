"""What is counted about topics: written, notified, deleted, failed; in all and by day; exact across crashes.

A count must not be lost with the process that made it, nor be made twice by the one that takes over. So before the
jobs of successful callbacks are acked, their leases are written down as pending, in the same record as the process's
counts of that topic; the next write of the record turns them into `notified`. Where a process dies in between, another
one asks the store what became of the pending jobs: gone means notified, anything else will be delivered again.

Each process has its own record per topic, so that none waits for another; a reader adds them up, and the records of
processes that are gone are merged into one. Writes and deletes are counted after they are done and saved within
FLUSH_S; a process that is killed can lose those of that last moment.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec import Struct, field

from duetime.errors import DuetimeError, LeaseLost, VersionConflict
from duetime.job import Lease, Moved
from duetime.names import Queue
from duetime.stores.registry import Record, Registry

log = logging.getLogger("duetime.tally")

KIND = "topic-counts"
FLUSH_S = 0.2
KEEP_DAYS = 31
BASE = ""
"""The node whose record holds what was merged."""
AGAIN = "+"
"""Ends the name of a node whose record was sealed while it lived."""


class Count(StrEnum):
    WRITTEN = "written"
    NOTIFIED = "notified"
    DELETED = "deleted"
    FAILED = "failed"


class Pending(Struct, frozen=True, array_like=True):
    """A job that was called back and is being acked."""

    id: str
    born: int
    attempt: int


class ProcessCounts(Struct, omit_defaults=True):
    """One process's part of a topic's counts. `stamp` tells its writes apart; nobody writes a `sealed` one any more;
    `merged` names the records that are already in this one.
    """

    pool: str
    queue: str
    totals: dict[str, int] = field(default_factory=dict[str, int])
    days: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    pending: list[Pending] = field(default_factory=list[Pending])
    pending_day: str = ""
    stamp: int = 0
    sealed: bool = False
    merged: list[str] = field(default_factory=list[str])

    def add(self, what: str, by: int, day: str) -> None:
        self.totals[what] = self.totals.get(what, 0) + by
        today = self.days.setdefault(day, {})
        today[what] = today.get(what, 0) + by
        if len(self.days) > KEEP_DAYS:
            del self.days[min(self.days)]

    def absorb(self, other: "ProcessCounts") -> None:
        self.totals = dict(Counter(self.totals) + Counter(other.totals))
        for day, counts in other.days.items():
            self.days[day] = dict(Counter(self.days.get(day, {})) + Counter(counts))
        for day in sorted(self.days)[:-KEEP_DAYS]:
            del self.days[day]


decode_counts = msgspec.json.Decoder(ProcessCounts).decode
encode_counts = msgspec.json.Encoder().encode

Acked = Sequence[Moved | LeaseLost | None]


class Sheet:
    """One topic's counts in this process: what is saved, and what has happened since."""

    def __init__(self, key: str, pool: str, queue: Queue) -> None:
        self.key = key
        self.saved = ProcessCounts(pool, str(queue))
        self.version = 0
        self.news: list[tuple[str, int, str]] = []
        self.settled: list[Pending] = []
        """Those of the saved pending leases that were acked."""
        self.tried = (0, 0)
        """The stamp of the last write that was begun, and how much of the news was in it."""
        self.lock = asyncio.Lock()

    def next(self, pending: Sequence[Lease], day: str) -> ProcessCounts:
        """The record as it should be now."""
        counts = msgspec.convert(msgspec.to_builtins(self.saved), ProcessCounts)
        if self.settled:
            counts.add(Count.NOTIFIED, len(self.settled), counts.pending_day or day)
        for what, by, at in self.news:
            counts.add(what, by, at)
        counts.pending = [_pending(lease) for lease in pending]
        counts.pending_day = day if pending else ""
        counts.stamp = self.tried[0] + 1
        self.tried = (counts.stamp, len(self.news))
        return counts

    def read_again(self, record: Record | None) -> None:
        """Take what the registry holds: a write of ours that seemed to fail had arrived, or another process took us
        for dead and settled our pending jobs or merged our record.
        """
        saved = decode_counts(record.value) if record else ProcessCounts(self.saved.pool, self.saved.queue)
        stamp, told = self.tried
        if saved.stamp == stamp:
            del self.news[:told]
            self.settled = []
        # What an heir has settled it has counted; the rest is still for us to count.
        self.settled = [one for one in self.settled if one in saved.pending]
        if saved.sealed:
            # An heir is about to merge it: what comes from now on goes into a new one.
            self.key, saved, record = f"{self.key}{AGAIN}", ProcessCounts(saved.pool, saved.queue), None
        self.saved, self.version = saved, record.version if record else 0


def _pending(lease: Lease) -> Pending:
    return Pending(lease.id, lease.born, lease.attempt)


class Tally:
    """`node` names this process; `today` is the day as Ymd. An async context manager that saves what is left."""

    def __init__(self, registry: Callable[[], Registry], node: str, today: Callable[[], str]) -> None:
        self.node = node
        self._registry = registry
        self._today = today
        self._sheets: dict[int, Sheet] = {}
        self._flushes: dict[int, asyncio.Task[None]] = {}

    async def __aenter__(self) -> "Tally":
        return self

    async def __aexit__(self, *_: object) -> None:
        for flush in self._flushes.values():
            flush.cancel()
        await asyncio.gather(*self._flushes.values(), return_exceptions=True)
        for sheet in self._sheets.values():
            await self._save(sheet, [])

    def _sheet(self, topic_id: int, pool: str, queue: Queue) -> Sheet:
        sheet = self._sheets.get(topic_id)
        if sheet is None:
            sheet = self._sheets[topic_id] = Sheet(f"{topic_id}/{self.node}", pool, queue)
        return sheet

    def count(self, topic_id: int, place: tuple[str, Queue], what: Count, by: int = 1) -> None:
        """Remember, and save soon."""
        sheet = self._sheet(topic_id, *place)
        sheet.news.append((what, by, self._today()))
        self._flush_soon(topic_id, sheet)

    async def finish(
        self, topic_id: int, place: tuple[str, Queue], leases: Sequence[Lease], ack: Callable[[], Awaitable[Acked]]
    ) -> Acked:
        """Ack jobs whose callbacks succeeded, and count those that were ours to ack. Raises what `ack` raises."""
        sheet = self._sheet(topic_id, *place)
        async with sheet.lock:
            saved = await self._write(sheet, leases)
            acked = await ack()
            done = [
                _pending(lease)
                for lease, answer in zip(leases, acked, strict=True)
                if not isinstance(answer, LeaseLost)
            ]
            if saved:
                sheet.settled = done
            else:
                sheet.news.append((Count.NOTIFIED, len(done), self._today()))
        self._flush_soon(topic_id, sheet)
        return acked

    def _flush_soon(self, topic_id: int, sheet: Sheet) -> None:
        if topic_id not in self._flushes:
            self._flushes[topic_id] = asyncio.create_task(self._flush(topic_id, sheet))

    async def _flush(self, topic_id: int, sheet: Sheet) -> None:
        await asyncio.sleep(FLUSH_S)
        # From here on a new count asks for a flush of its own.
        self._flushes.pop(topic_id, None)
        if not await self._save(sheet, []):
            self._flush_soon(topic_id, sheet)

    async def _save(self, sheet: Sheet, pending: Sequence[Lease]) -> bool:
        async with sheet.lock:
            if not sheet.news and not sheet.saved.pending and not pending:
                return True
            return await self._write(sheet, pending)

    async def _write(self, sheet: Sheet, pending: Sequence[Lease]) -> bool:
        """False if the registry cannot be reached: callbacks go on, and the counts are saved when it is back."""
        while True:
            counts = sheet.next(pending, self._today())
            try:
                record = await self._registry().put(KIND, sheet.key, encode_counts(counts), if_version=sheet.version)
            except VersionConflict:
                try:
                    sheet.read_again(await self._registry().get(KIND, sheet.key))
                except DuetimeError:
                    return False
            except DuetimeError as error:
                log.warning("counts_not_saved", extra={"topic": sheet.saved.queue, "error": error.message})
                return False
            else:
                # What was counted during the write is not in it.
                del sheet.news[: sheet.tried[1]]
                sheet.saved, sheet.version, sheet.settled = counts, record.version, []
                return True

    async def read(self, topic_ids: Sequence[int] | None = None) -> Mapping[int, ProcessCounts]:
        """The counts of topics, of all processes together, from the registry."""
        return add_up(await self._registry().list_records(KIND), topic_ids)


def add_up(records: Sequence[Record], topic_ids: Sequence[int] | None = None) -> dict[int, ProcessCounts]:
    """Each topic's counts over all its records; what was merged already is not added again."""
    wanted = None if topic_ids is None else set(topic_ids)
    parts: dict[int, dict[str, ProcessCounts]] = {}
    for record in records:
        number, _, node = record.key.partition("/")
        if wanted is None or int(number) in wanted:
            parts.setdefault(int(number), {})[node] = decode_counts(record.value)
    sums: dict[int, ProcessCounts] = {}
    for number, nodes in parts.items():
        merged = set(nodes[BASE].merged) if BASE in nodes else set[str]()
        first = next(iter(nodes.values()))
        total = sums[number] = ProcessCounts(first.pool, first.queue)
        for node, counts in nodes.items():
            if node not in merged:
                total.absorb(counts)
    return sums

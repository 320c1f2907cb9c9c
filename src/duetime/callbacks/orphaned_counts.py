"""What dead processes left behind in the counts: their pending jobs are settled, their records merged.

A living process turns its pending jobs into counts within a second. Where they stay for longer it died, and one of the
others asks the store: a job that is gone, or has a new life, was acked; one that is leased again, waits or is dead was
not; one whose lease is still held is asked about later. Every write names the version it saw, so of several heirs one
inherits, and a process that was taken for dead notices at its next write.
"""

import logging
from collections.abc import Callable, Sequence

from duetime.callbacks.topic_counts import (
    AGAIN,
    BASE,
    KIND,
    Count,
    Pending,
    ProcessCounts,
    decode_counts,
    encode_counts,
)
from duetime.clock import Clock
from duetime.engine.engine import Engine
from duetime.errors import DuetimeError, VersionConflict
from duetime.job import Job, State
from duetime.names import Queue
from duetime.stores.get_all import get_all
from duetime.stores.registry import Record, Registry

log = logging.getLogger("duetime.tally")

SETTLE_AFTER_S = 3.0
MERGE_AFTER_S = 600.0


class Heirs:
    """A duty of every process (`run_once` now and then)."""

    def __init__(
        self, registry: Callable[[], Registry], engine: Callable[[str], Engine], clock: Clock, node: str
    ) -> None:
        self._registry = registry
        self._engine = engine
        self._clock = clock
        self._node = node
        self._seen: dict[str, tuple[int, float]] = {}

    async def run_once(self) -> None:
        """Look at the records of others; what does not change for long is inherited."""
        records = await self._registry().list_records(KIND)
        now = self._clock.monotonic()
        self._seen = {
            one.key: seen if (seen := self._seen.get(one.key)) and seen[0] == one.version else (one.version, now)
            for one in records
        }
        for record in records:
            number, _, node = record.key.partition("/")
            unchanged_s = now - self._seen[record.key][1]
            if node.rstrip(AGAIN) in (self._node, BASE):
                continue
            try:
                await self._inherit(int(number), node, record, unchanged_s)
            except VersionConflict:
                continue  # another heir was quicker, or the process lives
            except DuetimeError as error:
                log.info("counts_not_inherited", extra={"node": node, "error": error.message})

    async def _inherit(self, number: int, node: str, record: Record, unchanged_s: float) -> None:
        counts = decode_counts(record.value)
        if counts.pending and unchanged_s >= SETTLE_AFTER_S:
            await self._settle(record, counts)
        elif not counts.pending and unchanged_s >= MERGE_AFTER_S:
            await self._merge(number, node, record, counts)

    async def _settle(self, record: Record, counts: ProcessCounts) -> None:
        queue = Queue.parse(counts.queue)
        jobs = await get_all(self._engine(counts.pool).store, queue, [one.id for one in counts.pending])
        held = [one for one, job in zip(counts.pending, jobs, strict=True) if _is_held(one, job)]
        acked = sum(_was_acked(one, job) for one, job in zip(counts.pending, jobs, strict=True))
        if len(held) == len(counts.pending):
            return
        if acked:
            counts.add(Count.NOTIFIED, acked, counts.pending_day)
        counts.pending = held
        counts.stamp = 0
        await self._registry().put(KIND, record.key, encode_counts(counts), if_version=record.version)

    async def _merge(self, number: int, node: str, record: Record, counts: ProcessCounts) -> None:
        """Steps that are each safe to stop after: seal the record, add it to the base and say so, remove it, forget
        its name.
        """
        registry = self._registry()
        if not counts.sealed:
            counts.sealed = True
            record = await registry.put(KIND, record.key, encode_counts(counts), if_version=record.version)
        key = f"{number}/{BASE}"
        found = await registry.get(KIND, key)
        base = decode_counts(found.value) if found else ProcessCounts(counts.pool, counts.queue)
        version = found.version if found else 0
        if node not in base.merged:
            base.absorb(counts)
            base.merged = [*base.merged, node]
            version = (await registry.put(KIND, key, encode_counts(base), if_version=version)).version
        await registry.delete(KIND, record.key, if_version=record.version)
        base.merged = [one for one in base.merged if one != node]
        await registry.put(KIND, key, encode_counts(base), if_version=version)


def _was_acked(pending: Pending, job: Job | None) -> bool:
    return job is None or job.born != pending.born


def _is_held(pending: Pending, job: Job | None) -> bool:
    if job is None or job.born != pending.born:
        return False
    return job.state is State.LEASED and job.attempt == pending.attempt


def pending_of(records: Sequence[Record]) -> int:
    """How many jobs wait to be settled, for tests and `doctor`."""
    return sum(len(decode_counts(record.value).pending) for record in records)

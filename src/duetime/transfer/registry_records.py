"""The records of a registry on their way to another one: tokens, limits, topics, users, settings, alerts."""

from collections.abc import Sequence

from duetime.model.errors import VersionConflict
from duetime.stores.registry import GROUP_COPY, MOVED_AWAY, Record, Registry

MOVE, MOVE_QUEUE, TRANSFER_LOCK = "move", "move-queue", "transfer-lock"
STAYS = frozenset({"group", "group-pending", "journal", "restore", MOVE, MOVE_QUEUE, TRANSFER_LOCK, MOVED_AWAY})
"""Kinds about the store itself. The journal's record moves by the rules of a pool's journal."""


async def read_records(registry: Registry) -> Sequence[Record]:
    """Every record that belongs to the deployment and not to its store."""
    records = (await registry.changes(0)).records
    kept = (one for one in records if one.kind not in STAYS and not one.kind.startswith(GROUP_COPY))
    return sorted(kept, key=lambda one: (one.kind, one.key))


async def write_records(registry: Registry, records: Sequence[Record]) -> list[Record]:
    """Write the records that are not there yet. Answers those in whose place another value stays. Idempotent."""
    there = {(one.kind, one.key): one.value for one in (await registry.changes(0)).records}
    others: list[Record] = []
    for record in records:
        found = there.get((record.kind, record.key))
        if found is None:
            try:
                await registry.put(record.kind, record.key, record.value, if_version=0)
                continue
            except VersionConflict:  # somebody else was quicker
                again = await registry.get(record.kind, record.key)
                found = again.value if again else record.value
        if found != record.value:
            others.append(record)
    return others


async def read_counters(registry: Registry) -> dict[str, int]:
    """The counters without an end; the others end by themselves and are left out."""
    found: dict[str, int] = {}
    for name in sorted(await registry.counters()):
        counter = await registry.increment(name, 0)  # it may have ended meanwhile
        if counter.value and not counter.left_ms:
            found[name] = counter.value
    return found


async def write_counters(registry: Registry, counters: dict[str, int]) -> None:
    """Begin the counters that have not begun there."""
    there = await registry.counters()
    for name, value in counters.items():
        if name not in there:
            await registry.increment(name, value)

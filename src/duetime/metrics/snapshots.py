"""Adds up the snapshots of several processes: pure functions.

A counter never goes backwards, whatever happens to the processes behind it: the counters in a process's last snapshot
are kept when it ends (`without_levels`), and a queue that was once shown by name stays so (`fold`).
"""

from collections.abc import Iterable

import msgspec

from duetime.metrics.meters import PER_QUEUE, Labels, MeterKind, Names, Reading, Snapshot

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Snapshot).decode

LEVELS = frozenset({MeterKind.LEVEL_SUM, MeterKind.LEVEL_MAX})


def merge(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The sum of all snapshots. If readings of one name differ in kind, labels or edges (another version's), only
    those that match the first one are added.
    """
    found: dict[str, Reading] = {}
    for snapshot in snapshots:
        for reading in snapshot.readings:
            name = reading.description.name
            known = found.get(name)
            if known is None:
                found[name] = Reading(
                    reading.description, {labels: list(value) for labels, value in reading.series.items()}
                )
            elif _alike(known, reading):
                _add(known, reading)
    return Snapshot(list(found.values()))


def _alike(one: Reading, other: Reading) -> bool:
    first, second = one.description, other.description
    return (first.kind, first.labels, first.edges) == (second.kind, second.labels, second.edges)


def _add(known: Reading, reading: Reading) -> None:
    largest = known.description.kind is MeterKind.LEVEL_MAX
    for labels, value in reading.series.items():
        before = known.series.get(labels)
        if before is None:
            known.series[labels] = list(value)
        elif largest:
            known.series[labels] = [max(pair) for pair in zip(before, value, strict=True)]
        else:
            known.series[labels] = [one + other for one, other in zip(before, value, strict=True)]


def without_levels(snapshot: Snapshot) -> Snapshot:
    """The part of a snapshot that stays true after the process has ended: its counters and spreads."""
    return Snapshot([reading for reading in snapshot.readings if reading.description.kind not in LEVELS])


def fold(snapshot: Snapshot, names: Names) -> Snapshot:
    """The same numbers with no more queues by name than `names` lets in."""
    return Snapshot([_fold(reading, names) for reading in snapshot.readings])


def _fold(reading: Reading, names: Names) -> Reading:
    labels = reading.description.labels
    if labels[:2] != PER_QUEUE[:2]:
        return reading
    folded: dict[Labels, list[float]] = {}
    for values, value in reading.series.items():
        shown = _shown(values, names, has_queue=labels[:3] == PER_QUEUE)
        before = folded.get(shown)
        folded[shown] = value if before is None else [one + other for one, other in zip(before, value, strict=True)]
    return Reading(reading.description, folded)


def _shown(values: Labels, names: Names, *, has_queue: bool) -> Labels:
    pool, namespace, *rest = values
    if not has_queue:
        return (pool, names.shown_namespace(namespace), *rest)
    return (*names.shown(pool, namespace, rest[0]), *rest[1:])

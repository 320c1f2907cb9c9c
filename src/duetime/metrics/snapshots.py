"""Snapshots of metrics: how those of several processes are added up, and how one is written for Prometheus.

A counter never goes backwards, whatever happens to the processes behind it: the counters in a process's last snapshot
are kept when it ends (`EndedProcesses`), and a queue that was once shown by name stays so (`fold`).

The text is Prometheus's exposition format 0.0.4. Metrics are written under the names in their descriptions, and no
suffix is added: the names of our own counters end in `_total`, those of lmstfy's counters do not.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate

import msgspec

from duetime.metrics.meters import MAX_QUEUES, PER_QUEUE, Labels, MeterKind, Names, Reading, Snapshot

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Snapshot).decode

METRICS = "metrics"
"""The name of the request by which processes ask each other for a snapshot."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

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


class EndedProcesses:
    """Keeps the counters of processes that ended. One per server; it belongs to the supervisor, which hands it every
    snapshot that it receives, or to the only process.

    Every process needs a name that no other process of the server has had. Counts that a process made after its last
    snapshot are lost when the process ends, unless it sends one more before.
    """

    def __init__(self, max_queues: int = MAX_QUEUES) -> None:
        self._names = Names(max_queues)
        self._present: dict[str, Snapshot] = {}
        self._past = Snapshot()

    def record(self, process: str, body: bytes) -> None:
        """Remember the latest snapshot of this process. One that cannot be read (another version's) is ignored."""
        try:
            self._present[process] = decode(body)
        except msgspec.MsgspecError:
            return

    def keep(self, alive: Collection[str]) -> None:
        """Add the counters of all processes that are not alive to those of the past."""
        gone = [self._present.pop(process) for process in set(self._present) - set(alive)]
        self._past = merge([self._past, *map(without_levels, gone)])

    def past(self) -> bytes:
        """The sum of what ended processes counted, encoded; empty if they counted nothing."""
        return encode(self._past) if self._past.readings else b""

    def total(self) -> bytes:
        """The sum over all processes, living and ended, encoded, with no more queues by name than allowed."""
        merged = merge([self._past, *self._present.values()])
        return encode(fold(merged, self._names))


# --- Prometheus

TYPES = {
    MeterKind.COUNTER: "counter",
    MeterKind.SPREAD: "histogram",
    MeterKind.LEVEL_SUM: "gauge",
    MeterKind.LEVEL_MAX: "gauge",
}

_IN_LABEL = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})


Pairs = dict[tuple[tuple[str, ...], Labels], str]
"""Labels in their written form. Many metrics have series with the same labels, which are then formatted only once."""


def render(snapshot: Snapshot) -> bytes:
    """The text of the whole snapshot: metrics in the order of their names, series in the order of their labels."""
    readings = sorted(snapshot.readings, key=lambda reading: reading.description.name)
    known: Pairs = {}
    return "".join(text for reading in readings for text in _texts(reading, known)).encode()


def _texts(reading: Reading, known: Pairs) -> Iterator[str]:
    description = reading.description
    name = description.name
    yield f"# HELP {name} {description.about.translate(_IN_HELP)}\n# TYPE {name} {TYPES[description.kind]}\n"
    bounds = [*(repr(float(edge)) for edge in description.edges), "+Inf"]
    for labels in sorted(reading.series):
        value = reading.series[labels]
        pairs = known.get((description.labels, labels))
        if pairs is None:
            pairs = known[description.labels, labels] = _pairs(description.labels, labels)
        if description.kind is MeterKind.SPREAD:
            yield _spread(name, pairs, bounds, value)
        else:
            yield f"{name}{{{pairs}}} {_number(value[0])}\n" if pairs else f"{name} {_number(value[0])}\n"


def _spread(name: str, pairs: str, bounds: Sequence[str], value: Sequence[float]) -> str:
    *counts, total = value
    start = f'{name}_bucket{{{pairs},le="' if pairs else f'{name}_bucket{{le="'
    below = list(accumulate(map(int, counts)))
    lines = [f'{start}{bound}"}} {count}\n' for bound, count in zip(bounds, below, strict=True)]
    shown = f"{{{pairs}}}" if pairs else ""
    lines.append(f"{name}_sum{shown} {_number(total)}\n{name}_count{shown} {below[-1]}\n")
    return "".join(lines)


def _pairs(names: Sequence[str], labels: Labels) -> str:
    named = zip(names, labels, strict=True)
    return ",".join([f'{name}="{value.translate(_IN_LABEL)}"' for name, value in named])


def _number(value: float) -> str:
    whole = int(value)
    return str(whole) if whole == value else repr(value)

"""Writes a snapshot as text in Prometheus's exposition format 0.0.4. Pure functions.

Metrics are written under the names in their descriptions, and no suffix is added: the names of our own counters end in
`_total`, those of lmstfy's counters do not.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from duetime.metrics.meters import Labels, MeterKind, Reading, Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

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

"""A snapshot as text, in Prometheus's exposition format 0.0.4. A pure function.

Names are written as they are described: a counter of ours ends in `_total` by its own name, lmstfy's do not.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from duetime.engine.meters import Description, Kind, Labels, Reading, Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

TYPES = {Kind.COUNTER: "counter", Kind.SPREAD: "histogram", Kind.LEVEL_SUM: "gauge", Kind.LEVEL_MAX: "gauge"}

_IN_LABEL = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})


def render(snapshot: Snapshot) -> bytes:
    """Everything, metrics and series in the order of their names."""
    readings = sorted(snapshot.readings, key=lambda reading: reading.description.name)
    return "".join(line for reading in readings for line in _lines(reading)).encode()


def _lines(reading: Reading) -> Iterator[str]:
    description = reading.description
    yield f"# HELP {description.name} {description.about.translate(_IN_HELP)}\n"
    yield f"# TYPE {description.name} {TYPES[description.kind]}\n"
    for labels in sorted(reading.series):
        value = reading.series[labels]
        if description.kind is Kind.SPREAD:
            yield from _spread(description, labels, value)
        else:
            pairs = _pairs(description, labels)
            yield (
                f"{description.name}{{{pairs}}} {_number(value[0])}\n"
                if pairs
                else (f"{description.name} {_number(value[0])}\n")
            )


def _spread(description: Description, labels: Labels, value: Sequence[float]) -> Iterator[str]:
    *counts, total = value
    name, pairs = description.name, _pairs(description, labels)
    bounds = [*(repr(float(edge)) for edge in description.edges), "+Inf"]
    before = f"{pairs}," if pairs else ""
    for bound, count in zip(bounds, accumulate(counts), strict=True):
        yield f'{name}_bucket{{{before}le="{bound}"}} {_number(count)}\n'
    shown = f"{{{pairs}}}" if pairs else ""
    yield f"{name}_sum{shown} {_number(total)}\n"
    yield f"{name}_count{shown} {_number(sum(counts))}\n"


def _pairs(description: Description, labels: Labels) -> str:
    named = zip(description.labels, labels, strict=True)
    return ",".join([f'{name}="{value.translate(_IN_LABEL)}"' for name, value in named])


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)

"""Durations and sizes as people read them."""

from collections.abc import Mapping

Units = Mapping[str, str]
"""How each unit of time is written, with {} in the place of the number. A translation has its own."""
SHORT_UNITS: Units = {unit: f"{{}}{unit}" for unit in ("d", "h", "m", "s", "ms")}
SPACED_UNITS: Units = {unit: f"{{}} {unit}" for unit in ("d", "h", "m", "s", "ms")}

_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))
_UNITS_BYTES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def span(duration_ms: float, units: Units = SHORT_UNITS) -> str:
    """`3ms`, `1.2s`, `5m 3s`, `2h 5m`, `3d 4h`: two units at most."""
    ms = max(0, round(duration_ms))
    if ms < 1000:
        return units["ms"].format(ms)
    if ms < 60_000:
        return units["s"].format(f"{ms / 1000:.1f}".removesuffix(".0"))
    parts: list[str] = []
    for unit, size in _UNITS_MS:
        count, ms = divmod(ms, size)
        parts.append(units[unit].format(count) if count else "")
    first = next(at for at, part in enumerate(parts) if part)
    return " ".join(part for part in parts[first : first + 2] if part)


def rough_span(duration_ms: float, units: Units = SHORT_UNITS) -> str:
    """`12s`, `32m`, `2h 5m`, `3d`: one unit, and below ten hours or days the next one too."""
    s = max(0, int(duration_ms)) // 1000
    for unit, size, smaller in (("d", 86_400, 3600), ("h", 3600, 60)):
        if s >= 10 * size:
            return units[unit].format(s // size)
        if s >= size:
            return span((s - s % smaller) * 1000, units)
    return units["m"].format(s // 60) if s >= 60 else units["s"].format(s)


def exact_duration(ms: int) -> str:
    """`1d`, `2m`, `1500ms`: one unit, the largest that needs no fraction. `duration_ms` reads it."""
    for unit, size in _UNITS_MS:
        if ms >= size and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms" if ms else "0s"


def counted(count: int, noun: str) -> str:
    """`1 job`, `1,200 jobs`: for nouns with a regular plural."""
    plural = noun if count == 1 else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count:,} {plural}"


def size(count: float) -> str:
    """`512 B`, `1.5 MiB`."""
    for unit, each in _UNITS_BYTES:
        if count >= each:
            return f"{count / each:.1f} {unit}"
    return f"{count:.0f} B"


def exact_size(count: int) -> str:
    """`64KiB`, `1000`: one unit, the largest that needs no fraction. `read_size` reads it."""
    for unit, each in _UNITS_BYTES:
        if count >= each and count % each == 0:
            return f"{count // each}{unit}"
    return str(count)

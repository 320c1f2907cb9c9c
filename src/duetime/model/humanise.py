"""Durations, sizes and numbers as people read them."""

_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))
_UNITS_BYTES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def span(duration_ms: float) -> str:
    """`3ms`, `1.2s`, `5m 3s`, `2h 5m`, `3d 4h`: two units at most."""
    ms = max(0, round(duration_ms))
    if ms < 1000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f}".removesuffix(".0") + "s"
    parts: list[str] = []
    for unit, size in _UNITS_MS:
        count, ms = divmod(ms, size)
        parts.append(f"{count}{unit}" if count else "")
    first = next(at for at, part in enumerate(parts) if part)
    return " ".join(part for part in parts[first : first + 2] if part)


def exact_duration(ms: int) -> str:
    """`1d`, `2m`, `1500ms`: one unit, the largest that needs no fraction. `duration_ms` reads it."""
    for unit, size in _UNITS_MS:
        if ms >= size and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms" if ms else "0s"


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

"""Numbers as people read them, in reports and forecasts."""

from datetime import UTC, datetime

_STEPS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def number(value: float) -> str:
    """1,234,567"""
    return f"{round(value):,}"


def short(value: float) -> str:
    """1.23 M, 45.6 k, 789"""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return (
                f"{value / (1e3 if unit == 'k' else size):.3g} {unit}"
                if value < 1000 * size
                else f"{value / size:,.0f} {unit}"
            )
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.1f}"


def percent(part: float, whole: float) -> str:
    """Never "100 %" unless it is all of them, nor "0 %" unless it is none."""
    if not whole:
        return "-"
    if part in (0, whole):
        return "0 %" if part == 0 else "100 %"
    share = min(max(100 * part / whole, 0.001), 99.999)
    digits = 3 if share > 99.99 or share < 0.01 else 2 if share > 99.9 or share < 0.1 else 1
    return f"{share:.{digits}f} %"


def duration(ms: float | None) -> str:
    """8 ms, 1.2 s, 5 min, 3.1 h, 2 d"""
    if ms is None:
        return "-"
    for size, unit in _STEPS:
        if abs(ms) >= size:
            return f"{ms / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{ms:.0f} ms"


def moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%a %d %b")


def span_of(start_at: int, end_at: int) -> str:
    """The period in words, UTC; whole days without their hours."""
    if start_at % 86_400_000 == 0 and end_at % 86_400_000 == 0:
        first, last = moment(start_at)[:10], moment(end_at - 1)[:10]
        return f"{first} (UTC)" if first == last else f"{first} to {last} (UTC)"
    return f"{moment(start_at)} to {moment(end_at)} (UTC)"

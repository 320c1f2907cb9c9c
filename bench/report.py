"""Measuring and printing, the same way in every benchmark.

Numbers are medians over rounds. Within a round every contender runs once, and the one that starts changes from round to
round, so that drift of the machine (heat, neighbours, caches) does not favour anybody.
"""

import datetime
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import duetime

ROOT = Path(__file__).resolve().parents[1]


def environment() -> str:
    """What the numbers below it were measured on, as one block of text."""
    facts = {
        "duetime": duetime.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "sqlite": sqlite3.sqlite_version,
        "redis": redis_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {cpu_model()}",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    return "\n".join(f"{name:<8} {value}" for name, value in facts.items())


def redis_version() -> str:
    program = shutil.which("redis-server")
    if program is None:
        return "not installed"
    text = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    return next((word.removeprefix("v=") for word in text.split() if word.startswith("v=")), "unknown")


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def peer_python() -> Path:
    """The interpreter of `.venv-bench`, where the peers are installed."""
    python = ROOT / ".venv-bench" / "bin" / "python"
    if not python.exists():
        raise SystemExit("The peers are not installed; run: make setup-bench")
    return python


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def interleave(
    contenders: Mapping[str, Callable[[], float]], *, rounds: int, warmups: int = 1
) -> dict[str, list[float]]:
    """Let each contender return one number per round, taking turns; the warm-up rounds are thrown away."""
    names = list(contenders)
    results: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warmups + rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            value = contenders[name]()
            if turn >= warmups:
                results[name].append(value)
    return results


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def percentile(values: Iterable[float], percent: float) -> float:
    """The nearest-rank percentile: a value that was really measured, never one in between."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def spread(values: Sequence[float]) -> str:
    """Half the distance from the smallest to the largest, relative to the median: "± 4 %"."""
    middle = median(values)
    return f"± {(max(values) - min(values)) / 2 / middle:.0%}".replace("%", " %") if middle else "-"


def rate(count: int, elapsed_s: float) -> float:
    return count / elapsed_s if elapsed_s > 0 else float("inf")


def ratio(ours: float, theirs: float) -> str:
    """Ours over theirs: "2.40x"; above 1 is more, which is better for rates and worse for durations."""
    return f"{ours / theirs:.2f}x" if theirs else "-"


def number(value: float) -> str:
    """Thousands with separators, small numbers with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Aligned columns: the first to the left, the others to the right; floats through number()."""
    cells = [list(header)] + [[number(cell) if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    cells.insert(1, ["-" * width for width in widths])
    lines: list[str] = []
    for first, *others in cells:
        aligned = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *aligned]).rstrip())
    return "\n".join(lines)

"""The charts of rates, backlog, lateness and run time over a span of the past, as the page's script draws them."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from duetime.console.queue_history import SPANS
from duetime.console.rate_history import RatePoint
from duetime.console.visit import Visit

MANY_POINTS = 60
COLORS = {"accepted": "--accent", "finished": "--ready", "failed": "--dead"}

Chart = Mapping[str, Any]


def history_charts(
    visit: Visit, points: Sequence[RatePoint], span: str, charts: Sequence[str], rates: Sequence[str] = tuple(COLORS)
) -> list[tuple[str, Chart]]:
    """Each of these charts with its name. `data` has columns of numbers, the first of which is the time."""
    frame = {"now": int(time.time()), "span": SPANS[span][0], "days": span == "week"}
    at = [int(one.at) for one in points]
    counted = [[round(one.rates.get(name, 0), 3) for one in points] for name in rates]
    target = _as_ms(visit.parts.settings.alert_lateness.total_seconds())
    quantiles, colors = [visit.say("overview.p50"), visit.say("overview.p99")], ["--faint", "--accent"]
    made: Mapping[str, Chart] = {
        "rates": {
            "labels": [visit.say(f"overview.{name}") for name in rates],
            "colors": [COLORS[name] for name in rates],
            "data": [at, *counted],
            **cut_peaks(counted),
        },
        "backlog": {
            "labels": [visit.say("state.ready")],
            "colors": ["--ready"],
            "data": [at, [one.backlog for one in points]],
            "whole": True,
        },
        # The lateness that raises an alert is a dashed line.
        "lateness": {
            "kind": "ms",
            "labels": [*quantiles, visit.say("overview.target")],
            "colors": [*colors, "--leased"],
            "dashed": 2,
            "data": [at, [_as_ms(one.p50) for one in points], [_as_ms(one.p99) for one in points], [target] * len(at)],
        },
        "run": {
            "kind": "ms",
            "labels": quantiles,
            "colors": colors,
            "data": [at, [_as_ms(one.run_p50) for one in points], [_as_ms(one.run_p99) for one in points]],
        },
    }
    return [(name, {**frame, **made[name]}) for name in charts]


def cut_peaks(series: Sequence[Sequence[float]]) -> dict[str, float]:
    """Where the axis of a chart of rates ends if a few peaks would flatten all the rest, and how high they are."""
    values = sorted(value for one in series for value in one if value)
    usual = values[int(len(values) * 0.95)] if values else 0.0
    is_flat = len(values) >= MANY_POINTS and values[-1] > usual * 5
    return {"top": round(usual * 2, 3), "peak": values[-1]} if is_flat else {"top": 0, "peak": 0}


def _as_ms(seconds: float | None) -> float | None:
    """A value of a chart with a logarithmic axis of milliseconds, which begins with 1."""
    return None if seconds is None else max(round(seconds * 1000, 1), 1)

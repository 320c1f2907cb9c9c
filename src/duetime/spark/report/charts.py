"""The figures of the report, as plain data for plotly.js. Colours are names of page.css, so both themes share them."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from duetime.spark.report.data import Heat, QueueLine, Report, duration, number

Figure = dict[str, Any]

DECADES = tuple(10**power for power in range(9))
"""Lateness from a millisecond to about a day, on a logarithmic axis."""
HEAT_COLOURS = ((0, "--heat-0"), (0.15, "--heat-1"), (0.55, "--heat-2"), (1, "--heat-3"))
TOP_QUEUES = 12


def lateness_chart(report: Report) -> Figure:
    """Percentiles over time against the target. Values below a millisecond are drawn as one millisecond."""
    points = [point for point in report.points if point.p99 is not None]
    at = [point.at for point in points]
    lines = [("p99", "--p99", 2.2), ("p95", "--p95", 2), ("p50", "--p50", 2)]
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers" if len(points) < 40 else "lines",
            "marker": {"size": 5},
            "name": name,
            "x": at,
            "y": [max(getattr(point, name) or 0, 1) for point in points],
            "customdata": [duration(getattr(point, name)) for point in points],
            "hovertemplate": "%{customdata}",
            "line": {"color": colour, "width": width, "shape": "linear"},
        }
        for name, colour, width in lines
    ]
    highest = max([point.p99 or 0 for point in points] + [report.target_ms * 2])
    layout = {
        "xaxis": time_axis(report),
        "yaxis": duration_axis(highest),
        **target_line(report.target_ms, "y"),
    }
    return {"data": data, "layout": layout}


def throughput_chart(report: Report) -> Figure:
    words = (("accepted", "--accepted"), ("delivered", "--delivered"), ("acked", "--acked"))
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers" if len(report.points) < 40 else "lines",
            "marker": {"size": 5},
            "name": word,
            "x": [point.at for point in report.points],
            "y": [point.counts.get(word, 0) for point in report.points],
            "line": {"color": colour, "width": 2},
            "hovertemplate": "%{y:,}",
        }
        for word, colour in words
    ]
    return {"data": data, "layout": {"xaxis": time_axis(report), "yaxis": count_axis()}}


def retries_chart(report: Report) -> Figure:
    words = (
        ("released", "released by the consumer", "--released"),
        ("lease_expired", "lease ran out", "--lapsed"),
        ("dead", "dead letters", "--dead"),
        ("expired", "expired", "--expired"),
    )
    data = [
        {
            "type": "bar",
            "name": label,
            "x": [point.at for point in report.points],
            "y": [point.counts.get(word, 0) for point in report.points],
            "marker": {"color": colour},
            "hovertemplate": "%{y:,}",
        }
        for word, label, colour in words
        if any(point.counts.get(word, 0) for point in report.points)
    ]
    highest = max((sum(point.counts.get(word, 0) for word, _, _ in words) for point in report.points), default=0)
    return {"data": data, "layout": {"barmode": "stack", "xaxis": time_axis(report), "yaxis": count_axis(highest)}}


def reasons_chart(reasons: Mapping[str, int]) -> Figure:
    ordered = sorted(reasons.items(), key=lambda pair: pair[1])[-8:]
    return bars(
        [name for name, _ in ordered], [count for _, count in ordered], "--dead", [number(n) for _, n in ordered]
    )


def slowest_chart(queues: Sequence[QueueLine], target_ms: int) -> Figure:
    """The queues with the highest p99, the slowest on top."""
    ordered = sorted((one for one in queues if one.p99 is not None), key=lambda one: one.p99 or 0)[-TOP_QUEUES:]
    values = [max(one.p99 or 0, 1) for one in ordered]
    figure = bars([one.name for one in ordered], values, "--p95", [duration(one.p99) for one in ordered])
    axis = duration_axis(max([*values, target_ms * 2]), headroom=4)
    figure["layout"] |= {"xaxis": axis, "margin": {"l": 8, "r": 8, "t": 24, "b": 8}, **target_line(target_ms, "x")}
    return figure


def heat_chart(heat: Heat) -> Figure:
    data = {
        "type": "heatmap",
        "x": list(heat.columns),
        "y": list(heat.rows),
        "z": [list(row) for row in heat.values],
        "colorscale": [list(stop) for stop in HEAT_COLOURS],
        "zmin": 0,
        "xgap": 2,
        "ygap": 2,
        "hovertemplate": "%{y}, %{x}: %{z:,} deliveries<extra></extra>",
        "colorbar": {"thickness": 10, "outlinewidth": 0, "tickfont": {"color": "--soft"}, "tickformat": "~s"},
    }
    layout = {
        "hovermode": "closest",
        "xaxis": {
            "type": "category",
            "showgrid": False,
            "ticks": "",
            "tickangle": 0,
            "nticks": 25 if len(heat.columns) <= 24 else 11,
        },
        "yaxis": {"type": "category", "showgrid": False, "ticks": "", "autorange": "reversed"},
    }
    return {"data": [data], "layout": layout}


def bars(names: Sequence[str], values: Sequence[int], colour: str, labels: Sequence[str]) -> Figure:
    """Horizontal bars, the last one on top, each with its label."""
    data = {
        "type": "bar",
        "orientation": "h",
        "x": list(values),
        "y": [shortened(name) for name in names],
        "text": list(labels),
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": colour},
        "customdata": [escape(name, quote=False) for name in names],
        "hovertemplate": "%{customdata}: %{text}<extra></extra>",
        "width": 0.6,
    }
    top = max([*values, 1])
    layout = {
        "hovermode": "closest",
        "showlegend": False,
        "xaxis": {"range": [0, top * 1.18], "tickformat": "~s", "nticks": 5},
        "yaxis": {"type": "category", "showgrid": False, "ticks": "", "ticksuffix": "  "},
    }
    return {"data": [data], "layout": layout}


def shortened(name: str, length: int = 34) -> str:
    """Cut for a chart, and escaped: plotly reads some tags and entities in its texts."""
    cut = name if len(name) <= length else name[: length - 1] + "…"
    return escape(cut, quote=False)


def time_axis(report: Report) -> Figure:
    return {
        "type": "date",
        "showgrid": False,
        "ticks": "outside",
        "range": [
            report.period.start_at - report.period.step_ms // 2,
            report.period.end_at - report.period.step_ms // 2,
        ],
        "hoverformat": "%a %d %b, %H:%M",
        "tickformatstops": [
            {"dtickrange": [None, 60_000], "value": "%H:%M:%S"},
            {"dtickrange": [60_000, 86_400_000], "value": "%H:%M\n%a %d %b"},
            {"dtickrange": [86_400_000, None], "value": "%a %d %b"},
        ],
    }


def count_axis(highest: float = 1000) -> Figure:
    """An axis from zero, without fractions of a job where there are few jobs."""
    steps = {"dtick": 1} if highest <= 5 else {"nticks": 6}
    return {"rangemode": "tozero", "tickformat": "~s", "zeroline": False, **steps}


def duration_axis(highest_ms: float, *, headroom: float = 1.5) -> Figure:
    """A logarithmic axis from 1 ms on, with a tick per power of ten."""
    return {
        "type": "log",
        "range": [-0.05, math.log10(max(highest_ms, 10) * headroom)],
        "tickvals": list(DECADES),
        "ticktext": ["1 ms", "10 ms", "100 ms", "1 s", "10 s", "100 s", "17 min", "2.8 h", "28 h"],
        "zeroline": False,
    }


def target_line(target_ms: int, axis: str) -> Figure:
    """A dashed line with its label, across the chart at the target."""
    other = "x" if axis == "y" else "y"
    shape = {
        "type": "line",
        f"{other}ref": "paper",
        f"{other}0": 0,
        f"{other}1": 1,
        f"{axis}0": target_ms,
        f"{axis}1": target_ms,
        "line": {"color": "--target", "width": 1.5, "dash": "dash"},
    }
    label = {
        "text": f"target {duration(target_ms)}",
        "showarrow": False,
        f"{other}ref": "paper",
        f"{other}": 1,
        f"{axis}": math.log10(target_ms),
        "xanchor": "right" if axis == "y" else "left",
        "yanchor": "bottom",
        "font": {"color": "--target", "size": 12},
    }
    return {"shapes": [shape], "annotations": [label]}


def height_for(rows: int, *, least: int = 120, each: int = 34) -> int:
    """The height in pixels of a chart with this many rows."""
    return max(least, 60 + each * rows)

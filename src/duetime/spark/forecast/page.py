"""The forecast as an HTML page: what falls due, what the consumers can do, and where that is not enough."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from markupsafe import Markup

from duetime.spark.forecast.model import Error, QueueForecast, Trouble
from duetime.spark.report.charts import Figure, count_axis, duration_axis, target_line
from duetime.spark.report.data import duration, moment, number, percent, short
from duetime.spark.report.page import (
    Cell,
    Column,
    Tile,
    chart,
    empty,
    section,
    table,
    tiles,
    verdict,
    write_page,
)

SHOWN = 8
"""How many queues have a chart of their own; the table has them all."""
MOST_ROWS = 200
LINES = ("--p95", "--accepted", "--acked", "--released", "--dead", "--lapsed", "--p99", "--expired")


@dataclass(frozen=True)
class ForecastPage:
    """What the page shows. `season` is in words, and empty if there is too little history."""

    queues: Sequence[QueueForecast]
    troubles: Sequence[Trouble]
    target_ms: int
    written_at: int
    season: str
    error: Error | None


def forecast_summary(page: ForecastPage) -> dict[str, Any]:
    """What readers without Spark, such as the console, show of the forecast: all queues together, and the troubles."""
    steps = list(zip(*(one.steps for one in page.queues), strict=True))
    return {
        "written_at": page.written_at,
        "start_at": steps[0][0].at,
        "step_ms": steps[1][0].at - steps[0][0].at,
        "target_ms": page.target_ms,
        "pending": [sum(one.pending for one in step) for step in steps],
        "expected": [round(sum(one.expected for one in step), 3) for step in steps],
        "troubles": [
            {**asdict(one), "queue": "/".join(one.name)}
            for one in sorted(page.troubles, key=lambda one: -one.worst_ms)[:MOST_ROWS]
        ],
    }


def write_forecast(page: ForecastPage) -> str:
    first, last = _ends(page.queues)
    body = [_verdict(page), tiles(_headlines(page)), _trouble_table(page), _lateness(page)]
    body += [_load(one) for one in page.queues[:SHOWN] if one.load > 0]
    body += [_queue_table(page), _trust(page)]
    return write_page(
        "What falls due, and whether it can be done",
        f"{moment(first)} to {moment(last)} (UTC), {number(len(page.queues))} queues",
        body,
        footer=f"Written by Duetime at {moment(page.written_at)} UTC from the store's jobs and the lake's history.",
    )


def _ends(queues: Sequence[QueueForecast]) -> tuple[int, int]:
    steps = queues[0].steps
    return steps[0].at, steps[-1].at + steps[1].at - steps[0].at


def _verdict(page: ForecastPage) -> Markup:
    if not page.troubles:
        return verdict(
            "good",
            "Everything will be on time",
            f"No queue is expected to be more than {duration(page.target_ms)} late.",
        )
    worst = max(page.troubles, key=lambda one: one.worst_ms)
    names = {one.name for one in page.troubles}
    others = f", and {len(names) - 1} more" if len(names) > 1 else ""
    return verdict(
        "bad",
        f"{'/'.join(worst.name)} will be up to {duration(worst.worst_ms)} late{others}",
        f"It begins at {moment(worst.start_at)} UTC and is worst at {moment(worst.worst_at)}.",
    )


def _headlines(page: ForecastPage) -> list[Tile]:
    pending = sum(step.pending for one in page.queues for step in one.steps)
    expected = sum(step.expected for one in page.queues for step in one.steps)
    hour = sum(step.load for one in page.queues for step in one.steps if step.at < _ends(page.queues)[0] + 3_600_000)
    late = len({one.name for one in page.troubles})
    totals = [sum(one.steps[index].load for one in page.queues) for index in range(len(page.queues[0].steps))]
    return [
        Tile("Waiting already", short(pending), "jobs that fall due in this time"),
        Tile(
            "Not pushed yet",
            short(expected),
            f"expected from {page.season}" if page.season else "the past says nothing yet",
        ),
        Tile("Next hour", short(hour), "jobs, known and expected", trend=totals),
        Tile("Queues in trouble", number(late), f"later than {duration(page.target_ms)}", "bad" if late else "good"),
    ]


def _trouble_table(page: ForecastPage) -> Markup:
    if not page.troubles:
        return Markup("")
    columns = [
        Column("queue", is_text=True),
        *map(Column, ("late from", "worst at", "how late", "on time again", "jobs affected")),
    ]
    ordered = sorted(page.troubles, key=lambda one: -one.worst_ms)[:MOST_ROWS]
    rows = [
        [
            Cell("/".join(one.name)),
            Cell(moment(one.start_at)),
            Cell(moment(one.worst_at)),
            Cell(duration(one.worst_ms), "bad"),
            Cell(moment(one.end_at) if one.end_at else "later than shown"),
            Cell(number(one.jobs)),
        ]
        for one in ordered
    ]
    return section("Which queue will be late, and when", "", table(columns, rows))


def _lateness(page: ForecastPage) -> Markup:
    late = [one for one in page.queues if one.worst.late_ms > page.target_ms][:SHOWN]
    about = "How late a job will be that falls due then, if the consumers stay as they are."
    if not late:
        return section("Lateness ahead", about, empty("None worth a line."))
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": one.title,
            "x": [step.at for step in one.steps],
            "y": [max(step.late_ms, 1) for step in one.steps],
            "customdata": [duration(step.late_ms) for step in one.steps],
            "hovertemplate": "%{customdata}",
            "line": {"color": colour, "width": 2.2},
        }
        for one, colour in zip(late, LINES, strict=False)
    ]
    highest = max(one.worst.late_ms for one in late)
    layout = {
        "xaxis": _time_axis(),
        "yaxis": duration_axis(max(highest, page.target_ms * 2)),
        **target_line(page.target_ms, "y"),
        "showlegend": True,
    }
    return section("Lateness ahead", about, chart("Lateness ahead", {"data": data, "layout": layout}, height=320))


def _load(one: QueueForecast) -> Markup:
    at = [step.at for step in one.steps]
    step_ms = at[1] - at[0]
    data: list[Figure] = [
        _bars("waiting already", at, [step.pending for step in one.steps], "--pending"),
        _bars("not pushed yet (expected)", at, [step.expected for step in one.steps], "--expected"),
    ]
    about = "Jobs that fall due, per " + duration(step_ms) + "."
    if one.capacity:
        room = one.capacity.jobs_in(step_ms)
        known = "at least " if one.capacity.is_floor else ""
        about += f" The consumers can do {known}{number(room)} in that time."
        line = {"color": "--capacity", "width": 2, "dash": "dash"}
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"capacity ({known}{number(room)})",
                "x": at,
                "y": [room] * len(at),
                "line": line,
                "hoverinfo": "skip",
            }
        )
        if one.worst.backlog > 0:
            line = {"color": "--backlog", "width": 2}
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": "left over",
                    "x": at,
                    "y": [step.backlog for step in one.steps],
                    "line": line,
                    "hovertemplate": "%{y:,.0f}",
                }
            )
    layout = {"barmode": "stack", "bargap": 0.05, "xaxis": _time_axis(), "yaxis": count_axis()}
    return section(one.title, about, chart(f"Load ahead of {one.title}", {"data": data, "layout": layout}, height=270))


def _bars(name: str, at: Sequence[int], values: Sequence[float], colour: str) -> Figure:
    return {
        "type": "bar",
        "name": name,
        "x": list(at),
        "y": list(values),
        "marker": {"color": colour},
        "hovertemplate": "%{y:,.0f}",
    }


def _time_axis() -> Figure:
    return {
        "type": "date",
        "showgrid": False,
        "hoverformat": "%a %d %b, %H:%M",
        "tickformatstops": [
            {"dtickrange": [None, 86_400_000], "value": "%H:%M\n%a %d %b"},
            {"dtickrange": [86_400_000, None], "value": "%a %d %b"},
        ],
    }


def _queue_table(page: ForecastPage) -> Markup:
    columns = [
        Column("queue", is_text=True),
        *map(Column, ("waiting", "expected", "capacity a minute", "busiest step", "worst lateness")),
    ]
    rows = [_queue_row(one, page.target_ms) for one in page.queues[:MOST_ROWS]]
    return section("All queues", "", table(columns, rows), is_long=True)


def _queue_row(one: QueueForecast, target_ms: int) -> list[Cell]:
    capacity = "unknown"
    if one.capacity:
        capacity = ("at least " if one.capacity.is_floor else "") + number(one.capacity.per_minute)
    late = one.worst.late_ms
    return [
        Cell(one.title),
        Cell(number(sum(step.pending for step in one.steps))),
        Cell(number(sum(step.expected for step in one.steps))),
        Cell(capacity, "" if one.capacity else "warn"),
        Cell(number(max(step.load for step in one.steps))),
        Cell(duration(late) if one.capacity else "-", "bad" if late > target_ms else ""),
    ]


def _trust(page: ForecastPage) -> Markup:
    about = (
        "What waits is counted exactly. What is not pushed yet is the average of the same hours of the past, "
        "adjusted by how the last day went; capacity is what was delivered per minute while there was a backlog, or "
        "the best minute where there never was one."
    )
    error = page.error
    if error is None or error.wape is None or error.pending_only is None:
        return section("How far to trust this", about, empty("There is too little history for a back-test."))
    ours = Tile("Back-test error", percent(error.wape, 1.0), f"of the load, over {error.origins} days")
    other = Tile("Waiting jobs alone", percent(error.pending_only, 1.0), "the error of counting nothing else")
    return section("How far to trust this", about, tiles([ours, other]))

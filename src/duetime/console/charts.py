"""Charts drawn on the server, as SVG that the page's own style sheet colours: bars and sparklines."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup

from duetime.console.formats import compact

FEW = 4
"""A line of fewer points would show a trend that is none."""
WIDTH = 1000
HEIGHT = 100


class Bar(NamedTuple):
    """`title` shows when it is pointed at; `link` is where it leads; `label` is below it, if any."""

    value: int
    title: str
    label: str = ""
    link: str = ""


def nice_top(highest: float) -> int:
    """The top of an axis, at least as high as the highest value: its half is a round number, too."""
    if highest <= 1:
        return 1
    power = 10 ** math.floor(math.log10(highest))
    tops = (round(step * power) for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10))
    return next(top for top in tops if top >= highest)


def bars(found: Sequence[Bar], *, about: str, kind: str = "", small: bool = False, capacity: float = 0) -> Markup:
    """A bar chart with its axes. Bars with a link are links, also without JavaScript. `capacity` draws a line.

    The drawing is stretched to the width of its place, so the text of the axes is not part of it. A chart without links
    is one image to a screen reader. What is inside an image cannot be reached, so a chart with links is a group.
    """
    linked = [bool(bar.link and bar.value) for bar in found]
    highest = max((bar.value for bar in found), default=0)
    top = nice_top(max(highest, capacity if capacity <= highest * 4 else 0))
    step = WIDTH / max(len(found), 1)
    gap = min(step * 0.25, 4.0)
    lines = (0, 50, 100) if not small else (100,)
    parts: list[Markup] = [
        Markup('<line class="grid-line" x1="0" x2="{}" y1="{}" y2="{}"/>').format(WIDTH, y, y) for y in lines
    ]
    for place, (bar, leads) in enumerate(zip(found, linked, strict=True)):
        tall = 0.0 if not bar.value else max(bar.value / top * HEIGHT, 1.5)
        left = place * step
        shape = Markup(
            '<rect class="hit" x="{:.1f}" y="0" width="{:.1f}" height="{}"/>'
            '<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/><title>{}</title>'
        ).format(left, step, HEIGHT, left + gap / 2, HEIGHT - tall, step - gap, tall, bar.title)
        if leads:
            shape = Markup('<a href="{}" aria-label="{}">{}</a>').format(bar.link, bar.title, shape)
        parts.append(Markup("<g>{}</g>").format(shape))
    if capacity and capacity <= top:
        y = HEIGHT - capacity / top * HEIGHT
        parts.append(Markup('<line class="capacity" x1="0" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(WIDTH, y, y))
    drawing = Markup(
        '<svg class="bars {}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="{}" aria-label="{}">{}</svg>'
    ).format(kind, WIDTH, HEIGHT, "group" if any(linked) else "img", about, Markup("").join(parts))
    ticks = [compact(top), compact(top / 2) if top > 1 else "", "0"] if not small else [compact(top), "0"]
    ys = Markup("").join(Markup("<span>{}</span>").format(tick) for tick in ticks)
    # Only attributes of SVG may place what the policy allows no inline style for.
    labels = [(place, bar.label) for place, bar in enumerate(found) if bar.label]
    marks = Markup("").join(
        Markup('<text x="{:.2f}%" y="13"{}{}>{}</text>').format(
            (place * step + (0 if place == 0 else step / 2)) / WIDTH * 100,
            Markup(' text-anchor="middle"') if place else Markup(""),
            Markup(' class="minor"') if number % 2 else Markup(""),  # a phone has no room for it
            label,
        )
        for number, (place, label) in enumerate(labels)
    )
    xs = Markup('<svg class="x-axis" width="100%" height="20">{}</svg>').format(marks)
    return Markup(
        '<div class="plot{}"><div class="ys" aria-hidden="true">{}</div>{}'
        '<div class="xs" aria-hidden="true">{}</div></div>'
    ).format(Markup(" small-plot") if small else Markup(""), ys, drawing, xs)


def chart_json(chart: Mapping[str, Any]) -> str:
    """A chart that the page's script draws: its columns as rows with a line for each, so that a refresh sends only the
    new ones.
    """
    rows = b",\n".join(msgspec.json.encode(row) for row in zip(*chart["data"], strict=True))
    return msgspec.json.encode({**chart, "data": 0, "rows": msgspec.Raw(b"[" + rows + b"]")}).decode()


def sparkline(values: Sequence[float], *, about: str) -> Markup:
    """A line without axes."""
    if len(values) < FEW:
        return Markup("")
    most = max(values) or 1
    points = " ".join(
        f"{place * 96 / (len(values) - 1):.1f},{20 - value / most * 18:.1f}" for place, value in enumerate(values)
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 96 22" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<polyline points="{}"/></svg>'
    ).format(about, points)


def spark_bars(values: Sequence[int], *, about: str) -> Markup:
    """Small bars without axes, such as failures by hour."""
    most, step = max(values, default=0) or 1, 96 / max(len(values), 1)
    shapes = Markup("").join(
        Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
            place * step, 21 - max(value / most * 19, 1.5), step - 1, max(value / most * 19, 1.5)
        )
        for place, value in enumerate(values)
        if value
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 96 22" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(about, shapes)

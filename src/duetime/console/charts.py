"""Charts drawn on the server, as SVG that the page's own style sheet colours: bars and sparklines."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from duetime.console.formats import compact

WIDTH = 720
SMALL_WIDTH = 360
HEIGHT = 166
FOOT = 24
HEAD = 14


class Bar(NamedTuple):
    """`title` shows when it is pointed at; `link` is where it leads; `label` stands below it, if any."""

    value: int
    title: str
    label: str = ""
    link: str = ""


def bars(found: Sequence[Bar], *, about: str, kind: str = "", small: bool = False) -> Markup:
    """A bar chart. Bars with a link are links, also without JavaScript. A `small` one has others beside it.

    A chart without links is one image to a screen reader. What is inside an image cannot be reached, so a chart with
    links is a group.
    """
    linked = [bool(bar.link and bar.value) for bar in found]
    highest = max((bar.value for bar in found), default=0)
    most, width = highest or 1, SMALL_WIDTH if small else WIDTH
    step = width / max(len(found), 1)
    room = HEIGHT - FOOT - HEAD
    parts: list[Markup] = [
        Markup('<line class="grid" x1="0" x2="{}" y1="{}" y2="{}"/>').format(width, HEIGHT - FOOT, HEIGHT - FOOT),
        Markup('<line class="grid faint" x1="0" x2="{}" y1="{}" y2="{}"/>').format(width, HEAD, HEAD),
        Markup('<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>').format(
            width, HEAD - 3, compact(highest)
        ),
    ]
    for place, (bar, leads) in enumerate(zip(found, linked, strict=True)):
        tall = 0.0 if not bar.value else max(bar.value / most * room, 2)
        left, wide = place * step, max(step - (2 if step > 6 else 0.5), 1)
        shape = Markup(
            '<rect class="hit" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>'
            '<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="1.5"/><title>{}</title>'
        ).format(left, HEAD, step, room, left, HEIGHT - FOOT - tall, wide, tall, bar.title)
        if leads:
            shape = Markup('<a href="{}" aria-label="{}">{}</a>').format(bar.link, bar.title, shape)
        parts.append(Markup("<g>{}</g>").format(shape))
        if bar.label:
            parts.append(Markup('<text class="tick" x="{:.1f}" y="{}">{}</text>').format(left, HEIGHT - 4, bar.label))
    return Markup('<svg class="bars {}" viewBox="0 0 {} {}" role="{}" aria-label="{}">{}</svg>').format(
        f"{kind} small" if small else kind,
        width,
        HEIGHT,
        "group" if any(linked) else "img",
        about,
        Markup("").join(parts),
    )


def sparkline(values: Sequence[float], *, about: str) -> Markup:
    """A line without axes, 120 by 28."""
    if len(values) < 2:
        return Markup("")
    most = max(values) or 1
    points = " ".join(
        f"{place * 120 / (len(values) - 1):.1f},{26 - value / most * 24:.1f}" for place, value in enumerate(values)
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 120 28" role="img" aria-label="{}"><polyline points="{}"/></svg>'
    ).format(escape(about), points)

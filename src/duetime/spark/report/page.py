"""One HTML file that needs nothing else: the shell of the report and of the forecast.

Parts are made by small functions that escape what they are given, so that a queue's name cannot become markup; the
type `Html` marks what is safe already. plotly.js comes from the installed package when the page is written. The page
asks the network for nothing, and its Content-Security-Policy would not let it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, NewType

import msgspec

from duetime.spark.report.plotly_source import plotly_source

Html = NewType("Html", str)

TONES = ("", "good", "warn", "bad")


def text(value: object) -> Html:
    return Html(escape(str(value)))


def join(parts: Iterable[Html], between: str = "\n") -> Html:
    return Html(between.join(parts))


@dataclass(frozen=True)
class Tile:
    """A headline number. `trend` draws a small line under it; `tone` is one of TONES."""

    name: str
    value: str
    note: str = ""
    tone: str = ""
    trend: Sequence[float] = ()


@dataclass(frozen=True)
class Cell:
    value: str
    tone: str = ""


@dataclass(frozen=True)
class Column:
    name: str
    is_text: bool = False


def tiles(items: Sequence[Tile]) -> Html:
    return Html(f'<section class="bare"><div class="tiles">{join(map(_tile, items))}</div></section>')


def _tile(tile: Tile) -> Html:
    return Html(
        f'<div class="tile {tile.tone}"><div class="name">{text(tile.name)}</div>'
        f'<div class="value">{text(tile.value)}</div><div class="note">{text(tile.note)}</div>'
        f"{sparkline(tile.trend)}</div>"
    )


def sparkline(values: Sequence[float]) -> Html:
    """A line of the values, from zero to their largest; nothing for less than two."""
    if len(values) < 2 or max(values) <= 0:
        return Html("")
    top, step = max(values), 100 / (len(values) - 1)
    line = " ".join(
        f"{'L' if index else 'M'}{index * step:.2f} {24 - 22 * value / top:.2f}" for index, value in enumerate(values)
    )
    return Html(
        '<svg viewBox="0 0 100 26" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="area" d="{line} L100 26 L0 26 Z"/><path d="{line}"/></svg>'
    )


def verdict(tone: str, headline: str, explanation: str) -> Html:
    sign = {"good": "✓", "warn": "!", "bad": "✕"}[tone]
    return Html(
        f'<div class="verdict {tone}"><span class="sign" aria-hidden="true">{sign}</span>'
        f"<div><b>{text(headline)}</b><span>{text(explanation)}</span></div></div>"
    )


def section(title: str, about: str, *parts: Html, is_long: bool = False) -> Html:
    lead = f'<p class="about">{text(about)}</p>' if about else ""
    kind = ' class="long"' if is_long else ""
    return Html(f"<section{kind}><h2>{text(title)}</h2>{lead}{join(parts)}</section>")


def side_by_side(left: Html, right: Html) -> Html:
    return Html(f'<div class="two">{left}{right}</div>')


def empty(message: str) -> Html:
    return Html(f'<p class="empty">{text(message)}</p>')


def chart(label: str, figure: Mapping[str, Any], *, height: int) -> Html:
    """A plotly figure as plain data: {"data": [...], "layout": {...}}; `--name` in it is a colour of page.css."""
    # In a script element only "</" and "<!--" could end the data early; in JSON a "<" stands in strings alone.
    data = msgspec.json.encode(figure).decode().replace("<", "\\u003c")
    return Html(
        f'<div class="chart" style="height:{height}px" role="img" aria-label="{text(label)}"></div>'
        f'<script type="application/json">{data}</script>'
    )


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, total: Sequence[Cell] = ()) -> Html:
    head = "".join(f"<th{_class('text' if one.is_text else '')}>{text(one.name)}</th>" for one in columns)
    body = [_row(columns, row, "") for row in rows]
    if total:
        body.append(_row(columns, total, ' class="sum"'))
    return Html(
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    )


def _row(columns: Sequence[Column], row: Sequence[Cell], attributes: str) -> str:
    cells = zip(columns, row, strict=True)
    return f"<tr{attributes}>{''.join(_cell(column, cell) for column, cell in cells)}</tr>"


def _cell(column: Column, cell: Cell) -> str:
    tone = cell.tone or ("zero" if cell.value in ("0", "-") else "")
    return f"<td{_class(' '.join(filter(None, ('text' if column.is_text else '', tone))))}>{text(cell.value)}</td>"


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""


def write_page(title: str, lead: str, body: Sequence[Html], *, footer: str) -> str:
    """The whole file, about 5 MB, nearly all of it plotly.js."""
    folder = files("duetime.spark.report")
    return Template(folder.joinpath("page.html").read_text()).substitute(
        title=text(title),
        lead=text(lead),
        footer=text(footer),
        body=join(body),
        css=folder.joinpath("page.css").read_text(),
        script=folder.joinpath("page.js").read_text(),
        plotly=plotly_source(),
    )

"""One HTML file that needs nothing else: the shell of the report and of the forecast, and the parts that both use.

The HTML is in page.html and parts.html. Jinja2 escapes what it is given, so that a queue's name cannot become
markup; the type `Markup` marks what is safe already. plotly.js comes from the installed package when the page is
written. The page asks the network for nothing, and its Content-Security-Policy would not let it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from duetime.model.errors import InvalidRequest

TONES = ("", "good", "warn", "bad")

_TEMPLATES = Environment(
    loader=PackageLoader("duetime.spark.report", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)


@dataclass(frozen=True)
class Tile:
    """A headline number. `trend` draws a small line under it; `tone` is one of TONES."""

    name: str
    value: str
    note: str = ""
    tone: str = ""
    trend: Sequence[float] = ()

    @property
    def line(self) -> str:
        """The trend as an SVG path, from zero to its largest value; "" for less than two values."""
        if len(self.trend) < 2 or max(self.trend) <= 0:
            return ""
        top, step = max(self.trend), 100 / (len(self.trend) - 1)
        return " ".join(
            f"{'L' if index else 'M'}{index * step:.2f} {24 - 22 * value / top:.2f}"
            for index, value in enumerate(self.trend)
        )


@dataclass(frozen=True)
class Cell:
    value: str
    tone: str = ""


@dataclass(frozen=True)
class Column:
    name: str
    is_text: bool = False


@dataclass(frozen=True)
class Term:
    """A summand of an equation, its name written below the number."""

    name: str
    value: str
    tone: str = ""


def tiles(items: Sequence[Tile]) -> Markup:
    return _part("tiles", items)


def verdict(tone: str, headline: str, explanation: str) -> Markup:
    return _part("verdict", tone, headline, explanation)


def section(title: str, about: str, *parts: Markup, is_long: bool = False) -> Markup:
    return _part("section", title, about, parts, is_long)


def side_by_side(left: Markup, right: Markup) -> Markup:
    return _part("side_by_side", left, right)


def empty(message: str) -> Markup:
    return _part("empty", message)


def more(count: str) -> Markup:
    """Says how many rows a table leaves out."""
    return _part("more", count)


def chart(label: str, figure: Mapping[str, Any], *, height: int) -> Markup:
    """A plotly figure as plain data: {"data": [...], "layout": {...}}; `--name` in it is a colour of page.css."""
    # In a script element only "</" and "<!--" could end the data early; in JSON a "<" occurs in strings alone.
    data = msgspec.json.encode(figure).decode().replace("<", "\\u003c")
    return _part("chart", label, Markup(data), height)


def equation(left: Sequence[Term], right: Sequence[Term]) -> Markup:
    return _part("equation", left, right)


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, total: Sequence[Cell] = ()) -> Markup:
    return _part("table", columns, rows, total)


def _part(macro: str, *arguments: object) -> Markup:
    return getattr(_TEMPLATES.get_template("parts.html").module, macro)(*arguments)


def write_page(title: str, lead: str, body: Sequence[Markup], *, footer: str) -> str:
    """The whole file, about 5 MB, nearly all of it plotly.js."""
    folder = files("duetime.spark.report")
    return _TEMPLATES.get_template("page.html").render(
        title=title,
        lead=lead,
        footer=footer,
        body=body,
        css=Markup(folder.joinpath("page.css").read_text()),
        script=Markup(folder.joinpath("page.js").read_text()),
        plotly=Markup(plotly_source()),
    )


# --- plotly
#
# plotly.js as text, from the installed package `plotly`.
#
# No other module knows where it comes from; this repository has no copy of it.


END_OF_SCRIPT = "</script"


def plotly_source() -> str:
    """The source, ready for a script element. Raises InvalidRequest if plotly is not installed."""
    try:
        from plotly import offline  # noqa: PLC0415 # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError:
        raise InvalidRequest("a report needs plotly: pip install 'duetime[spark]'") from None
    source: str = offline.get_plotlyjs()
    # Within a string "<\/script" is the same text and does not end the element.
    return source.replace(END_OF_SCRIPT, "<\\/script")

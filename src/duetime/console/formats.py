"""How numbers, times and bodies are written on the pages."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, cast

from markupsafe import Markup, escape

from duetime.model.clock import MAX_INSTANT
from duetime.model.humanise import SPACED_UNITS, Units, span

SHOWN_BODY = 64 * 1024
"""How many bytes of a body a page shows; the download has all of them."""
SHOWN_JSON = 4 * SHOWN_BODY
"""JSON that would be longer than this with its line breaks and indents is shown as it is."""
MOST_COLORED = 32 * 1024
_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")(:)?|[\w.+-]+')
NONE = "\N{EN DASH}"


def number(value: float) -> str:
    """`12,345`, and `0.4` for small rates."""
    if value >= 100 or value == round(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if value >= 0.1 else f"{value:.2f}"


def compact(value: float) -> str:
    """`999`, `12.3k`, `4.5M`, for axes and tiles."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            scaled = value / (1000 if unit == "k" else size)
            return f"{scaled:.0f}{unit}" if scaled >= 100 else f"{scaled:.1f}{unit}"
    return number(value)


def percent(share: float) -> str:
    """`44.7 %` of 0.447, `90 %` of 0.9."""
    return f"{share * 100:.1f}".removesuffix(".0") + " %"


def seconds(value: float | None, units: Units = SPACED_UNITS) -> str:
    """Lateness: `5 ms`, `1.5 s`; a dash where there is none."""
    if value is None:
        return NONE
    return units["ms"].format(f"{value * 1000:.3g}") if value < 1 else span(value * 1000, units)


def full_time(at_ms: int, zone: tzinfo = UTC) -> str:
    """`2026-11-15 09:00:00.000 UTC`; a dash for 0 and for times beyond the calendar."""
    if not 0 < at_ms <= MAX_INSTANT:
        return NONE
    at = _at(at_ms, zone)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d} {zone_name(zone)}"


def clock_time(at_ms: int, zone: tzinfo, now_ms: int) -> str:
    """`09:00:00` today, `11-15 09:00` this year, else `2027-11-15 09:00`."""
    if not 0 < at_ms <= MAX_INSTANT:
        return NONE
    at, now = _at(at_ms, zone), _at(now_ms, zone)
    if at.date() == now.date():
        return f"{at:%H:%M:%S}"
    return f"{at:%m-%d %H:%M}" if at.year == now.year else f"{at:%Y-%m-%d %H:%M}"


def zone_name(zone: tzinfo) -> str:
    return str(zone)


def _at(at_ms: int, zone: tzinfo) -> datetime:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)).astimezone(zone)


def body_text(body: bytes) -> tuple[str, str]:
    """(kind, text): JSON with its numbers as they are, text, or hex for anything else."""
    shown = body[:SHOWN_BODY]
    # A body that is too long may have been cut within a character.
    text = shown.decode(errors="ignore") if len(body) > SHOWN_BODY else _decoded(shown)
    if text is None:
        return _hex(shown)
    if any(ord(letter) < 32 and letter not in "\n\r\t" for letter in text):
        return _hex(shown)
    if len(body) <= SHOWN_BODY and text[:1] in "{[":
        try:
            # Numbers are kept as text: as a float, 1e5 or a long decimal would be printed differently.
            value = json.loads(text, parse_int=_Verbatim, parse_float=_Verbatim)
            return "JSON", _pretty(value) or text
        except (ValueError, RecursionError):
            pass
    return "text", text


def colored(kind: str, text: str) -> Markup:
    """Keys, texts and other values of JSON in elements of their own, which the style sheet colours."""
    if kind != "JSON" or len(text) > MOST_COLORED:
        return escape(text)
    parts: list[Markup] = []
    end = 0
    for found in _TOKEN.finditer(text):
        quoted, colon = found[1] or "", found[2] or ""
        name = "key" if colon else "text" if quoted else "value"
        parts.append(escape(text[end : found.start()]))
        parts.append(Markup('<span class="json-{}">{}</span>{}').format(name, quoted or found[0], colon))
        end = found.end()
    return Markup("").join([*parts, escape(text[end:])])


def _decoded(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


class _Verbatim(str):
    """A number as it was written in a JSON text."""

    __slots__ = ()


def _pretty(value: Any) -> str | None:
    """None if the text is too long: the indents of deeply nested JSON are many times as long as the JSON."""
    pieces: list[str] = []
    length = 0
    for piece in _pieces(value, "\n"):
        pieces.append(piece)
        length += len(piece)
        if length > SHOWN_JSON:
            return None
    return "".join(pieces)


def _pieces(value: Any, line: str) -> Iterator[str]:
    """`line` is a line break and the indent of the value."""
    deeper = line + "  "
    if isinstance(value, _Verbatim):
        yield str(value)
    elif isinstance(value, dict) and value:
        for at, (key, item) in enumerate(cast("dict[str, Any]", value).items()):
            yield f"{',' if at else '{'}{deeper}{json.dumps(key, ensure_ascii=False)}: "
            yield from _pieces(item, deeper)
        yield f"{line}}}"
    elif isinstance(value, list) and value:
        for at, item in enumerate(cast("list[Any]", value)):
            yield f"{',' if at else '['}{deeper}"
            yield from _pieces(item, deeper)
        yield f"{line}]"
    else:
        yield json.dumps(value, ensure_ascii=False)


def _hex(body: bytes) -> tuple[str, str]:
    rows: list[str] = []
    for at in range(0, min(len(body), 16 * 256), 16):
        row = body[at : at + 16]
        seen = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{at:08x}  {row.hex(' '):<47}  {seen}")
    return "hex", "\n".join(rows)

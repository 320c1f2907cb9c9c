"""What an error says at a glance: its name for grouping, and a traceback without the frames of the framework.

Errors are whatever consumers report: tracebacks of Python, PHP or Java, an HTTP answer, one line, or nothing. Anybody
may send them, so every function here is linear in a bounded part of the text.
"""

import re
from typing import NamedTuple

LOOKED_AT = 16_384
"""Characters of an error that are read; the end of a traceback says what happened."""
LONGEST = 200
TRACEBACK = "Traceback (most recent call last)"
FRAMEWORK = ("/duetime/", "/asyncio/", "/concurrent/futures/", "/threading.py", "/contextlib.py", "<frozen ")
"""Parts of the paths of frames that say nothing about the task."""

_FRAME = re.compile(r'\s*File "([^"\n]{1,500})", line \d+')
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,120}(?::|$)")
_VARIES = re.compile(
    r"0x[0-9a-fA-F]+"
    r"|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
    r"|\b[0-9A-HJKMNP-TV-Z]{26}\b"
    r"|\b[0-9a-f]{16,64}\b"
    r"|\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:\d\d)?)?"
    r"|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"
    r"|(?<![\w.])(?P<number>\d+(?:[.,:]\d+)*)(?P<unit>\s?(?:ms|s|m|h|min|sec|seconds|minutes|bytes|[KMG]i?B)\b)?(?!\w)"
)
_CODE = re.compile(r"[1-5]\d\d")
_BEFORE_CODE = re.compile(
    r"(?:^|[:(\[=]\s?|\b(?:status|code|http|smtp|error|answered|returned|got|with)\s)$", re.IGNORECASE
)
"""The text before a number that is a status of HTTP or SMTP. Such a code is kept; the number in `customer 297` is not
one.
"""


class ErrorName(NamedTuple):
    """`kind` is the type of the exception, empty if the error names none; `line` is the line that says most."""

    kind: str
    line: str


def name_error(error: str) -> ErrorName:
    """What groups of jobs are called: the line has an N for each number, address, time and id that varies from job to
    job. Codes such as MD01 and 503 are kept.
    """
    kind, line = _main_line(error)
    return ErrorName(kind, _VARIES.sub(_replace, line)[:LONGEST])


def quote_error(error: str) -> ErrorName:
    """What one job is shown with: the line as it is."""
    kind, line = _main_line(error)
    return ErrorName(kind, line[:LONGEST])


def _main_line(error: str) -> ErrorName:
    """The type and last line of a traceback, else the first line."""
    text = error[-LOOKED_AT:].strip()
    if not text:
        return ErrorName("", "")
    line = _last_line(text) if TRACEBACK in error or _FRAME.search(text) else text.split("\n", 1)[0]
    line = line.strip()
    found = _EXCEPTION.match(line)
    kind = found[0].rstrip(":") if found and _is_type(found[0].rstrip(":")) else ""
    return ErrorName(kind, line[: 2 * LONGEST])


def _last_line(text: str) -> str:
    """The last line that begins an exception: its message may have more lines, and notes may follow."""
    lines = [line for line in text.splitlines() if line.strip()]
    after_frames = 0
    for place, line in enumerate(lines):
        if _FRAME.match(line) or line.startswith((" ", "\t")):
            after_frames = place + 1
    for line in lines[after_frames:]:
        found = _EXCEPTION.match(line.strip(" |+-"))
        if found and _is_type(found[0].rstrip(":")):
            return line.strip(" |+-")
    return lines[-1].strip(" |+-")


def _is_type(name: str) -> bool:
    last = name.rpartition(".")[2]
    return bool(last) and (last[0].isupper() and not last.isupper()) and " " not in name


def _replace(found: re.Match[str]) -> str:
    number, unit = found["number"], found["unit"]
    if number is None:
        return "N"
    before = found.string[max(found.start() - 10, 0) : found.start()]
    is_code = _CODE.fullmatch(number) and _BEFORE_CODE.search(before)
    if not unit and (is_code or before.endswith(("Errno ", "errno "))):
        return number
    return "N" + (unit or "")


class FoldedTrace(NamedTuple):
    """A traceback without `hidden` frames of the framework; the same text if there are none."""

    text: str
    hidden: int


def fold_frames(error: str) -> FoldedTrace:
    kept: list[str] = []
    hidden, skipping = 0, False
    for line in error.splitlines():
        frame = _FRAME.match(line)
        if frame:
            skipping = any(part in frame[1] for part in FRAMEWORK)
            hidden += skipping
        elif not line.startswith((" ", "\t")):
            skipping = False
        if not skipping:
            kept.append(line)
    # A trace that is all framework is about the framework.
    if not hidden or not any(_FRAME.match(line) for line in kept):
        return FoldedTrace(error, 0)
    return FoldedTrace("\n".join(kept), hidden)

"""Times as people type them: `5 minutes`, `1h30`, `tomorrow 09:00`, `fri 18:00`, `2026-11-15 09:00`, `-1h`.

The console and the CLI read due times and filters with it; each passes the time zone of its user. Programs use
`clock.duration_ms` and `clock.instant_ms`, which refuse everything that depends on a zone.
"""

import re
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

from duetime.model.clock import MAX_DURATION, MAX_TIME_TEXT, SystemClock, bare_instant_ms, duration_ms, instant_ms
from duetime.model.errors import InvalidTime

EXAMPLES = "10m, 1h30, tomorrow 09:00 or 2026-11-15 09:00"

_UNITS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds", "毫秒"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds", "秒", "秒钟"), 1000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes", "分", "分钟"), 60_000),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours", "小时"), 3_600_000),
    **dict.fromkeys(("d", "day", "days", "天"), 86_400_000),
    **dict.fromkeys(("w", "week", "weeks", "周"), 604_800_000),
}
_DAYS = {
    **dict.fromkeys(("today", "今天"), 0),
    **dict.fromkeys(("tomorrow", "明天"), 1),
    **dict.fromkeys(("yesterday", "昨天"), -1),
    **dict.fromkeys(("后天",), 2),
}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SHORT = 3
_AMOUNT = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([a-z]+|[\u4e00-\u9fff]+)?\s*(?:,|and\b)?\s*", re.ASCII)
_CLOCK = re.compile(r"(\d{1,2})(?::(\d{2})(?::(\d{2}))?)?\s*(am|pm)?", re.ASCII)
_AFTER_BARE = {3_600_000: 60_000, 60_000: 1000}
"""The unit of a bare number that follows hours or minutes: 1h30 is 1 h 30 m."""


class When(NamedTuple):
    """A delay from now in milliseconds (negative for the past), or an instant; the other one is None."""

    delay_ms: int | None = None
    due_at: int | None = None

    def at(self, now_ms: int) -> int:
        return self.due_at if self.due_at is not None else max(now_ms + (self.delay_ms or 0), 0)


def read_when(text: str, *, now_ms: int, zone: tzinfo | None) -> When:
    """Raises InvalidTime. A text without a zone is read in `zone`, None for the host's own; a time of day without a day
    is the next one.
    """
    given = " ".join(text.split())
    if len(given) > MAX_TIME_TEXT:
        raise InvalidTime(f"time must have at most {MAX_TIME_TEXT} characters, got {len(given)}: {given[:20]!r}...")
    lower = given.lower()
    if lower in ("now", "现在"):
        return When(delay_ms=0)
    if (instant := bare_instant_ms(given)) is not None:
        return When(due_at=instant)
    for read in (_delay, _day, _date):
        if (found := read(lower if read is not _date else given, now_ms, zone)) is not None:
            return found
    raise InvalidTime(f"time must be like {EXAMPLES}, got {given!r}")


def read_due(text: str, *, zone: tzinfo | None) -> When:
    """Reads when a job is due, now or later by the host's clock. Raises InvalidTime."""
    when = read_when(text, now_ms=SystemClock().now_ms(), zone=zone)
    if when.delay_ms is not None and when.delay_ms < 0:
        raise InvalidTime(f"time must not be in the past, got {text!r}")
    return when


def _delay(text: str, now_ms: int, zone: tzinfo | None) -> When | None:
    """`10m`, `in 5 minutes`, `1 hour 30`, `-1h`, `2 days ago`; a bare number is seconds."""
    sign = 1
    if text.startswith("-"):
        sign, text = -1, text[1:].strip()
    for ending in (" ago", "前"):
        if text.endswith(ending):
            sign, text = -1, text.removesuffix(ending).strip()
    text = text.removeprefix("in ").removeprefix("+").removesuffix("后").strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return When(delay_ms=sign * duration_ms(text))
    at, total, unit = 0, 0.0, 0
    while at < len(text):
        part = _AMOUNT.match(text, at)
        if part is None:
            return None
        name = part[2]
        unit = _AFTER_BARE.get(unit, 0) if name is None else _UNITS.get(name, 0)
        if not unit or (name is None and part.end() < len(text)):
            return None
        total, at = total + float(part[1]) * unit, part.end()
    if total > MAX_DURATION:
        raise InvalidTime(f"delay must be at most 136 years, got {text!r}")
    return When(delay_ms=sign * round(total)) if text else None


def _day(text: str, now_ms: int, zone: tzinfo | None) -> When | None:
    """`tomorrow`, `tomorrow 9am`, `fri 18:00`, `09:00`; a day without a time is its midnight."""
    now = datetime.fromtimestamp(now_ms / 1000, zone)
    first, _, rest = text.partition(" ")
    day, clock = _named_day(first, now), rest.removeprefix("at ")
    if day is None:
        if ":" not in text and not text.endswith(("am", "pm")):
            return None
        clock = text.removeprefix("at ")
    if not clock:
        assert day is not None
        return When(due_at=_ms(day.replace(hour=0, minute=0, second=0, microsecond=0)))
    found = _CLOCK.fullmatch(clock)
    if found is None:
        return None
    hour, minute, second = int(found[1]), int(found[2] or 0), int(found[3] or 0)
    if found[4]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if found[4] == "pm" else 0)
    if hour > 23 or minute > 59 or second > 59:
        return None
    at = (day or now).replace(hour=hour, minute=minute, second=second, microsecond=0)
    if day is None and at <= now:
        at += timedelta(days=1)
    return When(due_at=_ms(at))


def _named_day(name: str, now: datetime) -> datetime | None:
    if name in _DAYS:
        return now + timedelta(days=_DAYS[name])
    for number, weekday in enumerate(_WEEKDAYS):
        if name in (weekday, weekday[:_SHORT]):
            return now + timedelta(days=(number - now.weekday()) % 7 or 7)
    return None


def _date(text: str, now_ms: int, zone: tzinfo | None) -> When | None:
    """A date, with or without a time, in `zone` unless it names another."""
    try:
        at = datetime.fromisoformat(text.removesuffix(" UTC") + ("Z" if text.endswith(" UTC") else ""))
    except ValueError:
        return None
    return When(due_at=_ms(at if at.tzinfo else at.replace(tzinfo=zone)))


def _ms(at: datetime) -> int:
    return instant_ms(at if at.tzinfo else at.astimezone())

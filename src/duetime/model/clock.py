"""Clocks, durations and instants.

A clock has two times: `now_ms` is the wall clock that stamps jobs; `monotonic` never goes back and measures waits.
Tests set a ManualClock by hand. `duration_ms` accepts `90`, `"10s"` or a `timedelta`; `instant_ms` accepts an aware
datetime, RFC 3339 or epoch milliseconds. Both refuse ambiguous values: a naive datetime, a boolean, a number that is
not finite, an epoch number that looks like seconds.
"""

import math
import re
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol
from weakref import WeakKeyDictionary
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from duetime.model.errors import InvalidTime

MAX_INSTANT = 253_402_300_799_999
"""The last millisecond of the year 9999."""
MAX_DURATION = 4_294_967_295_000
"""2³² - 1 seconds, about 136 years: the longest duration that lmstfy's clients may ask for."""
SECONDS = range(100_000_000, 100_000_000_000)
"""Numbers that are refused as instants, because they can only be epoch seconds: as seconds they lie between 1973 and
5138, as milliseconds between January 1970 and March 1973.
"""
MAX_TIME_TEXT = 64
"""The longest text of a duration or an instant. Clients send these texts, and the event loop parses them."""

_UNITS = {"": 1000, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+|\d+(?:\.\d+)?", re.ASCII)
_NUMBER = re.compile(r"\d{1,20}(?:\.\d{1,20})?", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw]|)", re.ASCII)


class Clock(Protocol):
    def now_ms(self) -> int:
        """Epoch milliseconds, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...


class SystemClock:
    """The host's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock for tests. It moves only by `advance` and `set`."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self._start = self._now = now_ms

    def now_ms(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return (self._now - self._start) / 1000

    def advance(self, duration: "Duration") -> int:
        """Move forward and return the new time."""
        self._now += duration_ms(duration)
        return self._now

    def set(self, now_ms: int) -> None:
        """Jump to a time, also backwards, as a wall clock may."""
        self._now = now_ms


Duration = int | float | str | timedelta
"""Seconds as a number, text with units (`"1h30m"`, `"250ms"`), or a timedelta."""
Instant = int | str | datetime
"""Epoch milliseconds, RFC 3339 text, or an aware datetime."""


def duration_ms(value: Duration) -> int:
    """Milliseconds, rounded up, so that no job is early."""
    match value:
        case bool():
            raise InvalidTime(f"duration must be a number of seconds or a text like '5m', got {value!r}")
        case int():
            ms = value * 1000
        case float():
            if not math.isfinite(value):
                raise InvalidTime(f"duration must be finite, got {value!r}")
            ms = _ceil(value * 1000)
        case timedelta():
            whole, rest = divmod(value, timedelta(milliseconds=1))
            ms = whole + bool(rest) if value >= timedelta(0) else -1
        case str():
            ms = _parse_duration(_check_length(value, "duration"))
        case _:
            raise InvalidTime(f"duration must be like 90, '10s', '5m', '3d' or a timedelta, got {value!r}")
    if ms < 0:
        raise InvalidTime(f"duration must not be negative, got {value!r}")
    if ms > MAX_DURATION:
        raise InvalidTime(f"duration must be at most 136 years, got {value!r}")
    return ms


def delay_ms(value: Duration) -> int:
    """Like `duration_ms`, but a negative delay counts as 0: the job is due immediately."""
    negative = value < timedelta(0) if isinstance(value, timedelta) else isinstance(value, int | float) and value < 0
    return 0 if negative else duration_ms(value)


def _check_length(text: str, what: str) -> str:
    if len(text) > MAX_TIME_TEXT:
        raise InvalidTime(f"{what} must have at most {MAX_TIME_TEXT} characters, got {len(text)}: {text[:20]!r}...")
    return text


@lru_cache(256)
def _parse_duration(text: str) -> int:
    stripped = text.strip().lower()
    if not _DURATION.fullmatch(stripped):
        raise InvalidTime(f"duration must be like 90, '10s', '5m', '3d' or '1h30m', got {text!r}")
    return _ceil(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(stripped) if number))


def _ceil(value: float) -> int:
    # A value out of bounds may be infinite, which cannot be rounded. The caller refuses both of these results.
    if value < 0:
        return -1
    if value > MAX_DURATION:
        return MAX_DURATION + 1
    # 0.07 s is 70 ms and not 71: remove the error of binary fractions before rounding up.
    return math.ceil(round(value, 6))


def instant_ms(value: Instant) -> int:
    """Epoch milliseconds, rounded up, so that no job is early."""
    match value:
        case bool():
            raise InvalidTime(f"instant must be a datetime, RFC 3339 text or epoch milliseconds, got {value!r}")
        case int():
            ms = value
            _refuse_seconds(ms)
        case datetime():
            ms = _from_datetime(value)
        case str():
            ms = _parse_instant(_check_length(value, "instant"))
        case _:
            _refuse_seconds(value)
            raise InvalidTime(f"instant must be an aware datetime, RFC 3339 text or epoch milliseconds, got {value!r}")
    if not 0 <= ms <= MAX_INSTANT:
        raise InvalidTime(f"instant must be between 1970 and 9999, got {value!r}")
    return ms


def bare_instant_ms(text: str) -> int | None:
    """Reads a bare number where both a delay and an instant are allowed. Returns None if the text is not an instant.

    A bare number of at least 100,000,000 is an instant; a delay of that many seconds (over three years) needs a unit.
    """
    stripped = text.strip()
    if not _NUMBER.fullmatch(stripped) or float(stripped) < SECONDS.start:
        return None
    try:
        return instant_ms(stripped)
    except InvalidTime as error:
        raise InvalidTime(f"{error.message}; a delay of over three years needs a unit: {stripped}s") from None


def _refuse_seconds(number: object) -> None:
    if isinstance(number, int | float) and SECONDS.start <= number < SECONDS.stop:
        raise InvalidTime(f"instant must be epoch milliseconds; {number} looks like seconds, give {int(number * 1000)}")


def _parse_instant(text: str) -> int:
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit():
        ms = int(stripped) if len(stripped) <= len(str(MAX_INSTANT)) else MAX_INSTANT + 1
        _refuse_seconds(ms)
        return ms
    try:
        return _from_datetime(datetime.fromisoformat(stripped))
    except ValueError:
        raise InvalidTime(f"instant must be like 2026-11-15T09:00:00Z or epoch milliseconds, got {text!r}") from None


def _from_datetime(value: datetime) -> int:
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidTime(f"datetime must have a time zone, got {value.isoformat()}")
    return -(-(value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1))


def time_zone(name: str) -> ZoneInfo:
    """The time zone of a name such as Asia/Shanghai. Raises InvalidTime."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidTime(f"time zone must be text, got {name!r:.60}")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError for a folder of zones, or a name that is too long
        raise InvalidTime(f"unknown time zone: {name[:MAX_TIME_TEXT]!r}") from None


def rfc3339(at_ms: int) -> str:
    """`2026-11-15T09:00:00.000Z`, for people and logs."""
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- pauses that end together: loops that check something about once a second wake a process once, not one by one

TICK_S = 1.0


class HasTime(Protocol):
    """An event loop."""

    def time(self) -> float: ...


_first: "WeakKeyDictionary[HasTime, float]" = WeakKeyDictionary()
"""When each event loop first asked. Its ticks count from there, so that processes do not check in the same instant."""


def to_tick(seconds: float, loop: HasTime) -> float:
    """Returns a pause of `seconds`, shortened so that it ends with a tick of the event loop. A pause of less than a
    tick stays as it is.
    """
    if seconds < TICK_S:
        return seconds
    now = loop.time()
    passed = (now - _first.setdefault(loop, now)) % TICK_S
    pause = seconds - (passed + seconds) % TICK_S
    # A timer may fire a moment early; the tick that is just about to come was meant.
    return pause if pause > TICK_S / 10 else pause + TICK_S

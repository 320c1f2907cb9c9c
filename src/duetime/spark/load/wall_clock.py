"""Turns times without a zone, which are in the session's time zone, into instants. Runs on executors.

Of an hour that the clock shows twice the first is meant, and an hour that it skips is counted on from where the gap
begins, as Spark does it when it casts to timestamp.
"""

import datetime
import re
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute as pc  # pyright: ignore[reportMissingTypeStubs]

from duetime.model.errors import InvalidSettings

arrow: Any = pa
kernels: Any = pc

QUARTER_US = 900_000_000
"""Clocks are put forward and back at whole quarters of an hour, so all times within one quarter have one offset."""
_FIXED = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")
_EPOCH = datetime.datetime(1970, 1, 1)


def instants(wall_us: Any, zone_name: str) -> Any:
    """From microseconds since 1970 on the clocks of a zone to microseconds since 1970 in UTC."""
    zone = read_zone(zone_name)
    quarters = kernels.fill_null(wall_us, 0).to_numpy(zero_copy_only=False) // QUARTER_US
    known = arrow.array(quarters, arrow.int64()).dictionary_encode()
    offsets = arrow.array([_offset_us(quarter, zone) for quarter in known.dictionary.to_pylist()], arrow.int64())
    return kernels.subtract(wall_us, offsets.take(known.indices))


def _offset_us(quarter: int, zone: datetime.tzinfo) -> int:
    try:
        wall = _EPOCH + datetime.timedelta(microseconds=quarter * QUARTER_US)
    except OverflowError:  # beyond the years that a job can be due in
        return 0
    offset = wall.replace(tzinfo=zone).utcoffset()
    return 0 if offset is None else offset // datetime.timedelta(microseconds=1)


def read_zone(name: str) -> datetime.tzinfo:
    """A zone as Spark's sessions name it: Europe/Berlin, UTC, +05:30, GMT+8."""
    if fixed := _FIXED.fullmatch(name):
        sign, *parts = fixed.groups(default="0")
        hours, minutes, seconds = (int(part) for part in parts)
        offset = datetime.timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return datetime.timezone(-offset if sign == "-" else offset)
    try:
        return ZoneInfo("UTC" if name == "Z" else name)
    except (ZoneInfoNotFoundError, ValueError):
        raise InvalidSettings(f"this machine knows no time zone {name!r}: cast due_at to timestamp") from None

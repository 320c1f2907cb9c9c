"""Job ids in lmstfy's layout: a ULID whose last four bytes are the delay; a leading `1` marks version 1."""

from duetime.model.ids import ALPHABET, LENGTH, IdMaker

VERSION_1 = "1"

_TIME = 10
"""The characters of an id that say when it was made."""


class _Digits(dict[int, str]):
    """Maps Crockford's digits to the digits of int(), and every other character to one that int() refuses."""

    def __missing__(self, key: int) -> str:
        return "z"


_DIGITS = _Digits(zip(map(ord, ALPHABET), "0123456789abcdefghijklmnopqrstuv", strict=True))


def make_id(ids: IdMaker, delay_s: int, *, version_1: bool) -> str:
    job_id = ids.make_with_delay(delay_s)
    return VERSION_1 + job_id if version_1 else job_id


def elapsed_ms(job_id: str, now_ms: int) -> int:
    """Milliseconds since the id was made; 0 for an id that holds no time, or one after `now`."""
    extra = len(job_id) - LENGTH
    if extra not in (0, 1):
        return 0
    try:
        made_ms = int(job_id[extra : extra + _TIME].translate(_DIGITS), 32)
    except ValueError:
        return 0
    return max(now_ms - made_ms, 0)

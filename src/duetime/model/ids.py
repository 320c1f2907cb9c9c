"""Makes job ids: 26 characters, ordered by time, unique.

The layout is a ULID's: 48 bits of milliseconds, then 80 random bits, in Crockford's base 32. Within one millisecond a
maker counts up instead of drawing new random bits, so its ids rise in the order in which they were made. lmstfy's ids
have the same text form and hold the delay in the last four bytes.
"""

import os
import secrets
import sys
import threading
from collections.abc import Callable

from duetime.model.clock import Clock, SystemClock

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH = 26

_SECOND = 8
"""Leading characters of an id that stay the same for about a second."""
_PAIRS = [high + low for high in ALPHABET for low in ALPHABET]
_VALUES = {char: value for value, char in enumerate(ALPHABET)}
_LOW = (1 << 60) - 1

_forks = 0
"""Number of forks between this process and the one that imported this module."""


def _count_fork() -> None:
    global _forks  # noqa: PLW0603
    _forks += 1


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_count_fork)


class IdMaker:
    """Makes ids. After a fork, parent and child make different ids. Not thread-safe."""

    def __init__(self, clock: Clock | None = None, random_bits: Callable[[int], int] = secrets.randbits) -> None:
        self._now_ms = (clock or SystemClock()).now_ms
        self._random_bits = random_bits
        self._last_ms = -1
        self._forks = _forks
        self._chance = self._high = -1
        self._start = ""

    def make(self, *, lmstfy_delay_s: int | None = None) -> str:
        """Returns an id greater than every earlier id of this maker, even when the clock steps back. With
        `lmstfy_delay_s` it has lmstfy's layout: its last four bytes are the delay in seconds, little-endian.
        """
        now = self._now_ms()
        if now > self._last_ms or self._forks != _forks:
            self._last_ms, self._forks = max(now, self._last_ms), _forks
            # The top bit stays clear, so that counting up within the millisecond cannot overflow.
            self._chance, self._high = self._random_bits(79), -1
        else:
            self._chance += 1
        low = self._chance
        if lmstfy_delay_s is not None:
            # The delay takes the lowest 32 bits, so the next id must differ in the random bits above them.
            self._chance = low + (1 << 32)
            low = low >> 32 << 32 | int.from_bytes(lmstfy_delay_s.to_bytes(4, "little"), "big")
        if low >> 20 != self._high:
            self._high = low >> 20
            self._start = encode(self._last_ms << 80 | low)[:-4]
        return self._start + _PAIRS[low >> 10 & 1023] + _PAIRS[low & 1023]


class ThreadedIdMaker(threading.local):
    """Thread-safe: the ids of each thread are ascending."""

    def __init__(self) -> None:
        self._maker = IdMaker()

    def make(self) -> str:
        """A method, because callers keep `make` and call it in other threads than the one that looked it up."""
        return self._maker.make()


def encode(number: int) -> str:
    """128 bits as 26 characters, in two parts: arithmetic is faster on small numbers."""
    high, low = number >> 60, number & _LOW
    return (
        f"{_PAIRS[high >> 60]}{_PAIRS[high >> 50 & 1023]}{_PAIRS[high >> 40 & 1023]}{_PAIRS[high >> 30 & 1023]}"
        f"{_PAIRS[high >> 20 & 1023]}{_PAIRS[high >> 10 & 1023]}{_PAIRS[high & 1023]}"
        f"{_PAIRS[low >> 50]}{_PAIRS[low >> 40 & 1023]}{_PAIRS[low >> 30 & 1023]}{_PAIRS[low >> 20 & 1023]}"
        f"{_PAIRS[low >> 10 & 1023]}{_PAIRS[low & 1023]}"
    )


def decode(text: str) -> int:
    """The inverse of `encode`; raises ValueError for anything it cannot have made."""
    if len(text) != LENGTH:
        raise ValueError(f"id must have {LENGTH} characters, got {text!r}")
    number = 0
    for char in text:
        value = _VALUES.get(char)
        if value is None:
            raise ValueError(f"id must contain only characters of {ALPHABET}, got {text!r}")
        number = number << 5 | value
    if number >> 128:
        raise ValueError(f"id must have 128 bits, got {text!r}")
    return number


def timestamp_ms(text: str) -> int:
    """When the id was made, in epoch milliseconds."""
    return decode(text) >> 80


def made_in_one_moment(least: str, greatest: str) -> bool:
    """Guesses whether two ids were made within about a second; foreign ids may look like ours."""
    return len(least) == len(greatest) == LENGTH and least[:_SECOND] == greatest[:_SECOND]

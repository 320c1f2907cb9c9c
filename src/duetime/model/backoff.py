"""Backoff policies: how long to wait before the next try.

A policy is frozen data with one function: `delay_ms(failures)` is the wait after the n-th failure (from 1). `parse`
reads the text form that topics and tasks use. `Outage` counts failures in a row, for loops that continue while their
store is down.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from duetime.model.clock import MAX_DURATION, Duration, duration_ms
from duetime.model.errors import InvalidRequest

MINUTE_MS = 60_000
MAX_TEXT = 1000
"""The longest text of a policy."""

chance = random.SystemRandom().random
"""A random number from 0 to 1, without the shared generator of `random`, which belongs to the user's program."""


class Backoff(Protocol):
    def delay_ms(self, failures: int) -> int:
        """The wait after the n-th failure, n >= 1."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The same wait every time."""

    wait_ms: int

    def delay_ms(self, failures: int) -> int:
        return self.wait_ms


@dataclass(frozen=True)
class Listed:
    """One wait per failure; the last one repeats."""

    waits_ms: tuple[int, ...]

    def delay_ms(self, failures: int) -> int:
        return self.waits_ms[min(failures, len(self.waits_ms)) - 1]


@dataclass(frozen=True)
class Exponential:
    """base, base * factor, base * factor² ... up to a cap; `jitter` takes away up to that share at random."""

    base_ms: int
    factor: float = 2.0
    cap_ms: int = 3_600_000
    jitter: float = 0.5
    chance: Callable[[], float] = chance

    def delay_ms(self, failures: int) -> int:
        # A float overflows after 1023 doublings; the cap is reached long before that.
        wait = min(self.base_ms * self.factor ** min(failures - 1, 500), self.cap_ms)
        return round(wait * (1 - self.jitter * self.chance()))


@dataclass(frozen=True)
class OddMinutes:
    """php-delayqueue's schedule: 1, 3, 5, 7 ... minutes."""

    def delay_ms(self, failures: int) -> int:
        return (2 * failures - 1) * MINUTE_MS


OUTAGE = Exponential(base_ms=50, cap_ms=2_000, jitter=0.5)
"""For loops and calls during a store outage: they resume at most two seconds after it ends."""


class Outage:
    """Counts the failures in a row of an action that is repeated until it works."""

    def __init__(self, policy: Backoff = OUTAGE) -> None:
        self._policy = policy
        self.failures = 0

    def failed(self) -> bool:
        """Counts a failure. Returns whether it is the first in a row: callers log one line per outage."""
        self.failures += 1
        return self.failures == 1

    def worked(self) -> int:
        """Ends the outage and returns its number of failures, 0 if there was no outage."""
        failures, self.failures = self.failures, 0
        return failures

    @property
    def pause_s(self) -> float:
        """How long to wait now, after the last failure."""
        return self._policy.delay_ms(self.failures) / 1000


def wait_ms(policy: Backoff, failures: int) -> int:
    """Calls `policy.delay_ms`, which a user may have written. Raises InvalidRequest unless it returns milliseconds."""
    try:
        wait = policy.delay_ms(failures)
    except Exception as error:
        raise InvalidRequest(f"backoff {policy!r} failed: {error!r}") from error
    if type(wait) is not int or not 0 <= wait <= MAX_DURATION:
        raise InvalidRequest(f"delay_ms({failures}) must return milliseconds, at least 0, got {wait!r} from {policy!r}")
    return wait


def parse(text: Duration) -> Backoff:
    """Reads `10s`, `1s,5s,1m`, `exponential:1s`, `exponential:1s:1h` or `odd-minutes`. Raises InvalidRequest."""
    if not isinstance(text, str):
        return Fixed(duration_ms(text))
    if len(text) > MAX_TEXT:
        raise InvalidRequest(f"backoff must have at most {MAX_TEXT} characters, got {len(text)}: {text[:20]!r}...")
    kind, *rest = text.strip().split(":")
    match kind, rest:
        case "odd-minutes", []:
            return OddMinutes()
        case "exponential", [base]:
            return Exponential(duration_ms(base))
        case "exponential", [base, cap]:
            return Exponential(duration_ms(base), cap_ms=duration_ms(cap))
        case waits, []:
            listed = tuple(duration_ms(wait) for wait in waits.split(","))
            return Fixed(listed[0]) if len(listed) == 1 else Listed(listed)
        case _:
            raise InvalidRequest(f"backoff must be like 10s, 1s,5s,1m, exponential:1s:1h or odd-minutes, got {text!r}")

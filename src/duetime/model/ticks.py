"""Pauses that end together: loops that check something about once a second wake a process once, not one by one."""

from typing import Protocol
from weakref import WeakKeyDictionary

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

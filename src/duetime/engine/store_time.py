"""The store's clock, as a process knows it between two answers of the store."""

import asyncio

JUMP_MS = 5
"""Timers are set again when the store's clock is ahead of the known offset by more than this ..."""
SET_BACK_MS = 1000
"""... and kept when the clock seems to be behind by less than this: a timer that ends too early costs one call, and
perhaps only the answer with the reading was slow.
"""


class StoreTime:
    """The store's clock as this process knows it: its distance from the loop's own clock, which never jumps."""

    def __init__(self) -> None:
        self._offset_ms = 0.0
        self._reported_ms = 0.0

    def observe(self, now_ms: int) -> bool:
        """Use a reading; returns whether the clock has run ahead since the last True, in one jump or bit by bit.

        A reading is old by the travel time of its answer. So of two offsets the greater one is nearer the truth, unless
        the clock was set back.
        """
        offset = now_ms - asyncio.get_running_loop().time() * 1000
        if offset > self._offset_ms or offset < self._offset_ms - SET_BACK_MS:
            self._offset_ms = offset
        ahead = self._offset_ms - self._reported_ms
        if ahead > JUMP_MS or ahead < 0:
            self._reported_ms = self._offset_ms
        return ahead > JUMP_MS

    def now_ms(self) -> int:
        """The store's time as far as it is known: behind by the travel time of an answer at most."""
        return int(asyncio.get_running_loop().time() * 1000 + self._offset_ms)

    def seconds_until(self, at_ms: int) -> float:
        return (at_ms - self._offset_ms) / 1000 - asyncio.get_running_loop().time()

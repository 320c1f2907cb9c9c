"""Measures how the CPU time of a function grows with the length of its text."""

import time
from collections.abc import Callable

TIMES_LONGER = 8
"""Linear work takes about 8 times as long for the longer text, quadratic work 64 times, cubic work 512 times."""
LINEAR = 30
"""Growth below this is linear, with much room for noise."""


def growth(work: Callable[[str], object], piece: str, *, short: int = 500) -> float:
    """How many times longer the work takes for a text of `piece` repeated that is 8 times as long as `short`."""
    few = piece * (short // len(piece))
    return _cpu_s(work, few * TIMES_LONGER, 3) / _cpu_s(work, few, 10)


def _cpu_s(work: Callable[[str], object], text: str, repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        began = time.thread_time()
        work(text)
        best = min(best, time.thread_time() - began)
    return max(best, 1e-6)

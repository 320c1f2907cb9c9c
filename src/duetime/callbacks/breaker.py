"""A circuit breaker: after some failures in a row no calls are made for a while, then one call probes the receiver.

Closed: calls pass. Open: no call passes until the pause is over. Then half open: one probe passes; its success closes
the circuit, its failure opens it for longer. Meanwhile jobs stay in their queue, so the pause uses up no attempts.
"""

from collections.abc import Callable

from duetime.model.backoff import Exponential

THRESHOLD = 10
PAUSE = Exponential(base_ms=1_000, cap_ms=60_000, jitter=0.2)


class Breaker:
    """`now` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float], *, threshold: int = THRESHOLD) -> None:
        self._now = now
        self._threshold = threshold
        self._failures = 0
        self._opened = 0
        self._until = 0.0
        self._probing = False

    @property
    def is_open(self) -> bool:
        return self._opened > 0

    def wait_s(self) -> float:
        """How long until a call may pass; 0 if one may now."""
        if not self.is_open:
            return 0.0
        if self._probing:
            # The end of the probe decides, and its time is not known, so callers look again soon.
            return max(self._until - self._now(), 0.05)
        return max(self._until - self._now(), 0.0)

    def allowance(self, wanted: int) -> int:
        """How many calls may start now, up to `wanted`; while the circuit is open, one at most, which is the probe."""
        if not self.is_open:
            return wanted
        if self._probing or self._until > self._now():
            return 0
        return min(wanted, 1)

    def begin(self) -> None:
        if self.is_open:
            self._probing = True

    def hold(self, seconds: float) -> None:
        """Let no call pass for this long, because the receiver asked for it or the topic is being halted."""
        self._opened = max(self._opened, 1)
        self._until = max(self._until, self._now() + seconds)

    def abandoned(self) -> None:
        """A call ended without showing whether its receiver works."""
        self._probing = False

    def succeeded(self) -> None:
        self._failures = self._opened = 0
        self._probing = False

    def failed(self) -> None:
        self._failures += 1
        probed, self._probing = self._probing, False
        if probed or (self._failures >= self._threshold and not self.is_open):
            self._opened += 1
            self._until = self._now() + PAUSE.delay_ms(self._opened) / 1000

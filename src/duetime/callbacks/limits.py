"""Limits of the calls of topics: slots, which topics share by their priorities, and circuit breakers.

A topic that wants slots gets those that are free, at least one, or waits. Waiting topics are served by a rotation over
priorities, 5 : 3 : 2, and within one the namespaces in turn, each first come first served; a priority that nobody waits
for passes its turn on. While several namespaces share the slots (`share`), one of them has at most half, so that
slow receivers of one leave room for the others. A topic holds slots only while it calls.

After some failures in a row a circuit breaker opens: no calls are made until its pause is over, and jobs stay in their
queue, so the pause uses up no attempts. Then one call probes the receiver: its success closes the circuit, its failure
opens it for longer.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

from duetime.callbacks.outcome import CallbackAnswer
from duetime.engine.priority_rotation import spread
from duetime.model.backoff import Exponential
from duetime.model.job import Priority
from duetime.model.priority_shares import DEFAULT_SHARES, Shares

THRESHOLD = 10
PAUSE = Exponential(base_ms=1_000, cap_ms=60_000, jitter=0.2)


class Waiter(NamedTuple):
    wanted: int
    granted: asyncio.Future[int]


Line = OrderedDict[str, deque[Waiter]]
"""Waiting topics by namespace; the namespace that is served next comes first."""


class Slots:
    def __init__(self, capacity: int, shares: Shares = DEFAULT_SHARES) -> None:
        self.capacity = capacity
        self._turns = spread(shares)
        self.used = 0
        self._is_shared = False
        self._held = Counter[str]()
        self._at = 0
        self._lines: dict[Priority, Line] = {one: OrderedDict() for one in Priority}

    def free(self, namespace: str) -> int:
        """How many more slots this namespace may have now."""
        most = max(self.capacity // 2, 1) if self._is_shared else self.capacity
        return max(0, min(self.capacity - self.used, most - self._held[namespace]))

    def acquire_free(self, wanted: int, namespace: str) -> int:
        """Acquire 0 to `wanted` slots that are free now, none if others wait; returns how many."""
        if any(self._lines.values()):
            return 0
        if count := min(self.free(namespace), wanted):
            self.used += count
            self._held[namespace] += count
        return count

    async def acquire(self, wanted: int, priority: Priority, namespace: str) -> int:
        """Wait for 1 to `wanted` slots; returns how many were acquired. A cancelled wait acquires none."""
        if count := self.acquire_free(wanted, namespace):
            return count
        granted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._lines[priority].setdefault(namespace, deque()).append(Waiter(wanted, granted))
        self._serve()
        try:
            return await granted
        except asyncio.CancelledError:
            # The slots may have been granted at the same moment as the cancellation.
            if granted.done() and not granted.cancelled():
                self.release(granted.result(), namespace)
            raise

    def release(self, count: int, namespace: str) -> None:
        self.used -= count
        self._held[namespace] -= count
        if not self._held[namespace]:
            del self._held[namespace]
        if any(self._lines.values()):
            self._serve()

    def share(self, *, is_shared: bool) -> None:
        """Set whether topics of several namespaces use these slots."""
        self._is_shared = is_shared
        self._serve()

    def _serve(self) -> None:
        while (found := self._next()) is not None:
            turn, line, namespace = found
            waiters = line.pop(namespace)
            wanted, granted = waiters.popleft()
            if waiters:
                line[namespace] = waiters  # at the end: the others of this priority come first
            if granted.done():
                continue
            self._at = (turn + 1) % len(self._turns)
            # While others can be served, too, each gets one slot; the last one gets as many as are free.
            count = 1 if self._next() is not None else min(wanted, self.free(namespace))
            self.used += count
            self._held[namespace] += count
            granted.set_result(count)

    def _next(self) -> tuple[int, Line, str] | None:
        """The turn, line and namespace that are served next; None if no waiting topic may have a slot now."""
        for step in range(len(self._turns)):
            turn = (self._at + step) % len(self._turns)
            line = self._lines[list(Priority)[self._turns[turn]]]
            for namespace in line:  # at most two namespaces have their half
                if self.free(namespace) > 0:
                    return turn, line, namespace
        return None


class Breaker:
    """`pauses` is how often in a row it has opened, 0 while it is closed. `now` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float], *, threshold: int = THRESHOLD) -> None:
        self.pauses = 0
        self._now = now
        self._threshold = threshold
        self._failures = 0
        self._until = 0.0
        self._probing = False

    def wait_s(self) -> float:
        """How long until a call may begin; 0 if one may now. While `pauses` is not 0, only one may: the probe."""
        if not self.pauses:
            return 0.0
        # The end of a probe decides, and its time is not known, so callers check again soon.
        return max(self._until - self._now(), 0.05 if self._probing else 0.0)

    def begin(self) -> None:
        """Note that a call begins."""
        self._probing = self.pauses > 0

    def pause(self, seconds: float) -> None:
        """Begin no call for this long, because the receiver asked for that or the topic is being halted."""
        self.pauses = max(self.pauses, 1)
        self._until = max(self._until, self._now() + seconds)

    def abandoned(self) -> None:
        """A call ended, and its outcome says nothing about the receiver."""
        self._probing = False

    def succeeded(self) -> None:
        self._failures = self.pauses = 0
        self._probing = False

    def failed(self) -> None:
        self._failures += 1
        probed, self._probing = self._probing, False
        if probed or (self._failures >= self._threshold and not self.pauses):
            self.pauses += 1
            self._until = self._now() + PAUSE.delay_ms(self.pauses) / 1000


def note_answer(of_topic: Breaker, of_host: Breaker, answer: CallbackAnswer) -> None:
    """Any answer, whatever its status, shows that the receiver works. A call without one counts against its topic, and
    against the host only if there was not even a connection: otherwise another path of the host may still work.
    """
    if not answer.error:
        of_topic.succeeded()
        of_host.succeeded()
        return
    of_topic.failed()
    if answer.unreachable:
        of_host.failed()
    else:
        of_host.abandoned()

"""Queues whose rows another transaction has locked: the reaper serves the other queues meanwhile.

A round of the reaper visits queues one after the other. It waits for the lock of one queue at most; of the others it
only checks whether they are locked, and skips those that are.
"""

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic

from duetime.model.errors import DuetimeError
from duetime.model.names import Queue

log = logging.getLogger("duetime.stores")

PROBE_S = 30.0
"""About how long rounds only check whether a queue is locked, after one did not get its lock."""
FORGOTTEN_S = 600.0
"""Forget a lock after this many seconds without a visit."""


class LockedQueues:
    """Remembers the queues whose locks rounds did not get."""

    def __init__(self, is_locked: Callable[[Queue], Awaitable[bool]]) -> None:
        self.is_locked = is_locked
        self._probe_until: dict[Queue, float] = {}

    def begin_round(self) -> "QueueRound":
        oldest = monotonic() - FORGOTTEN_S
        self._probe_until = {queue: until for queue, until in self._probe_until.items() if until > oldest}
        return QueueRound(self)

    def locked_last(self, queues: Sequence[Queue]) -> list[Queue]:
        return sorted(queues, key=self._probe_until.__contains__)

    def should_block_on(self, queue: Queue) -> bool:
        return self._probe_until.get(queue, 0) <= monotonic()

    def note(self, queue: Queue) -> None:
        # The times differ, so that each of several queues is waited for at some time.
        self._probe_until[queue] = monotonic() + PROBE_S * random.uniform(0.5, 1.5)

    def forget(self, queue: Queue) -> None:
        self._probe_until.pop(queue, None)


class QueueRound:
    """One round. `is_left_out` says that some queues could not be visited."""

    def __init__(self, locked: LockedQueues) -> None:
        self._locked, self._has_waited = locked, False
        self.is_left_out = False

    async def visit(self, queues: Sequence[Queue], work: Callable[[Queue], Awaitable[bool]]) -> None:
        """Do the work on each queue, in this order but locked ones last, until it answers False."""
        for queue in self._locked.locked_last(queues):
            may_wait = not self._has_waited and self._locked.should_block_on(queue)
            if not may_wait and await self._locked.is_locked(queue):
                self.is_left_out = True
                if self._has_waited:
                    self._locked.note(queue)
                continue
            try:
                goes_on = await work(queue)
            except DuetimeError as error:
                # If the server is down, the next call fails as well.
                log.warning("queue_left_out", extra={"queue": str(queue), "error": error.message})
                self.is_left_out = self._has_waited = True
                self._locked.note(queue)
                continue
            self._locked.forget(queue)
            if not goes_on:
                return

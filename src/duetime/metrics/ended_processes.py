"""Keeps the counters of processes that ended, so that no counter of the server goes backwards.

The supervisor hands it every snapshot that it receives. Counts that a process made after its last snapshot are lost
when the process ends, unless it sends one more before.
"""

from collections.abc import Collection

import msgspec

from duetime.metrics import snapshots
from duetime.metrics.meters import MAX_QUEUES, Names, Snapshot

METRICS = "metrics"
"""The name of the request by which processes ask each other for a snapshot."""


class EndedProcesses:
    """One per server; it belongs to the supervisor, or to the only process.

    Every process needs a name that no other process of the server has had.
    """

    def __init__(self, max_queues: int = MAX_QUEUES) -> None:
        self._names = Names(max_queues)
        self._present: dict[str, Snapshot] = {}
        self._past = Snapshot()

    def heard(self, process: str, body: bytes) -> None:
        """Remember the latest snapshot of this process. One that cannot be read (another version's) is ignored."""
        try:
            self._present[process] = snapshots.decode(body)
        except msgspec.MsgspecError:
            return

    def keep(self, alive: Collection[str]) -> None:
        """Move the counters of all processes that are not alive to the past."""
        gone = [self._present.pop(process) for process in set(self._present) - set(alive)]
        self._past = snapshots.merge([self._past, *map(snapshots.without_levels, gone)])

    def past(self) -> bytes:
        """The sum of what ended processes counted, encoded; empty if they counted nothing."""
        return snapshots.encode(self._past) if self._past.readings else b""

    def total(self) -> bytes:
        """The sum over all processes, living and ended, encoded, with no more queues by name than allowed."""
        merged = snapshots.merge([self._past, *self._present.values()])
        return snapshots.encode(snapshots.fold(merged, self._names))

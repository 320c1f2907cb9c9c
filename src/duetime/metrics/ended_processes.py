"""The supervisor's memory of what its processes counted, so that no counter goes backwards when one of them ends.

It hears every snapshot that passes through the supervisor. What a process counted after it was last heard of is lost
with it, unless it tells its last snapshot before it ends.
"""

from collections.abc import Collection

import msgspec

from duetime.metrics import snapshots
from duetime.metrics.meters import MAX_QUEUES, Names, Snapshot

METRICS = "metrics"
"""The name of the request by which processes ask each other for a snapshot."""


class EndedProcesses:
    """One per server; it belongs to the supervisor, or to the one process that there is.

    A process has a name that no other one has had.
    """

    def __init__(self, max_queues: int = MAX_QUEUES) -> None:
        self._names = Names(max_queues)
        self._present: dict[str, Snapshot] = {}
        self._past = Snapshot()

    def heard(self, process: str, body: bytes) -> None:
        """A snapshot of this process; one that cannot be read (another version's) is passed over."""
        try:
            self._present[process] = snapshots.decode(body)
        except msgspec.MsgspecError:
            return

    def keep(self, alive: Collection[str]) -> None:
        """All other processes have ended: what they counted stays."""
        gone = [self._present.pop(process) for process in set(self._present) - set(alive)]
        self._past = snapshots.merge([self._past, *map(snapshots.without_levels, gone)])

    def past(self) -> bytes:
        """What those counted that have ended; empty while there is nothing of that."""
        return snapshots.encode(self._past) if self._past.readings else b""

    def total(self) -> bytes:
        """All that is and was, with no more queues by name than allowed."""
        merged = snapshots.merge([self._past, *self._present.values()])
        return snapshots.encode(snapshots.fold(merged, self._names))

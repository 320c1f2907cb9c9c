"""The supervisor's memory of what its processes counted, so that no counter goes backwards when one of them ends.

It hears every snapshot that passes through the supervisor. What a process counted after it was last heard of is lost
with it, unless it says good-bye (`heard` with its last snapshot) before `gone`.
"""

import msgspec

from duetime.engine import snapshots
from duetime.engine.meters import MAX_QUEUES, Names, Snapshot


class Ledger:
    """Belongs to the supervisor; one per server."""

    def __init__(self, max_queues: int = MAX_QUEUES) -> None:
        self._names = Names(max_queues)
        self._present: dict[str, Snapshot] = {}
        self._past = Snapshot()

    def heard(self, worker: str, body: bytes) -> None:
        """A snapshot of this worker; one that cannot be read (another version's) is passed over."""
        try:
            self._present[worker] = snapshots.decode(body)
        except msgspec.MsgspecError:
            return

    def gone(self, worker: str) -> None:
        """The process behind this name has ended; the next under it starts at zero."""
        last = self._present.pop(worker, None)
        if last is not None:
            self._past = snapshots.merge([self._past, snapshots.without_levels(last)])

    def total(self) -> bytes:
        """All that is and was, with no more queues by name than allowed."""
        merged = snapshots.merge([self._past, *self._present.values()])
        return snapshots.encode(snapshots.fold(merged, self._names))

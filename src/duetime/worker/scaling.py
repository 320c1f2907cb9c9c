"""How many jobs a worker runs at a time, between two bounds, by how late the jobs of its queues are.

One number serves all queues of a worker, because each of its slots runs jobs of any of them: where Horizon moves
processes from one queue to another, here the next free slot runs the job that is due. Late jobs while all slots are
busy ask for more slots; slots that nobody needs for a while go.
"""

from dataclasses import dataclass

LATE_MS = 1_000
"""A job that is later than this asks for more slots."""
WAITS = 10
"""A slot goes when one was free for this many of the worker's waits on empty queues (`--sleep`), 30 s by default."""


@dataclass
class ConcurrencyScaler:
    """`calm_s` is how long a slot must be free before one goes."""

    least: int
    most: int
    calm_s: float
    _calm_since: float | None = None

    def __post_init__(self) -> None:
        self.concurrency = self.least

    def update(self, late_ms: int, busy: int, now: float) -> int:
        """Note how late the oldest due job is and how many slots are busy; returns how many slots there should be.

        They grow by a half at a time, at least by one, and go one at a time.
        """
        if busy >= self.concurrency:
            self._calm_since = None
            if late_ms > LATE_MS:
                self.concurrency = min(self.most, self.concurrency + max(1, self.concurrency // 2))
        elif self._calm_since is None:
            self._calm_since = now
        elif now - self._calm_since >= self.calm_s:
            self._calm_since = now
            self.concurrency = max(self.least, self.concurrency - 1)
        return self.concurrency

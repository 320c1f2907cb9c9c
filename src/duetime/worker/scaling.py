"""How many jobs a worker runs at a time, between two bounds, by how late the jobs of its queues are.

One number serves all queues of a worker, because any of its places runs jobs of any of them: where Horizon moves
processes from one queue to another, here the next free place takes the job that is due. So there is one question left:
are there enough places? Late jobs while all places are busy say no; places that nobody needs for a while say yes.
"""

from dataclasses import dataclass

LATE_MS = 1_000
"""A job that is later than this wants more places."""
WAITS = 10
"""A place goes when one was free for so many of the worker's waits on empty queues (`--sleep`), 30 s by default."""


@dataclass
class PlaceCount:
    """`places` is how many there should be. `calm_s` is how long one must be free before one goes."""

    least: int
    most: int
    calm_s: float
    places: int = 0
    _calm_since: float | None = None

    def __post_init__(self) -> None:
        self.places = self.least

    def look(self, late_ms: int, busy: int, now: float) -> int:
        """Take note of how late the oldest due job is and how many places are busy; answers `places`.

        They grow by a half at a time, at least by one, and go one at a time.
        """
        if busy >= self.places:
            self._calm_since = None
            if late_ms > LATE_MS:
                self.places = min(self.most, self.places + max(1, self.places // 2))
        elif self._calm_since is None:
            self._calm_since = now
        elif now - self._calm_since >= self.calm_s:
            self._calm_since = now
            self.places = max(self.least, self.places - 1)
        return self.places

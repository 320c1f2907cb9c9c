"""The interfaces between a worker and its pool, and the memory of a process."""

import os
import resource
import sys
from pathlib import Path
from typing import Protocol

from duetime.worker.runs import Outcome, Run

PAGE = os.sysconf("SC_PAGE_SIZE")
MB = 1_048_576
GRACE_S = 1.0
"""How long a job may clean up after its time is over, before its process is ended."""


class PoolHost(Protocol):
    """The worker, as a pool sees it. All calls come on the worker's event loop."""

    def began(self, run: Run) -> None:
        """The job has begun to run."""
        ...

    def ended(self, run: Run, outcome: Outcome) -> None:
        """The job is over, and its slot in the pool is free again."""
        ...

    def returned(self, run: Run) -> None:
        """The job was handed to the pool but has not begun: it may run in another slot."""
        ...

    def said(self, run: Run, word: str, value: int) -> None:
        """The task told something about its job."""
        ...

    def widened(self) -> None:
        """There is new room: a process has started."""
        ...

    def broken(self) -> None:
        """The pool can start no more jobs; running ones may still end."""
        ...


class WorkerPool(Protocol):
    """`depth`: how many jobs may be handed to one process at a time, for jobs much shorter than a round trip."""

    depth: int

    async def start(self) -> None: ...

    def resize(self, size: int) -> None:
        """Resize to `size` slots. A removed slot finishes its running job first."""
        ...

    def room(self) -> int:
        """How many jobs the pool would take now."""
        ...

    def submit(self, run: Run) -> bool:
        """Hand over a job; False if it does not fit just now."""
        ...

    def check(self, now: float) -> None:
        """Called every few milliseconds while there is something to do: time-outs and stuck jobs."""
        ...

    def check_memory(self, limit_mb: float) -> None:
        """Called about every second: replace what has grown too large."""
        ...

    def warn(self) -> None:
        """Let what runs know that the worker wants to stop; `current_job().stopping` tells the task."""
        ...

    async def close(self, *, force: bool) -> None:
        """Without force nothing is running any more. With it, what runs is ended now and told as BACK."""
        ...


def resident_mb(pid: int | None = None) -> float:
    """Resident memory of a process, by default this one; 0 if unknown: it is gone, or there is no /proc to ask."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        if pid is not None or sys.platform == "linux":
            return 0.0
        # Without /proc there is only the highest it ever was, in bytes on macOS.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MB
    return pages * PAGE / MB

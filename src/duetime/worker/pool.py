"""What a worker asks of a pool, and what a pool tells its worker."""

from typing import Protocol

from duetime.worker.runs import Outcome, Run

GRACE_S = 1.0
"""How long a job may clean up after its time is over, before its process is ended."""


class PoolHost(Protocol):
    """The worker, as a pool sees it. All calls come on the worker's event loop."""

    def began(self, run: Run) -> None:
        """It runs now."""
        ...

    def ended(self, run: Run, outcome: Outcome) -> None:
        """It is over, and the place is free again."""
        ...

    def returned(self, run: Run) -> None:
        """It was handed to the pool but has not begun: it may be given to another place."""
        ...

    def said(self, run: Run, word: str, value: int) -> None:
        """The task told something about its job."""
        ...

    def widened(self) -> None:
        """There is room that nothing which ended has left: a new process."""
        ...

    def broken(self) -> None:
        """It can start nothing any more; what runs may still end."""
        ...


class WorkerPool(Protocol):
    """`depth`: how many jobs may be handed to one place at a time, for jobs that are much shorter than a round trip."""

    depth: int

    async def start(self) -> None: ...

    def room(self) -> int:
        """How many jobs it would take now."""
        ...

    def submit(self, run: Run) -> bool:
        """Hand over a job; False if it does not fit just now."""
        ...

    def check(self, now: float) -> None:
        """Called every few milliseconds while there is something to do: time-outs and stuck places."""
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

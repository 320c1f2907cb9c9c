"""Looking at many jobs by id, in as many calls as it takes. No I/O.

lookup = Lookup(queue, ids)
while call := lookup.next_call():
    lookup.take(client.send(call))
lookup.jobs()
"""

from collections.abc import Sequence

from duetime.client import calls
from duetime.client.call import Call
from duetime.model.errors import DuetimeError
from duetime.model.job import STEP_JOBS, Job
from duetime.model.names import Queue


class Lookup:
    """Asks for each id once. An answer ends at a bound; what it left out goes into the next call."""

    def __init__(self, queue: Queue, ids: Sequence[str]) -> None:
        self._queue = queue
        self._ids = list(ids)
        self._left = list(dict.fromkeys(ids))
        self._found: dict[str, Job | None] = {}

    def next_call(self) -> Call[list[Job | None]] | None:
        return calls.get(self._queue, self._left[:STEP_JOBS]) if self._left else None

    def take(self, jobs: Sequence[Job | None]) -> None:
        if not jobs:
            raise DuetimeError("the server's answer lacks the jobs that were asked for")
        self._found.update(zip(self._left, jobs, strict=False))
        del self._left[: len(jobs)]

    def jobs(self) -> list[Job | None]:
        """The jobs in the order of the ids, repeats included; None where there is no job."""
        return [self._found[job_id] for job_id in self._ids]

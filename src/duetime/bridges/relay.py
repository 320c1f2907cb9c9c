"""Moves jobs continuously between another system and Duetime, so that a team can move over queue by queue.

Theirs to ours: a batch is held there, pushed here with its name as the push mark, and then forgotten there. A relay
that is killed at any point repeats the batch, and the mark makes the second push do nothing, also for jobs that were
finished meanwhile. Ours to theirs: a job is leased here, accepted there under its id and born, and acked.
"""

import hashlib
import time
from collections.abc import Callable, Sequence

from duetime.bridges.foreign import ForeignQueues
from duetime.client import Client, calls
from duetime.model.backoff import Outage
from duetime.model.errors import InvalidRequest, LeaseLost, StoreUnavailable
from duetime.model.job import DAY_MS, IfExists, NewJob
from duetime.model.names import Queue, check_queue
from duetime.stores.base import Mark

BATCH = 500
MARK_LIFE_MS = 30 * DAY_MS
"""A batch must be forgotten within this time after it was pushed; later its jobs could come twice."""
IDLE_S = 0.5
LEASE_S = 60

Report = Callable[[int], None]


class Relay:
    """`report` is called with the number of jobs that were moved, `refuse` with each job that Duetime refuses (its body
    is too large, for example) and the reason. Such a job stays in the other system. `stop` is asked before each batch.
    """

    def __init__(
        self,
        foreign: ForeignQueues,
        client: Client,
        *,
        report: Report = lambda _: None,
        refuse: Callable[[NewJob, str], None] = lambda _, __: None,
        stop: Callable[[], bool] = bool,
    ) -> None:
        self._foreign, self._client, self._report, self._stop = foreign, client, report, stop
        self._refuse = refuse
        self._refused: set[bytes] = set()

    def to_duetime(self, theirs: str, ours: Queue, *, follow: bool) -> int:
        """Move everything that waits there, delayed jobs with their due times. `follow` goes on with new jobs until
        stopped. Returns how many were moved.
        """
        return self._run(lambda: self._fetch(theirs, ours), follow=follow)

    def from_duetime(self, ours: Queue, theirs: str, *, follow: bool) -> int:
        """Move the jobs that are due here. `follow` goes on until stopped."""
        return self._run(lambda: self._send(ours, theirs), follow=follow)

    def _run(self, step: Callable[[], int], *, follow: bool) -> int:
        moved, outage = 0, Outage()
        while not self._stop():
            try:
                count = step()
            except StoreUnavailable:
                # Either side may be away for a while. What is held or leased is found again.
                if not follow:
                    raise
                outage.failed()
                time.sleep(outage.pause_s)
                continue
            outage.worked()
            moved += count
            self._report(moved)
            if not count:
                if not follow:
                    break
                time.sleep(IDLE_S)
        return moved

    def _fetch(self, theirs: str, ours: Queue) -> int:
        check_queue(ours.namespace, ours.name)
        # More than the jobs that were refused before, so that these do not fill every batch.
        batch = self._foreign.hold(theirs, BATCH + len(self._refused))
        if batch is None:
            return 0
        back: list[int] = []
        first = 0
        for number, part in enumerate(calls.chunks(batch.jobs)):
            try:
                self._push(ours, f"{batch.name}.{number}", part)
            except InvalidRequest:
                back += self._push_each(ours, f"{batch.name}.{number}", part, first)
            first += len(part)
        self._foreign.forget(theirs, batch, back)
        return len(batch.jobs) - len(back)

    def _push(self, ours: Queue, name: str, jobs: Sequence[NewJob]) -> None:
        """All or none, and once for each name."""
        digest = hashlib.sha256("\n".join(job.id for job in jobs).encode()).digest()
        mark = Mark(f"relay-{self._foreign.system}-{name}", digest, MARK_LIFE_MS)
        self._client.send(calls.push(ours, jobs, IfExists.KEEP, mark))

    def _push_each(self, ours: Queue, name: str, jobs: Sequence[NewJob], first: int) -> list[int]:
        """Returns the places in the batch of those that were refused."""
        refused: list[int] = []
        for place, job in enumerate(jobs, first):
            try:
                self._push(ours, f"{name}.{place}", [job])
            except InvalidRequest as error:
                refused.append(place)
                # By its body: a job without an id of its own gets another one in each batch.
                body = hashlib.sha256(job.body).digest()
                if body not in self._refused:
                    self._refused.add(body)
                    self._refuse(job, error.message)
        return refused

    def _send(self, ours: Queue, theirs: str) -> int:
        leased = self._client.queue(ours.name).reserve(limit=BATCH, ttr=LEASE_S, wait=IDLE_S)
        if not leased:
            return 0
        self._foreign.accept(theirs, [job.delivery for job in leased])
        for answer in self._client.queue(ours.name).ack(leased):
            if isinstance(answer, Exception) and not isinstance(answer, LeaseLost):
                raise answer
        return len(leased)

"""Moves jobs continuously between another system and Duetime, so that a team can move over queue by queue.

Theirs to ours: a batch is held there, pushed here with its name as the push mark, and then forgotten there. A relay
that is killed at any point repeats the batch, and the mark makes the second push do nothing, also for jobs that were
finished meanwhile. Ours to theirs: a job is leased here, accepted there under its id and born, and acked.
"""

import functools
import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.bridges.foreign import HELD_BYTES, ForeignQueues
from duetime.client import Client, calls
from duetime.client.call import Call
from duetime.client.store_link import STORE_ONLY
from duetime.engine.recorder import StoreCall
from duetime.model.backoff import Outage
from duetime.model.clock import MAX_INSTANT
from duetime.model.errors import InvalidRequest, LeaseLost, StoreUnavailable
from duetime.model.job import DAY_MS, IfExists, Lease, Moved, NewJob, Reason, chunks, payload_bytes
from duetime.model.names import Queue, check_queue
from duetime.stores.base import Mark, Pushed, Withdrawal

if TYPE_CHECKING:
    from duetime.engine import Engine

BATCH = 250
MARK_LIFE_MS = 30 * DAY_MS
"""A batch must be forgotten within this time after it was pushed; later its jobs could come twice."""
IDLE_S = 0.5
LEASE_S = 60
DEAD_THERE = "was a dead letter in the other system"

Report = Callable[[int], None]
PushCall = Callable[[Queue, Sequence[NewJob], IfExists, Mark | None], Call[Pushed]]


def bury(queue: Queue, jobs: Sequence[NewJob], if_exists: IfExists, mark: Mark | None) -> Call[Pushed]:
    """Add dead letters. They are pushed with a due time that never comes, so that no consumer can take them, and killed
    in a second step. Needs the store itself: a server has no such call.
    """

    async def run(engine: "Engine") -> Pushed:
        waiting = [msgspec.structs.replace(job, due_at=MAX_INSTANT, ttl_ms=0) for job in jobs]
        pushed = await engine.push(queue, waiting, if_exists=if_exists, mark=mark)
        for job in pushed.jobs:
            lease = Lease(queue, job.id, job.born, job.attempt)
            call = StoreCall("kill", queue, [lease], error=DEAD_THERE)
            # Gone or dead already: this is a repetition.
            with suppress(LeaseLost):
                await engine.recorders.run_alone(call, functools.partial(_kill_waiting, engine, lease))
        return pushed

    def request() -> Any:
        raise InvalidRequest(f"dead letters cannot be imported through a server: {STORE_ONLY}")

    return Call(request, lambda _: Pushed([], 0), run, repeatable=True)


async def _kill_waiting(engine: "Engine", lease: Lease) -> Moved:
    there = Withdrawal(lease.id, lease.born, MAX_INSTANT, Reason.TRIES, DEAD_THERE)
    [killed] = await engine.store.withdraw(lease.queue, [there])
    if isinstance(killed, StoreUnavailable):
        raise killed
    if killed is None:
        raise LeaseLost
    return killed


class Relay:
    """`push` is the call that adds jobs here: `calls.push`, or `bury` for dead letters.

    `report` is called with the number of jobs that were moved, `refuse` with each job that Duetime refuses (its body
    is too large, for example) and the reason. Such a job stays in the other system. `stop` is asked before each batch.
    """

    def __init__(
        self,
        foreign: ForeignQueues,
        client: Client,
        *,
        push: PushCall = calls.push,
        report: Report = lambda _: None,
        refuse: Callable[[NewJob, str], None] = lambda _, __: None,
        stop: Callable[[], bool] = bool,
    ) -> None:
        self._foreign, self._client, self._report, self._stop = foreign, client, report, stop
        self._push_call, self._refuse = push, refuse
        self._refused: set[bytes] = set()
        # Of the batch that had most of those: a batch must have room for them, and for others.
        self._refused_jobs, self._refused_bytes = 0, 0

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
        """Returns 0 when nothing is left but jobs that are refused."""
        check_queue(ours.namespace, ours.name)
        while True:
            room = self._refused_jobs, self._refused_bytes
            moved = self._fetch_batch(theirs, ours)
            if moved or room == (self._refused_jobs, self._refused_bytes):
                return moved

    def _fetch_batch(self, theirs: str, ours: Queue) -> int:
        batch = self._foreign.hold(theirs, BATCH + self._refused_jobs, HELD_BYTES + self._refused_bytes)
        if batch is None:
            return 0
        back: list[int] = []
        first = 0
        for number, part in enumerate(chunks(batch.jobs, size=payload_bytes)):
            try:
                self._push(ours, f"{batch.name}.{number}", part)
            except InvalidRequest:
                back += self._push_each(ours, f"{batch.name}.{number}", part, first)
            first += len(part)
        self._foreign.forget(theirs, batch, back)
        self._refused_jobs = max(self._refused_jobs, len(back))
        self._refused_bytes = max(self._refused_bytes, sum(len(batch.jobs[n].body) for n in back))
        return len(batch.jobs) - len(back)

    def _push(self, ours: Queue, name: str, jobs: Sequence[NewJob]) -> None:
        """All or none, and once for each name."""
        digest = hashlib.sha256("\n".join(job.id for job in jobs).encode()).digest()
        mark = Mark(f"relay-{self._foreign.system}-{name}", digest, MARK_LIFE_MS)
        self._client.send(self._push_call(ours, jobs, IfExists.KEEP, mark))

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

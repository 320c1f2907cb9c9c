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

from duetime.bridges.foreign import HELD_BYTES, ForeignQueues, HeldBatch
from duetime.client import Client, calls
from duetime.client.call import Call
from duetime.client.client import LeasedJob
from duetime.client.store_link import STORE_ONLY
from duetime.engine.recorder import StoreCall
from duetime.model.backoff import Outage
from duetime.model.clock import MAX_INSTANT
from duetime.model.errors import (
    DuetimeError,
    InvalidRequest,
    LeaseLost,
    MarkMismatch,
    QueueFull,
    StoreUnavailable,
    TooManyRequests,
    TopicOffline,
)
from duetime.model.job import DAY_MS, IfExists, Lease, Moved, NewJob, Reason, chunks, payload_bytes
from duetime.model.names import Queue, check_queue
from duetime.stores.base import Mark, Pushed, Withdrawal

if TYPE_CHECKING:
    from duetime.engine import Engine

BATCH = 250
MOST_REFUSED, MOST_REFUSED_BYTES = 1000, 16 << 20
"""Refused jobs that a batch has room for besides others: a larger one would block the other system for too long."""
MARK_LIFE_MS = 30 * DAY_MS
"""A batch must be forgotten within this time after it was pushed; later its jobs could come twice."""
IDLE_S = 0.5
LEASE_S = 60
REFUSED_S = 60
"""A job that the other system refuses is due again here after this time."""
WAITED_FOR = (StoreUnavailable, QueueFull, TopicOffline, TooManyRequests)
"""States of either side that end by themselves, so that a relay goes on later."""
DEAD_THERE = "was a dead letter in the other system"

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

    `report` is called with the number of jobs that were moved, `refuse` with each job that the other side refuses (its
    body is too large, for example) and the reason. Such a job stays where it is. `wait` is called with the reason when
    a relay that follows begins to wait for one of the sides. `stop` is asked before each batch.
    """

    def __init__(  # noqa: PLR0913 - what it tells its caller
        self,
        foreign: ForeignQueues,
        client: Client,
        *,
        push: PushCall = calls.push,
        report: Callable[[int], None] = lambda _: None,
        refuse: Callable[[NewJob | LeasedJob, str], None] = lambda _, __: None,
        wait: Callable[[str], None] = lambda _: None,
        stop: Callable[[], bool] = bool,
    ) -> None:
        self._foreign, self._client, self._report, self._stop = foreign, client, report, stop
        self._push_call, self._refuse, self._wait = push, refuse, wait
        self._most = BATCH
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
            except WAITED_FOR as error:
                # What is held or leased is found again.
                if not follow:
                    raise
                if outage.failed():
                    self._wait(error.message)
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
            batch = self._foreign.hold(theirs, self._most + room[0], HELD_BYTES + room[1])
            if batch is None:
                return 0
            if not batch.jobs:  # they have expired there, or another relay has just ended the batch
                self._foreign.forget(theirs, batch)
                continue
            moved = self._move(theirs, ours, batch)
            if moved or room == (self._refused_jobs, self._refused_bytes):
                return moved

    def _move(self, theirs: str, ours: Queue, batch: HeldBatch) -> int:
        left = set(range(len(batch.jobs)))
        try:
            self._push_batch(ours, batch, left)
        except DuetimeError as error:
            if isinstance(error, StoreUnavailable | MarkMismatch) or error.fields.get("unknown"):
                raise  # a push may have taken effect, so the batch is pushed again under its name
            # The queue here is full, for example. The other system's workers can have what is left, unless another
            # relay may be pushing the same batch.
            self._foreign.forget(theirs, batch, sorted(left), if_unshared=True)
            self._most = max(1, len(batch.jobs) // 2)
            raise
        self._foreign.forget(theirs, batch, sorted(left))
        self._most = min(BATCH, 2 * self._most)
        # Counted as they are stored there, which may take more bytes than the bodies.
        size = sum(len(part) for n in left for part in batch.stored[n] if isinstance(part, bytes | str))
        self._refused_jobs = min(MOST_REFUSED, max(self._refused_jobs, len(left)))
        self._refused_bytes = min(MOST_REFUSED_BYTES, max(self._refused_bytes, size))
        return len(batch.jobs) - len(left)

    def _push_batch(self, ours: Queue, batch: HeldBatch, left: set[int]) -> None:
        """Takes the places of the jobs that are here out of `left`."""
        first = 0
        for number, part in enumerate(chunks(batch.jobs, size=payload_bytes)):
            name, places = f"{batch.name}.{number}", range(first, first + len(part))
            first += len(part)
            with suppress(InvalidRequest):  # it does not say which job is refused
                self._push(ours, name, part)
                left.difference_update(places)
                continue
            for place, job in zip(places, part, strict=True):
                try:
                    self._push(ours, f"{name}.{place}", [job])
                    left.discard(place)
                except InvalidRequest as error:
                    self._name_refused(job, error)

    def _push(self, ours: Queue, name: str, jobs: Sequence[NewJob]) -> None:
        """All or none, and once for each name."""
        digest = hashlib.sha256("\n".join(job.id for job in jobs).encode()).digest()
        mark = Mark(f"relay-{self._foreign.system}-{name}", digest, MARK_LIFE_MS)
        self._client.send(self._push_call(ours, jobs, IfExists.KEEP, mark))

    def _name_refused(self, job: NewJob | LeasedJob, error: InvalidRequest) -> None:
        """Once, by its body: a job without an id of its own gets another one in each batch."""
        digest = hashlib.sha256(job.body).digest()
        if digest not in self._refused:
            self._refused.add(digest)
            self._refuse(job, error.message)

    def _send(self, ours: Queue, theirs: str) -> int:
        leased = self._client.queue(ours.name).reserve(limit=BATCH, ttr=LEASE_S, wait=IDLE_S)
        if not leased:
            return 0
        accepted = self._accept(theirs, leased)
        for answer in self._client.queue(ours.name).ack(accepted):
            if isinstance(answer, Exception) and not isinstance(answer, LeaseLost):
                raise answer
        return len(accepted)

    def _accept(self, theirs: str, leased: Sequence[LeasedJob]) -> Sequence[LeasedJob]:
        """Returns the jobs that the other system has now. Those that it refuses are due here again after a while."""
        try:
            self._foreign.accept(theirs, [job.delivery for job in leased])
        except InvalidRequest:
            accepted: list[LeasedJob] = []
            for job in leased:
                try:
                    self._foreign.accept(theirs, [job.delivery])
                    accepted.append(job)
                except InvalidRequest as error:
                    self._name_refused(job, error)
                    with suppress(LeaseLost):
                        self._client.give_back(job, delay=REFUSED_S)
            return accepted
        return leased

# Generated from async_client.py by tools/blocking_client.py: change that file and run the tool again.
"""The SDK for blocking code.

A client speaks for a namespace, a queue client for one queue of it, dead letters for those of its jobs that died, and
a leased job for a job that a consumer holds. Every method is one Call, or a few, handed to the transport.
"""

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, Unpack

from duetime.client import calls, checks
from duetime.client.call import Call
from duetime.client.calls import Answered, Leased, Lookup, QueueStatus, Result, StateWord, call
from duetime.client.job_building import Body, IfExistsWord, JobFields, PushFields, as_jobs, delayed, new_push
from duetime.client.leased_job import BlockingQueueBase, JobInHand
from duetime.client.transport import ConnectOptions, ProcessTransport, open_sync
from duetime.model.clock import Duration, Instant, duration_ms
from duetime.model.errors import DuetimeError, LeaseLost
from duetime.model.ids import ThreadedIdMaker
from duetime.model.job import DEFAULT_TTR_MS, Counts, Delivery, IfExists, Job, Moved, NewJob, QueueTotals, State
from duetime.model.masking import mask
from duetime.model.names import DEFAULT_NAMESPACE, Queue, check_namespace, check_queue
from duetime.stores.base import Page, QueueRules, RulesChange
from duetime.stores.finishes import Finish, Finished, KeptResult

if TYPE_CHECKING:
    from duetime.client.schedules import Schedules

Answer = TypeVar("Answer")

log = logging.getLogger("duetime.client")

TTR_S = DEFAULT_TTR_MS // 1000


class LeasedJob(JobInHand):
    """A job that this consumer holds: what `pop`, `reserve` and `take` give. `delivery` has its facts as data.

    As a context manager it is acked at the end of the block, or released if the block raises; a job that was settled
    inside the block is left alone.
    """

    def __init__(self, client: "Client", delivery: Delivery) -> None:
        super().__init__(delivery)
        self._client = client

    def ack(self) -> None:
        """Finish the job. LeaseLost if another consumer has it."""
        self._client.ack(self.lease)
        self._is_settled = True

    def release(self, delay: Duration = 0, *, error: str = "") -> Moved:
        """Give the job back, to be tried again after the delay."""
        moved = self._client.release(self.lease, delay=delay, error=error)
        self._is_settled = True
        return moved

    def give_back(self) -> Moved:
        """Undo the delivery: the job has its old place and its try again."""
        moved = self._client.give_back(self.lease)
        self._is_settled = True
        return moved

    def kill(self, error: str = "") -> Moved:
        """Send the job to the dead letters."""
        moved = self._client.kill(self.lease, error=error)
        self._is_settled = True
        return moved

    def extend(self, ttr: Duration = TTR_S) -> int:
        """Hold the job for longer, from now; answers the new end of the lease in epoch milliseconds."""
        return self._client.extend(self.lease, ttr)

    def __enter__(self) -> "LeasedJob":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_settled:
            return
        if kind is None:
            self.ack()
            return
        try:
            self.release(error=f"{kind.__name__}: {error}")
        except LeaseLost:
            # The consumer's own exception says more; another consumer has the job by now.
            log.warning("lease_lost", extra={"job": self.id})


class Client:
    """A namespace on a server (http URL) or in a store (store URL). A context manager; closing it twice is fine.

    It may be used after a fork. Blocking code may use it in several threads, a coroutine in one event loop.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        token: str | None = None,
        journal: str | None = None,
        tracing: bool = False,
    ) -> None:
        """`journal` is for a store URL: the folder of the journal. None: if the pool journals,
        where docs/journal.md says. `tracing` sends OpenTelemetry spans to the program's own provider (extra [otel]).
        """
        self.namespace = check_namespace(namespace)
        self._url = url
        self.make_id = ThreadedIdMaker().make
        self._transport = ProcessTransport(ConnectOptions(url, token, journal, tracing), open_sync)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if transport := self._transport.end():
            transport.close()

    def send(self, call: Call[Answer]) -> Answer:
        """Do any Call of `duetime.client.calls`."""
        return self._transport.get().send(call)

    def queue(self, name: str) -> "QueueClient":
        """A queue of this namespace; it comes into being with the first push."""
        return QueueClient(self, check_queue(self.namespace, name))

    @property
    def schedules(self) -> "Schedules":
        """The schedules of this namespace."""
        from duetime.client.schedules import Schedules  # noqa: PLC0415 (it needs this module and an engine)

        return Schedules(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {mask(self._url)}, namespace {self.namespace}>"

    def push_on(self, queue: str, body: Body, **options: Unpack[PushFields]) -> Moved:
        return self.queue(queue).push(body, **options)

    def later_on(self, queue: str, delay: Duration | datetime, body: Body, /, **options: Unpack[PushFields]) -> Moved:
        return self.queue(queue).push(body, **delayed(options, delay))

    def reserve(
        self, queues: Sequence[str], *, limit: int = 1, ttr: Duration = TTR_S, wait: Duration = 0
    ) -> list[LeasedJob]:
        """Lease up to `limit` jobs from the queues, in their order; wait for the first one."""
        names = [check_queue(self.namespace, name) for name in checks.items("queues", queues)]
        found = self.send(calls.reserve(self.namespace, names, limit, ttr, wait))
        return [LeasedJob(self, delivery) for delivery in found]

    def ack(self, leased: Leased) -> None:
        """Finish a job. Repeating it is no error; LeaseLost if another consumer has the job."""
        calls.first(self.send(calls.ack(calls.lease_of(leased).queue, [leased])))

    def release(self, leased: Leased, *, delay: Duration = 0, error: str = "") -> Moved:
        """Give a job back, to be tried again after the delay."""
        return self.send(calls.release(leased, delay, error))

    def give_back(self, leased: Leased, *, delay: Duration | None = None) -> Moved:
        """Undo a delivery: the job has its old place and its try again; with a delay it is due after that."""
        return self.send(calls.give_back(leased, delay))

    def kill(self, leased: Leased, *, error: str = "") -> Moved:
        """Send a job to the dead letters."""
        return self.send(calls.kill(leased, error))

    def extend(self, leased: Leased, ttr: Duration = TTR_S) -> int:
        """Renew a lease from now; answers its new end in epoch milliseconds."""
        return self.send(calls.extend(leased, ttr))

    def queues(self) -> list[QueueStatus]:
        """Every queue of the namespace, with counts and rules."""
        return self.send(calls.statuses(self.namespace))


class QueueClient(BlockingQueueBase[LeasedJob]):
    """One queue."""

    def __init__(self, client: Client, queue: Queue) -> None:
        self.name = queue
        self.dead = DeadLetters(client, queue)
        self._client = client
        self._send = client.send

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def push(self, body: Body, **options: Unpack[PushFields]) -> Moved:
        """Add a job; if its id is taken, that job is kept, replaced, or JobExists is raised, as `if_exists` says."""
        job, if_exists = new_push(body, options, self._client.make_id)
        return self._send(calls.push_one(self.name, job, if_exists))

    def push_raw(self, body: bytes, **options: Unpack[PushFields]) -> Moved:
        """Add a job whose body is taken byte for byte."""
        return self.push(body, **options)

    def later(self, delay: Duration | datetime, body: Body, /, **options: Unpack[PushFields]) -> Moved:
        """Add a job that is due after a delay, immediately if that is negative, or at an aware datetime."""
        return self.push(body, **delayed(options, delay))

    def bulk(
        self,
        jobs: Iterable[Body | NewJob],
        *,
        if_exists: IfExists | IfExistsWord = IfExists.KEEP,
        **options: Unpack[JobFields],
    ) -> list[Moved]:
        """Add many jobs, 500 to a call; a NewJob brings its own options, a bare body takes the common ones."""
        taken = checks.if_exists(if_exists)
        made = as_jobs(jobs, options, self._client.make_id)
        return [moved for call in calls.bulk(self.name, made, taken) for moved in self._send(call).jobs]

    def call(self, body: Body, /, wait: Duration, **options: Unpack[PushFields]) -> Answered:
        """Push a job and wait for the answer that a worker pushes to the queue named after its id.

        Raises NoAnswer; the job stays then, and calling again with its id waits on.
        """
        job, if_exists = new_push(body, options, self._client.make_id)
        return self._send(call(self.name, job, wait, if_exists))

    def pop(self, *, ttr: Duration = TTR_S, wait: Duration = 0, ack: Leased | None = None) -> LeasedJob | None:
        """Lease the next job, or None if there is none in time. `ack` is a job that is finished before that, in the
        same step where the store can; LeaseLost if another consumer has it, and then nothing is leased. After
        StoreUnavailable with an unknown outcome the same call may be repeated; a job that the lost answer had is
        delivered again after its ttr.
        """
        found, waits = None, False
        if ack is not None:
            waits = duration_ms(wait) > 0
            found = self._send(calls.ack_and_reserve(self.name, ack, duration_ms(ttr)))
        if found is None or (waits and not found):
            found = self._send(calls.reserve(self.name.namespace, [self.name], 1, ttr, wait))
        return LeasedJob(self._client, found[0]) if found else None

    def _take(self, timeout: Duration | None, ttr: Duration) -> LeasedJob:
        for wait in calls.parks(timeout):
            if job := self.pop(ttr=ttr, wait=wait):
                return job
        raise TimeoutError(f"no job in {self.name} within the timeout")

    def reserve(self, *, limit: int = 1, ttr: Duration = TTR_S, wait: Duration = 0) -> list[LeasedJob]:
        """Lease up to `limit` jobs; wait for the first one."""
        found = self._send(calls.reserve(self.name.namespace, [self.name], limit, ttr, wait))
        return [LeasedJob(self._client, delivery) for delivery in found]

    def ack(self, leases: Sequence[Leased]) -> list[Result]:
        """Finish many jobs; one answer each: what happened, LeaseLost, or None where it was gone already."""
        return self._send(calls.ack(self.name, leases))

    def finish(self, finishes: Sequence[Finish]) -> list[Finished | DuetimeError | None]:
        """Finish jobs with what follows from each: further jobs of this queue, a result that is kept. One answer each:
        what happened, LeaseLost or another refusal, or None where the job was gone already.
        """
        return self._send(calls.finish(self.name, finishes))

    def results(self, ids: Sequence[str], *, wait: Duration = 0) -> list[KeptResult | None]:
        """The results that are kept of up to 16 jobs, None where there is none; wait until all are there."""
        return self._send(calls.results(self.name, ids, wait))

    def cancel(self, job_id: str) -> Moved:
        """Remove a job, wherever it is. Raises JobNotFound."""
        return calls.found(job_id)(self._send(calls.cancel(self.name, [job_id])))

    def reschedule(self, job_id: str, *, delay: Duration | None = None, due_at: Instant | None = None) -> Moved:
        """Change when a waiting job is due. Raises JobNotFound, JobRunning, JobDead, ExpiresBeforeDue."""
        return calls.found(job_id)(self._send(calls.reschedule(self.name, [job_id], delay, due_at)))

    def get(self, job_id: str) -> Job:
        """Look at a job in any state. Raises JobNotFound."""
        return self._send(calls.get_one(self.name, job_id))

    def get_many(self, ids: Sequence[str]) -> list[Job | None]:
        """Look at jobs in any state, in the order of the ids; None where there is none."""
        lookup = Lookup(self.name, ids)
        while call := lookup.next_call():
            lookup.take(self._send(call))
        return lookup.jobs()

    def list_jobs(self, state: State | StateWord, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Page through the jobs in a state."""
        return self._send(calls.list_jobs(self.name, state, cursor, limit))

    def counts(self) -> Counts:
        """Exact counts by state."""
        return self.status().counts

    def status(self) -> QueueStatus:
        """Counts and rules."""
        return self._send(calls.status(self.name))

    def totals(self) -> QueueTotals:
        """How often each event happened to jobs of the queue: since counting began, and on each of the last 31 days."""
        return self._send(calls.totals(self.name))

    def due_histogram(self, edges: Sequence[int]) -> list[int]:
        """How many jobs fall due between each two of the given instants (epoch milliseconds)."""
        return self._send(calls.due_histogram(self.name, edges))

    def configure(self, change: RulesChange | None = None) -> QueueRules:
        """Change or read what the queue obeys (paused, strict, caps)."""
        return self._send(calls.configure(self.name, change))

    def pause(self) -> QueueRules:
        """Deliver nothing until resumed; pushes go on."""
        return self.configure(RulesChange(paused=True))

    def resume(self) -> QueueRules:
        return self.configure(RulesChange(paused=False))

    def size(self) -> int:
        """Everything that waits or runs: ready + delayed + leased."""
        return calls.size(self.counts())

    def pending_size(self) -> int:
        return self.counts().ready

    def delayed_size(self) -> int:
        return self.counts().delayed

    def reserved_size(self) -> int:
        return self.counts().leased

    def oldest_pending(self) -> int | None:
        """When the job that has been ready for longest fell due, in epoch milliseconds."""
        return calls.oldest(self.status())

    def clear(self) -> int:
        """Remove everything that waits or runs; answers how many. Dead letters stay."""
        return self._send(calls.purge(self.name, calls.LIVE_STATES, None))

    def purge(self, states: Sequence[State | StateWord] = tuple(State), *, limit: int | None = None) -> int:
        """Remove jobs by state; answers how many."""
        return self._send(calls.purge(self.name, states, limit))


class DeadLetters:
    """The jobs of one queue that ran out of tries, were killed, or expired where the queue keeps those."""

    def __init__(self, client: Client, queue: Queue) -> None:
        self._queue = queue
        self._send = client.send

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._queue}>"

    def list_jobs(self, *, cursor: str | None = None, limit: int = 100) -> Page:
        """A page of dead letters, longest dead first."""
        return self._send(calls.list_jobs(self._queue, State.DEAD, cursor, limit))

    def respawn(
        self, ids: Sequence[str] | None = None, *, limit: int = 1, ttl: Duration = 0, tries: int | None = None
    ) -> list[Moved]:
        """Bring jobs back, by id or the longest dead first; used tries start again at 0."""
        return self._send(calls.respawn(self._queue, ids, limit, ttl, tries))

    def delete(self, ids: Sequence[str]) -> list[Result]:
        """Remove dead letters by id, for good."""
        return self._send(calls.cancel(self._queue, ids))

    def clear(self, *, limit: int | None = None) -> int:
        """Remove all dead letters, or only the longest dead ones; answers how many."""
        return self._send(calls.purge(self._queue, [State.DEAD], limit))

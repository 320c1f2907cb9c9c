# Generated from async_client.py by tools/blocking_client.py: change that file and run the tool again.
"""The SDK for blocking code.

A client works on one namespace, a queue client on one queue of it, `dead` on the dead letters of that queue, and a
leased job is a job that this consumer holds. Every method hands one Call, or a few, to the transport.
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
    """A job that this consumer has leased. `pop`, `reserve` and `take` return it. `delivery` has its fields as data.

    As a context manager, it acks the job at the end of the block, and releases it if the block raises. A job that was
    finished or given back inside the block is left alone.
    """

    def __init__(self, client: "Client", delivery: Delivery) -> None:
        super().__init__(delivery)
        self._client = client

    def ack(self) -> None:
        """Finish the job. Raises LeaseLost if the lease is no longer valid."""
        self._client.ack(self.lease)
        self._is_settled = True

    def release(self, delay: Duration = 0, *, error: str = "") -> Moved:
        """Give the job back; it is tried again after the delay."""
        moved = self._client.release(self.lease, delay=delay, error=error)
        self._is_settled = True
        return moved

    def give_back(self) -> Moved:
        """Undo the delivery: the job returns to its old position, and no try is used."""
        moved = self._client.give_back(self.lease)
        self._is_settled = True
        return moved

    def kill(self, error: str = "") -> Moved:
        """Move the job to the dead letters."""
        moved = self._client.kill(self.lease, error=error)
        self._is_settled = True
        return moved

    def extend(self, ttr: Duration = TTR_S) -> int:
        """Renew the lease for `ttr` from now. Returns its new end in epoch milliseconds."""
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
            # Another consumer has the job by now; the exception of this one is more useful to the caller.
            log.warning("lease_lost", extra={"job": self.id})


class Client:
    """A namespace on a server (http URL) or in a store (store URL). Use it as a context manager, or call `close`.

    It works after a fork. Blocking code can share it between threads; a coroutine uses it in one event loop.
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
        """Close the connections. Jobs that are still leased come back when their leases end."""
        if transport := self._transport.end():
            transport.close()

    def send(self, call: Call[Answer]) -> Answer:
        """Send any Call of `duetime.client.calls`."""
        return self._transport.get().send(call)

    def queue(self, name: str) -> "QueueClient":
        """Return a queue of this namespace. The first push creates it."""
        return QueueClient(self, check_queue(self.namespace, name))

    @property
    def schedules(self) -> "Schedules":
        """The schedules of this namespace."""
        from duetime.client.schedules import Schedules  # noqa: PLC0415 (it needs this module and an engine)

        return Schedules(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {mask(self._url)}, namespace {self.namespace}>"

    def push_on(self, queue: str, body: Body, **options: Unpack[PushFields]) -> Moved:
        """Add a job to the named queue, as `queue(name).push(...)`."""
        return self.queue(queue).push(body, **options)

    def later_on(self, queue: str, delay: Duration | datetime, body: Body, /, **options: Unpack[PushFields]) -> Moved:
        """Add a job to the named queue that is due after a delay, as `queue(name).later(...)`."""
        return self.queue(queue).push(body, **delayed(options, delay))

    def reserve(
        self, queues: Sequence[str], *, limit: int = 1, ttr: Duration = TTR_S, wait: Duration = 0
    ) -> list[LeasedJob]:
        """Lease up to `limit` jobs from the queues, tried in the given order. Waits up to `wait` for the first job."""
        names = [check_queue(self.namespace, name) for name in checks.items("queues", queues)]
        found = self.send(calls.reserve(self.namespace, names, limit, ttr, wait))
        return [LeasedJob(self, delivery) for delivery in found]

    def ack(self, leased: Leased) -> None:
        """Finish a job. Repeating it is not an error. Raises LeaseLost if the lease is no longer valid."""
        calls.first(self.send(calls.ack(calls.lease_of(leased).queue, [leased])))

    def release(self, leased: Leased, *, delay: Duration = 0, error: str = "") -> Moved:
        """Give a job back; it is tried again after the delay."""
        return self.send(calls.release(leased, delay, error))

    def give_back(self, leased: Leased, *, delay: Duration | None = None) -> Moved:
        """Undo a delivery: the job returns to its old position, or is due after the delay, and no try is used."""
        lease = calls.lease_of(leased)
        return calls.found(lease.id)(self.send(calls.give_back([lease], delay)))

    def kill(self, leased: Leased, *, error: str = "") -> Moved:
        """Move a job to the dead letters."""
        return self.send(calls.kill(leased, error))

    def extend(self, leased: Leased, ttr: Duration = TTR_S) -> int:
        """Renew a lease for `ttr` from now. Returns its new end in epoch milliseconds."""
        return self.send(calls.extend(leased, ttr))

    def queues(self) -> list[QueueStatus]:
        """Return all queues of the namespace, with their counts and rules."""
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
        """Add a job. If its id is taken, `if_exists` decides: the existing job is kept (the default) or replaced, or
        JobExists is raised.
        """
        job, if_exists = new_push(body, options, self._client.make_id)
        return self._send(calls.push_one(self.name, job, if_exists))

    def push_raw(self, body: bytes, **options: Unpack[PushFields]) -> Moved:
        """Add a job with this body, byte for byte."""
        return self.push(body, **options)

    def later(self, delay: Duration | datetime, body: Body, /, **options: Unpack[PushFields]) -> Moved:
        """Add a job that is due after a delay or at an aware datetime. With a negative delay it is due immediately."""
        return self.push(body, **delayed(options, delay))

    def bulk(
        self,
        jobs: Iterable[Body | NewJob],
        *,
        if_exists: IfExists | IfExistsWord = IfExists.KEEP,
        **options: Unpack[JobFields],
    ) -> list[Moved]:
        """Add many jobs, up to 500 per call of the store. A NewJob has its own options; a plain body gets `options`."""
        taken = checks.if_exists(if_exists)
        made = as_jobs(jobs, options, self._client.make_id)
        return [moved for call in calls.bulk(self.name, made, taken) for moved in self._send(call).jobs]

    def call(self, body: Body, /, wait: Duration, **options: Unpack[PushFields]) -> Answered:
        """Push a job and wait for its answer: the job that a worker pushes to the queue named after the id of this job.

        Raises NoAnswer if none came in time. The job stays; call again with its id to continue waiting.
        """
        job, if_exists = new_push(body, options, self._client.make_id)
        return self._send(call(self.name, job, wait, if_exists))

    def pop(self, *, ttr: Duration = TTR_S, wait: Duration = 0, ack: Leased | None = None) -> LeasedJob | None:
        """Lease the next job. Returns None if there is none in time. `ack` finishes that job first, in the same
        operation if the store can; if its lease was lost, LeaseLost is raised and nothing is leased. After
        StoreUnavailable with an unknown outcome, repeat the call; a job in the lost answer is delivered again after its
        ttr.
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
        """Lease up to `limit` jobs. Waits up to `wait` for the first one."""
        found = self._send(calls.reserve(self.name.namespace, [self.name], limit, ttr, wait))
        return [LeasedJob(self._client, delivery) for delivery in found]

    def ack(self, leases: Sequence[Leased]) -> list[Result]:
        """Finish many jobs. Returns one result per job: what happened, LeaseLost, or None if the job was gone."""
        return self._send(calls.ack(self.name, leases))

    def finish(self, finishes: Sequence[Finish]) -> list[Finished | DuetimeError | None]:
        """Finish jobs, each with follow-up jobs for this queue and a result to keep. Returns one result per job: what
        happened, LeaseLost or another error, or None if the job was already gone.
        """
        return self._send(calls.finish(self.name, finishes))

    def results(self, ids: Sequence[str], *, wait: Duration = 0) -> list[KeptResult | None]:
        """Return the kept results of up to 16 jobs, and None for each job without one. Waits up to `wait` until all are
        there.
        """
        return self._send(calls.results(self.name, ids, wait))

    def cancel(self, job_id: str) -> Moved:
        """Remove a job in any state. Raises JobNotFound."""
        return calls.found(job_id)(self._send(calls.cancel(self.name, [job_id])))

    def reschedule(self, job_id: str, *, delay: Duration | None = None, due_at: Instant | None = None) -> Moved:
        """Change the due time of a waiting job. Raises JobNotFound, JobRunning, JobDead, ExpiresBeforeDue."""
        return calls.found(job_id)(self._send(calls.reschedule(self.name, [job_id], delay, due_at)))

    def get(self, job_id: str) -> Job:
        """Return a job in any state. Raises JobNotFound."""
        return self._send(calls.get_one(self.name, job_id))

    def get_many(self, ids: Sequence[str]) -> list[Job | None]:
        """Return jobs in any state, in the order of the ids, and None for each id without a job."""
        lookup = Lookup(self.name, ids)
        while call := lookup.next_call():
            lookup.take(self._send(call))
        return lookup.jobs()

    def list_jobs(self, state: State | StateWord, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Return a page of the jobs in a state. The cursor of a page leads to the next one."""
        return self._send(calls.list_jobs(self.name, state, cursor, limit))

    def counts(self) -> Counts:
        """Return the exact counts by state."""
        return self.status().counts

    def status(self) -> QueueStatus:
        """Return the counts and rules of the queue."""
        return self._send(calls.status(self.name))

    def totals(self) -> QueueTotals:
        """Return how often each event happened to jobs of the queue: in total, and on each of the last 31 days."""
        return self._send(calls.totals(self.name))

    def due_histogram(self, edges: Sequence[int]) -> list[int]:
        """Return how many jobs fall due between each two neighbouring instants (epoch milliseconds)."""
        return self._send(calls.due_histogram(self.name, edges))

    def configure(self, change: RulesChange | None = None) -> QueueRules:
        """Change the rules of the queue (paused, strict, limits), and return them. Without a change it only returns
        them.
        """
        return self._send(calls.configure(self.name, change))

    def pause(self) -> QueueRules:
        """Stop deliveries until `resume`. Pushes continue."""
        return self.configure(RulesChange(paused=True))

    def resume(self) -> QueueRules:
        """Continue deliveries after `pause`."""
        return self.configure(RulesChange(paused=False))

    def size(self) -> int:
        """Return the number of jobs that wait or run: ready + delayed + leased."""
        return calls.size(self.counts())

    def pending_size(self) -> int:
        """Return the number of ready jobs, under Laravel's name."""
        return self.counts().ready

    def delayed_size(self) -> int:
        """Return the number of delayed jobs."""
        return self.counts().delayed

    def reserved_size(self) -> int:
        """Return the number of leased jobs, under Laravel's name."""
        return self.counts().leased

    def oldest_pending(self) -> int | None:
        """Return when the oldest ready job fell due, in epoch milliseconds, or None if no job is ready."""
        return calls.oldest(self.status())

    def clear(self) -> int:
        """Remove all jobs that wait or run. Returns their number. Dead letters stay."""
        return self._send(calls.purge(self.name, calls.LIVE_STATES, None))

    def purge(self, states: Sequence[State | StateWord] = tuple(State), *, limit: int | None = None) -> int:
        """Remove jobs by state. Returns their number."""
        return self._send(calls.purge(self.name, states, limit))


class DeadLetters:
    """The dead letters of a queue: jobs that ran out of tries, were killed, or expired if the queue keeps those."""

    def __init__(self, client: Client, queue: Queue) -> None:
        self._queue = queue
        self._send = client.send

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._queue}>"

    def list_jobs(self, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Return a page of dead letters, the oldest first."""
        return self._send(calls.list_jobs(self._queue, State.DEAD, cursor, limit))

    def respawn(
        self, ids: Sequence[str] | None = None, *, limit: int = 1, ttl: Duration = 0, tries: int | None = None
    ) -> list[Moved]:
        """Make dead letters ready again, by id or the oldest first. Their used tries start again at 0."""
        return self._send(calls.respawn(self._queue, ids, limit, ttl, tries))

    def delete(self, ids: Sequence[str]) -> list[Result]:
        """Delete dead letters by id."""
        return self._send(calls.cancel(self._queue, ids))

    def clear(self, *, limit: int | None = None) -> int:
        """Delete all dead letters, or the oldest ones up to `limit`. Returns their number."""
        return self._send(calls.purge(self._queue, [State.DEAD], limit))

"""The SDK for asyncio.

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
from duetime.client.leased_job import AsyncQueue, JobInHand
from duetime.client.transport import ConnectOptions, ProcessTransport, open_async
from duetime.model.clock import Duration, Instant, duration_ms
from duetime.model.errors import DuetimeError, LeaseLost
from duetime.model.ids import ThreadedIdMaker
from duetime.model.job import DEFAULT_TTR_MS, Counts, Delivery, IfExists, Job, Moved, NewJob, QueueTotals, State
from duetime.model.masking import mask
from duetime.model.names import DEFAULT_NAMESPACE, Queue, check_namespace, check_queue
from duetime.stores.base import Page, QueueRules, RulesChange
from duetime.stores.finishes import Finish, Finished, KeptResult

if TYPE_CHECKING:
    from duetime.client.async_schedules import AsyncSchedules

Answer = TypeVar("Answer")

log = logging.getLogger("duetime.client")

TTR_S = DEFAULT_TTR_MS // 1000


class AsyncLeasedJob(JobInHand):
    """A job that this consumer holds: what `pop`, `reserve` and `take` give. `delivery` has its facts as data.

    As a context manager it is acked at the end of the block, or released if the block raises; a job that was settled
    inside the block is left alone.
    """

    def __init__(self, client: "AsyncClient", delivery: Delivery) -> None:
        super().__init__(delivery)
        self._client = client

    async def ack(self) -> None:
        """Finish the job. LeaseLost if another consumer has it."""
        await self._client.ack(self.lease)
        self._is_settled = True

    async def release(self, delay: Duration = 0, *, error: str = "") -> Moved:
        """Give the job back, to be tried again after the delay."""
        moved = await self._client.release(self.lease, delay=delay, error=error)
        self._is_settled = True
        return moved

    async def give_back(self) -> Moved:
        """Undo the delivery: the job has its old place and its try again."""
        moved = await self._client.give_back(self.lease)
        self._is_settled = True
        return moved

    async def kill(self, error: str = "") -> Moved:
        """Send the job to the dead letters."""
        moved = await self._client.kill(self.lease, error=error)
        self._is_settled = True
        return moved

    async def extend(self, ttr: Duration = TTR_S) -> int:
        """Hold the job for longer, from now; answers the new end of the lease in epoch milliseconds."""
        return await self._client.extend(self.lease, ttr)

    async def __aenter__(self) -> "AsyncLeasedJob":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_settled:
            return
        if kind is None:
            await self.ack()
            return
        try:
            await self.release(error=f"{kind.__name__}: {error}")
        except LeaseLost:
            # The consumer's own exception says more; another consumer has the job by now.
            log.warning("lease_lost", extra={"job": self.id})


class AsyncClient:
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
        self._transport = ProcessTransport(ConnectOptions(url, token, journal, tracing), open_async)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if transport := self._transport.end():
            await transport.close()

    async def send(self, call: Call[Answer]) -> Answer:
        """Do any Call of `duetime.client.calls`."""
        return await self._transport.get().send(call)

    def queue(self, name: str) -> "AsyncQueueClient":
        """A queue of this namespace; it comes into being with the first push."""
        return AsyncQueueClient(self, check_queue(self.namespace, name))

    @property
    def schedules(self) -> "AsyncSchedules":
        """The schedules of this namespace."""
        from duetime.client.async_schedules import AsyncSchedules  # noqa: PLC0415 (it needs this module and an engine)

        return AsyncSchedules(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {mask(self._url)}, namespace {self.namespace}>"

    async def push_on(self, queue: str, body: Body, **options: Unpack[PushFields]) -> Moved:
        return await self.queue(queue).push(body, **options)

    async def later_on(
        self, queue: str, delay: Duration | datetime, body: Body, /, **options: Unpack[PushFields]
    ) -> Moved:
        return await self.queue(queue).push(body, **delayed(options, delay))

    async def reserve(
        self, queues: Sequence[str], *, limit: int = 1, ttr: Duration = TTR_S, wait: Duration = 0
    ) -> list[AsyncLeasedJob]:
        """Lease up to `limit` jobs from the queues, in their order; wait for the first one."""
        names = [check_queue(self.namespace, name) for name in checks.items("queues", queues)]
        found = await self.send(calls.reserve(self.namespace, names, limit, ttr, wait))
        return [AsyncLeasedJob(self, delivery) for delivery in found]

    async def ack(self, leased: Leased) -> None:
        """Finish a job. Repeating it is no error; LeaseLost if another consumer has the job."""
        calls.first(await self.send(calls.ack(calls.lease_of(leased).queue, [leased])))

    async def release(self, leased: Leased, *, delay: Duration = 0, error: str = "") -> Moved:
        """Give a job back, to be tried again after the delay."""
        return await self.send(calls.release(leased, delay, error))

    async def give_back(self, leased: Leased, *, delay: Duration | None = None) -> Moved:
        """Undo a delivery: the job has its old place and its try again; with a delay it is due after that."""
        return await self.send(calls.give_back(leased, delay))

    async def kill(self, leased: Leased, *, error: str = "") -> Moved:
        """Send a job to the dead letters."""
        return await self.send(calls.kill(leased, error))

    async def extend(self, leased: Leased, ttr: Duration = TTR_S) -> int:
        """Renew a lease from now; answers its new end in epoch milliseconds."""
        return await self.send(calls.extend(leased, ttr))

    async def queues(self) -> list[QueueStatus]:
        """Every queue of the namespace, with counts and rules."""
        return await self.send(calls.statuses(self.namespace))


class AsyncQueueClient(AsyncQueue[AsyncLeasedJob]):
    """One queue."""

    def __init__(self, client: AsyncClient, queue: Queue) -> None:
        self.name = queue
        self.dead = AsyncDeadLetters(client, queue)
        self._client = client
        self._send = client.send

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    async def push(self, body: Body, **options: Unpack[PushFields]) -> Moved:
        """Add a job; if its id is taken, that job is kept, replaced, or JobExists is raised, as `if_exists` says."""
        job, if_exists = new_push(body, options, self._client.make_id)
        return await self._send(calls.push_one(self.name, job, if_exists))

    async def push_raw(self, body: bytes, **options: Unpack[PushFields]) -> Moved:
        """Add a job whose body is taken byte for byte."""
        return await self.push(body, **options)

    async def later(self, delay: Duration | datetime, body: Body, /, **options: Unpack[PushFields]) -> Moved:
        """Add a job that is due after a delay, immediately if that is negative, or at an aware datetime."""
        return await self.push(body, **delayed(options, delay))

    async def bulk(
        self,
        jobs: Iterable[Body | NewJob],
        *,
        if_exists: IfExists | IfExistsWord = IfExists.KEEP,
        **options: Unpack[JobFields],
    ) -> list[Moved]:
        """Add many jobs, 500 to a call; a NewJob brings its own options, a bare body takes the common ones."""
        taken = checks.if_exists(if_exists)
        made = as_jobs(jobs, options, self._client.make_id)
        return [moved for call in calls.bulk(self.name, made, taken) for moved in (await self._send(call)).jobs]

    async def call(self, body: Body, /, wait: Duration, **options: Unpack[PushFields]) -> Answered:
        """Push a job and wait for the answer that a worker pushes to the queue named after its id.

        Raises NoAnswer; the job stays then, and calling again with its id waits on.
        """
        job, if_exists = new_push(body, options, self._client.make_id)
        return await self._send(call(self.name, job, wait, if_exists))

    async def pop(
        self, *, ttr: Duration = TTR_S, wait: Duration = 0, ack: Leased | None = None
    ) -> AsyncLeasedJob | None:
        """Lease the next job, or None if there is none in time. `ack` is a job that is finished before that, in the
        same step where the store can; LeaseLost if another consumer has it, and then nothing is leased. After
        StoreUnavailable with an unknown outcome the same call may be repeated; a job that the lost answer had is
        delivered again after its ttr.
        """
        found, waits = None, False
        if ack is not None:
            waits = duration_ms(wait) > 0
            found = await self._send(calls.ack_and_reserve(self.name, ack, duration_ms(ttr)))
        if found is None or (waits and not found):
            found = await self._send(calls.reserve(self.name.namespace, [self.name], 1, ttr, wait))
        return AsyncLeasedJob(self._client, found[0]) if found else None

    async def _take(self, timeout: Duration | None, ttr: Duration) -> AsyncLeasedJob:
        for wait in calls.parks(timeout):
            if job := await self.pop(ttr=ttr, wait=wait):
                return job
        raise TimeoutError(f"no job in {self.name} within the timeout")

    async def reserve(self, *, limit: int = 1, ttr: Duration = TTR_S, wait: Duration = 0) -> list[AsyncLeasedJob]:
        """Lease up to `limit` jobs; wait for the first one."""
        found = await self._send(calls.reserve(self.name.namespace, [self.name], limit, ttr, wait))
        return [AsyncLeasedJob(self._client, delivery) for delivery in found]

    async def ack(self, leases: Sequence[Leased]) -> list[Result]:
        """Finish many jobs; one answer each: what happened, LeaseLost, or None where it was gone already."""
        return await self._send(calls.ack(self.name, leases))

    async def finish(self, finishes: Sequence[Finish]) -> list[Finished | DuetimeError | None]:
        """Finish jobs with what follows from each: further jobs of this queue, a result that is kept. One answer each:
        what happened, LeaseLost or another refusal, or None where the job was gone already.
        """
        return await self._send(calls.finish(self.name, finishes))

    async def results(self, ids: Sequence[str], *, wait: Duration = 0) -> list[KeptResult | None]:
        """The results that are kept of up to 16 jobs, None where there is none; wait until all are there."""
        return await self._send(calls.results(self.name, ids, wait))

    async def cancel(self, job_id: str) -> Moved:
        """Remove a job, wherever it is. Raises JobNotFound."""
        return calls.found(job_id)(await self._send(calls.cancel(self.name, [job_id])))

    async def reschedule(self, job_id: str, *, delay: Duration | None = None, due_at: Instant | None = None) -> Moved:
        """Change when a waiting job is due. Raises JobNotFound, JobRunning, JobDead, ExpiresBeforeDue."""
        return calls.found(job_id)(await self._send(calls.reschedule(self.name, [job_id], delay, due_at)))

    async def get(self, job_id: str) -> Job:
        """Look at a job in any state. Raises JobNotFound."""
        return await self._send(calls.get_one(self.name, job_id))

    async def get_many(self, ids: Sequence[str]) -> list[Job | None]:
        """Look at jobs in any state, in the order of the ids; None where there is none."""
        lookup = Lookup(self.name, ids)
        while call := lookup.next_call():
            lookup.take(await self._send(call))
        return lookup.jobs()

    async def list_jobs(self, state: State | StateWord, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Page through the jobs in a state."""
        return await self._send(calls.list_jobs(self.name, state, cursor, limit))

    async def counts(self) -> Counts:
        """Exact counts by state."""
        return (await self.status()).counts

    async def status(self) -> QueueStatus:
        """Counts and rules."""
        return await self._send(calls.status(self.name))

    async def totals(self) -> QueueTotals:
        """How often each event happened to jobs of the queue: since counting began, and on each of the last 31 days."""
        return await self._send(calls.totals(self.name))

    async def due_histogram(self, edges: Sequence[int]) -> list[int]:
        """How many jobs fall due between each two of the given instants (epoch milliseconds)."""
        return await self._send(calls.due_histogram(self.name, edges))

    async def configure(self, change: RulesChange | None = None) -> QueueRules:
        """Change or read what the queue obeys (paused, strict, caps)."""
        return await self._send(calls.configure(self.name, change))

    async def pause(self) -> QueueRules:
        """Deliver nothing until resumed; pushes go on."""
        return await self.configure(RulesChange(paused=True))

    async def resume(self) -> QueueRules:
        return await self.configure(RulesChange(paused=False))

    async def size(self) -> int:
        """Everything that waits or runs: ready + delayed + leased."""
        return calls.size(await self.counts())

    async def pending_size(self) -> int:
        return (await self.counts()).ready

    async def delayed_size(self) -> int:
        return (await self.counts()).delayed

    async def reserved_size(self) -> int:
        return (await self.counts()).leased

    async def oldest_pending(self) -> int | None:
        """When the job that has been ready for longest fell due, in epoch milliseconds."""
        return calls.oldest(await self.status())

    async def clear(self) -> int:
        """Remove everything that waits or runs; answers how many. Dead letters stay."""
        return await self._send(calls.purge(self.name, calls.LIVE_STATES, None))

    async def purge(self, states: Sequence[State | StateWord] = tuple(State), *, limit: int | None = None) -> int:
        """Remove jobs by state; answers how many."""
        return await self._send(calls.purge(self.name, states, limit))


class AsyncDeadLetters:
    """The jobs of one queue that ran out of tries, were killed, or expired where the queue keeps those."""

    def __init__(self, client: AsyncClient, queue: Queue) -> None:
        self._queue = queue
        self._send = client.send

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._queue}>"

    async def list_jobs(self, *, cursor: str | None = None, limit: int = 100) -> Page:
        """A page of dead letters, longest dead first."""
        return await self._send(calls.list_jobs(self._queue, State.DEAD, cursor, limit))

    async def respawn(
        self, ids: Sequence[str] | None = None, *, limit: int = 1, ttl: Duration = 0, tries: int | None = None
    ) -> list[Moved]:
        """Bring jobs back, by id or the longest dead first; used tries start again at 0."""
        return await self._send(calls.respawn(self._queue, ids, limit, ttl, tries))

    async def delete(self, ids: Sequence[str]) -> list[Result]:
        """Remove dead letters by id, for good."""
        return await self._send(calls.cancel(self._queue, ids))

    async def clear(self, *, limit: int | None = None) -> int:
        """Remove all dead letters, or only the longest dead ones; answers how many."""
        return await self._send(calls.purge(self._queue, [State.DEAD], limit))

"""Every verb of the SDK, once: functions that make Calls (`call.py`), without any I/O."""

import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import UNSET

from duetime.client import checks
from duetime.client.call import (
    Call,
    Pushing,
    Request,
    Reserving,
    Settling,
    decode,
    get_request,
    post_request,
    queue_path,
    then,
)
from duetime.client.leased_job import JobInHand
from duetime.model.clock import MAX_INSTANT, Duration, Instant, delay_ms, duration_ms, instant_ms
from duetime.model.errors import DuetimeError, InvalidRequest, JobNotFound
from duetime.model.job import (
    STEP_JOBS,
    Counts,
    Delivery,
    IfExists,
    Job,
    Lease,
    Moved,
    NewJob,
    QueueTotals,
    State,
    check_tries,
    check_whole,
    chunks,
    payload_bytes,
)
from duetime.model.names import Queue
from duetime.stores.base import Cursor, Mark, Page, Push, Pushed, QueueRules, RulesChange
from duetime.stores.finishes import Finish, Finished, KeptResult
from duetime.wire import convert, messages

if TYPE_CHECKING:
    from duetime.engine import Engine

Leased = Lease | Delivery | JobInHand
Result = Moved | DuetimeError | None
StateWord = Literal["delayed", "ready", "leased", "dead"]
LIVE_STATES = (State.DELAYED, State.READY, State.LEASED)


# --- producers


REPEATS_MS = 5 * 60_000
"""The life of a mark: longer than all tries of one call take together, each with its full timeout."""


def mark_for_repeats(jobs: Sequence[NewJob]) -> Mark | None:
    """A new mark, so that a repeated request pushes nothing twice. None if all jobs fall due after the last repetition,
    because the ids of waiting jobs show that they were pushed; None for lost jobs that reconcile pushes again, because
    these have marks of their own (`repair_mark`).
    """
    if any(job.born for job in jobs) or all(job.due_at is None and job.delay_ms > REPEATS_MS for job in jobs):
        return None
    token = secrets.token_bytes(8)
    # Text before the first slash would be the name of a batch. The time comes first, because a SQL store keeps
    # marks in the order of their names: those of one moment are then neighbours, and not spread over the whole index.
    return Mark(f"/sdk/{time.time_ns() // 1_000_000:011x}-{token.hex()}", token, REPEATS_MS)


def push(queue: Queue, jobs: Sequence[NewJob], if_exists: IfExists, mark: Mark | None = None) -> Call[Pushed]:
    """Pushes all jobs or none. It can be repeated, because the ids are part of the call: a repeated keep finds its own
    jobs while they exist. Over HTTP a mark is sent too, so that jobs that were finished meanwhile are not pushed again.
    """

    def parse(reply: bytes) -> Pushed:
        message = decode(reply, messages.PushedOut)
        moved = [one for one in convert.results(message.results) if isinstance(one, Moved)]
        return Pushed(moved, message.now, message.repeated)

    return Call(
        lambda: post_request(queue, "batch", _batch(jobs, if_exists, mark or mark_for_repeats(jobs))),
        parse,
        lambda engine: engine.push(queue, jobs, if_exists=if_exists, mark=mark),
        if_exists is not IfExists.ERROR,
        subject=Pushing(queue, jobs, lambda others: push(queue, others, if_exists, mark)),
        run_blocking=lambda engine: engine.run_blocking(
            engine.requests.PushRequest(queue, Push(jobs, if_exists, mark))
        ),
    )


def push_one(queue: Queue, job: NewJob, if_exists: IfExists = IfExists.KEEP) -> Call[Moved]:
    """Written without `then`, because producers call it most often."""
    jobs = (job,)

    async def run(engine: "Engine") -> Moved:
        return (await engine.push(queue, jobs, if_exists=if_exists)).jobs[0]

    def run_blocking(engine: "Engine") -> Moved:
        return engine.run_blocking(engine.requests.PushRequest(queue, Push(jobs, if_exists))).jobs[0]

    return Call(
        lambda: post_request(queue, "batch", _batch(jobs, if_exists, mark_for_repeats(jobs))),
        _first_pushed,
        run,
        if_exists is not IfExists.ERROR,
        subject=Pushing(queue, jobs, lambda others: push_one(queue, others[0], if_exists)),
        run_blocking=run_blocking,
    )


def _first_pushed(reply: bytes) -> Moved:
    moved = convert.results(decode(reply, messages.PushedOut).results)[0]
    assert isinstance(moved, Moved)
    return moved


def bulk(queue: Queue, jobs: Iterable[NewJob], if_exists: IfExists = IfExists.KEEP) -> Iterator[Call[Pushed]]:
    """One call for each list of jobs that fits into a call."""
    for chunk in chunks(jobs, size=payload_bytes):
        yield push(queue, chunk, if_exists)


def push_each(queue: Queue, jobs: Sequence[NewJob], if_exists: IfExists) -> Call[list[Result]]:
    """Pushes each job independently of the others; one answer per job."""

    async def run(engine: "Engine") -> list[Result]:
        answers: list[Result] = []
        for job in jobs:
            try:
                answers += (await engine.push(queue, [job], if_exists=if_exists)).jobs
            except DuetimeError as error:
                answers.append(error)
        return answers

    return Call(
        lambda: post_request(queue, "batch", _batch(jobs, if_exists, mark_for_repeats(jobs), atomic=False)),
        lambda reply: convert.results(decode(reply, messages.PushedOut).results),
        run,
        if_exists is not IfExists.ERROR,
        subject=Pushing(queue, jobs, lambda others: push_each(queue, others, if_exists)),
    )


def _batch(jobs: Sequence[NewJob], if_exists: IfExists, mark: Mark | None, *, atomic: bool = True) -> messages.BatchIn:
    marked = messages.MarkIn(mark.name, mark.digest.hex(), f"{mark.life_ms}ms") if mark else None
    return messages.BatchIn([convert.job_in(job) for job in jobs], if_exists, atomic, marked)


def cancel(queue: Queue, ids: Sequence[str]) -> Call[list[Result]]:
    async def run(engine: "Engine") -> list[Result]:
        return list(await engine.cancel(queue, ids))

    ids = checks.job_ids(ids)
    return Call(lambda: post_request(queue, "cancel", messages.IdsIn(ids)), _results, run, repeatable=True)


def reschedule(queue: Queue, ids: Sequence[str], delay: Duration | None, due_at: Instant | None) -> Call[list[Result]]:
    if (delay is None) == (due_at is None):
        raise InvalidRequest("give delay or due_at")
    ids = checks.job_ids(ids)
    wait_ms = 0 if delay is None else delay_ms(delay)
    at = None if due_at is None else instant_ms(due_at)

    async def run(engine: "Engine") -> list[Result]:
        return list(await engine.reschedule(queue, ids, delay_ms=wait_ms, due_at=at))

    def request() -> Request:
        when = {"delay": f"{wait_ms}ms"} if at is None else {"due_at": convert.instant_in(at)}
        return post_request(queue, "reschedule", messages.RescheduleIn(ids, **when))

    return Call(request, _results, run, repeatable=at is not None)


# --- consumers


def reserve(namespace: str, queues: Sequence[Queue], limit: int, ttr: Duration, wait: Duration) -> Call[list[Delivery]]:
    ttr_ms, wait_ms = duration_ms(ttr), duration_ms(wait)
    limit = check_whole("limit", limit, 1, messages.MAX_RESERVE)

    def request() -> Request:
        message = messages.ReserveManyIn(
            limit=limit, ttr=f"{ttr_ms}ms", wait=f"{wait_ms}ms", queues=[queue.name for queue in queues]
        )
        return Request("POST", f"/v1/namespaces/{quote(namespace, safe='')}/reserve", msgspec.json.encode(message))

    def parse(reply: bytes) -> list[Delivery]:
        return [convert.delivery(namespace, one) for one in decode(reply, messages.DeliveriesOut).deliveries]

    def run_blocking(engine: "Engine") -> list[Delivery]:
        return engine.run_blocking(engine.requests.ReserveRequest(queues[0], ttr_ms, limit, wait_ms))

    return Call(
        request,
        parse,
        lambda engine: engine.reserve(queues, limit=limit, ttr_ms=ttr_ms, wait_ms=wait_ms),
        wait_ms=wait_ms,
        subject=Reserving(),
        run_blocking=run_blocking if len(queues) == 1 else None,
    )


def ack(queue: Queue, leases: Sequence[Leased]) -> Call[list[Result]]:
    """One answer per lease: what happened, LeaseLost, or None where the job was gone already."""
    leases = list(checks.items("leases", leases))
    held = [lease_of(one) for one in leases]

    async def run(engine: "Engine") -> list[Result]:
        return list(await engine.ack(held))

    def run_blocking(engine: "Engine") -> list[Result]:
        return list(engine.run_blocking(engine.requests.AckRequest(held[0].queue, held)))

    return Call(
        lambda: post_request(queue, "ack", messages.AckIn(leases=[convert.lease_ref(one) for one in held])),
        _results,
        run,
        repeatable=True,
        subject=Settling("ack", _held(leases)),
        run_blocking=run_blocking if len(held) == 1 else None,
    )


def finish(queue: Queue, finishes: Sequence[Finish]) -> Call[list[Finished | DuetimeError | None]]:
    """One answer per finish: what happened, LeaseLost or another refusal, or None where the job was gone already."""
    finishes = list(checks.items("finishes", finishes))
    for one in finishes:
        checks.instance("each of the finishes", one, Finish)
        for job in (*one.then, *(one.join.then if one.join else ())):
            checks.new_job(job)

    def parse(reply: bytes) -> list[Finished | DuetimeError | None]:
        return [convert.finished(one) for one in decode(reply, messages.FinishesOut).results]

    return Call(
        lambda: post_request(queue, "finish", messages.FinishesIn([convert.finish_in(one) for one in finishes])),
        parse,
        lambda engine: engine.finish(finishes),
        repeatable=True,
        subject=Settling("finish", [one.lease for one in finishes]),
    )


def results(queue: Queue, ids: Sequence[str], wait: Duration) -> Call[list[KeptResult | None]]:
    """Results of at most MAX_RESULTS jobs, in the order of the ids."""
    ids, wait_ms = checks.job_ids(ids), duration_ms(wait)
    check_whole("the number of ids", len(ids), 0, messages.MAX_RESULTS)

    def parse(reply: bytes) -> list[KeptResult | None]:
        return [one and convert.kept_result(one) for one in decode(reply, messages.KeptResultsOut).results]

    return Call(
        lambda: post_request(queue, "results", messages.ResultsIn(ids, f"{wait_ms}ms")),
        parse,
        lambda engine: engine.results(queue, ids, wait_ms=wait_ms),
        repeatable=True,
        wait_ms=wait_ms,
    )


def release(leased: Leased, delay: Duration, error: str) -> Call[Moved]:
    lease, delay_ms, error = lease_of(leased), duration_ms(delay), checks.error_text(error)

    message = messages.ReleaseIn(convert.lease_ref(lease), f"{delay_ms}ms", error)
    return Call(
        lambda: post_request(lease.queue, "release", message),
        _moved,
        lambda engine: engine.release(lease, delay_ms=delay_ms, error=error),
        subject=Settling("release", _held([leased])),
    )


def give_back(leases: Sequence[Leased], delay: Duration | None = None) -> Call[list[Result]]:
    """One answer per lease of one queue: what happened, or LeaseLost."""
    held, delay_ms = [lease_of(one) for one in leases], None if delay is None else duration_ms(delay)

    async def run(engine: "Engine") -> list[Result]:
        return list(await engine.give_back(held, delay_ms=delay_ms))

    refs = [convert.lease_ref(one) for one in held]
    message = messages.GiveBackIn(leases=refs, delay=UNSET if delay_ms is None else f"{delay_ms}ms")
    return Call(lambda: post_request(held[0].queue, "give_back", message), _results, run)


def kill(leased: Leased, error: str) -> Call[Moved]:
    lease, error = lease_of(leased), checks.error_text(error)

    message = messages.KillIn(convert.lease_ref(lease), error)
    return Call(
        lambda: post_request(lease.queue, "kill", message),
        _moved,
        lambda engine: engine.kill(lease, error=error),
        subject=Settling("kill", _held([leased])),
    )


def extend(leased: Leased, ttr: Duration) -> Call[int]:
    lease, ttr_ms = lease_of(leased), duration_ms(ttr)

    return Call(
        lambda: post_request(lease.queue, "extend", messages.ExtendIn(convert.lease_ref(lease), f"{ttr_ms}ms")),
        lambda reply: decode(reply, messages.ExtendedOut).lease_until,
        lambda engine: engine.extend(lease, ttr_ms),
        repeatable=True,
    )


def lease_of(leased: Leased) -> Lease:
    if isinstance(leased, Lease):
        checks.instance("queue of a lease", leased.queue, Queue)
        return leased
    if isinstance(leased, JobInHand | Delivery):  # pyright: ignore[reportUnnecessaryIsInstance]
        return leased.lease
    raise InvalidRequest(f"leased job must be a job from pop() or reserve(), or its lease, got {leased!r:.60}")


def _held(leased: Sequence[Leased]) -> list[Lease | Delivery]:
    """The same as data."""
    return [one.delivery if isinstance(one, JobInHand) else one for one in leased]


PARK_MS = 30_000
"""One wait of a `take` that waits for long; a server ends longer ones."""


def parks(timeout: Duration | None) -> Iterator[str]:
    """Consecutive waits that add up to the timeout; they never end without one. A timeout of 0 is one check."""
    left_ms = None if timeout is None else duration_ms(timeout)
    while True:
        park_ms = PARK_MS if left_ms is None else min(left_ms, PARK_MS)
        yield f"{park_ms}ms"
        if left_ms is not None:
            left_ms -= park_ms
            if left_ms <= 0:
                return


# --- queries


def get(queue: Queue, ids: Sequence[str]) -> Call[list[Job | None]]:
    """Jobs by distinct ids. An answer may be cut at its size limit after any id; `Lookup` asks for the rest."""
    ids = checks.job_ids(ids)

    async def run(engine: "Engine") -> list[Job | None]:
        return list(await engine.store.get(queue, ids))

    def parse(reply: bytes) -> list[Job | None]:
        return [one and convert.job(one) for one in decode(reply, messages.JobsOut).jobs]

    return Call(lambda: post_request(queue, "get", messages.IdsIn(ids)), parse, run, repeatable=True)


def get_one(queue: Queue, job_id: str) -> Call[Job]:
    """Raises JobNotFound."""

    def only(found: Sequence[Job | None]) -> Job:
        if found[0] is None:
            raise JobNotFound.of(job_id, queue)
        return found[0]

    return then(get(queue, [job_id]), only)


def list_jobs(queue: Queue, state: State | StateWord, cursor: str | None, limit: int) -> Call[Page]:
    state = checks.state(state)
    limit = check_whole("limit", limit, 1, messages.MAX_LIST)
    if cursor is not None:
        Cursor.parse(cursor)

    return Call(
        lambda: get_request(queue_path(queue, "jobs"), state=state, cursor=cursor, limit=limit),
        lambda reply: convert.page(decode(reply, messages.PageOut)),
        lambda engine: engine.store.list_jobs(queue, state, cursor=cursor, limit=limit),
        repeatable=True,
    )


@dataclass(frozen=True)
class QueueStatus:
    """A queue with its counts and rules. `next_at` is when its first waiting job is or was due; None if there is none,
    or while the queue is paused.
    """

    queue: Queue
    counts: Counts
    rules: QueueRules
    next_at: int | None

    @property
    def late_ms(self) -> int:
        """How long its first waiting job has been due."""
        return max(self.counts.now - self.next_at, 0) if self.next_at is not None else 0


def status(queue: Queue) -> Call[QueueStatus]:
    async def run(engine: "Engine") -> QueueStatus:
        [counts] = await engine.store.counts([queue])
        [head] = await engine.store.heads([queue])
        return QueueStatus(queue, counts, await engine.store.configure(queue), head)

    return Call(
        lambda: get_request(queue_path(queue)),
        lambda reply: _status(decode(reply, messages.QueueOut)),
        run,
        repeatable=True,
    )


def statuses(namespace: str | None) -> Call[list[QueueStatus]]:
    async def run(engine: "Engine") -> list[QueueStatus]:
        found = await engine.store.queues(namespace)
        counted = zip(found, await engine.store.counts(found), await engine.store.heads(found), strict=True)
        return [
            QueueStatus(queue, counts, await engine.store.configure(queue), head) for queue, counts, head in counted
        ]

    return Call(
        lambda: get_request("/v1/queues", namespace=namespace),
        lambda reply: [_status(one) for one in decode(reply, messages.QueuesOut).queues],
        run,
        repeatable=True,
    )


def queue_names(namespace: str | None) -> Call[list[Queue]]:
    """Every queue of the namespace, or of all namespaces."""

    async def run(engine: "Engine") -> list[Queue]:
        return list(await engine.store.queues(namespace))

    through_server = statuses(namespace)
    return Call(
        through_server.request, lambda reply: [one.queue for one in through_server.parse(reply)], run, repeatable=True
    )


def queue_counts(namespace: str | None) -> Call[dict[Queue, Counts]]:
    """Every queue of the namespace, or of all namespaces, with its counts."""

    async def run(engine: "Engine") -> dict[Queue, Counts]:
        found = await engine.store.queues(namespace)
        return dict(zip(found, await engine.store.counts(found), strict=True))

    through_server = statuses(namespace)
    return Call(
        through_server.request,
        lambda reply: {one.queue: one.counts for one in through_server.parse(reply)},
        run,
        repeatable=True,
    )


def _status(message: messages.QueueOut) -> QueueStatus:
    queue, counts = Queue(message.namespace, message.queue), convert.counts(message.counts)
    return QueueStatus(queue, counts, message.rules, message.next_at or None)


def totals(queue: Queue) -> Call[QueueTotals]:
    async def run(engine: "Engine") -> QueueTotals:
        [found] = await engine.store.totals([queue])
        return found

    return Call(
        lambda: get_request(queue_path(queue, "totals")),
        lambda reply: decode(reply, QueueTotals),
        run,
        repeatable=True,
    )


def due_histogram(queue: Queue, edges: Sequence[int]) -> Call[list[int]]:
    # The last edge may be the instant after the last one.
    edges = [check_whole("edge", edge, 0, MAX_INSTANT + 1) for edge in checks.items("edges", edges)]
    if not 2 <= len(edges) <= messages.MAX_BUCKETS + 1 or any(low >= high for low, high in pairwise(edges)):
        raise InvalidRequest(f"edges must rise, and must be 2 to {messages.MAX_BUCKETS + 1}, got {edges!r:.60}")

    async def run(engine: "Engine") -> list[int]:
        return list(await engine.store.due_histogram(queue, edges))

    return Call(
        lambda: get_request(queue_path(queue, "due"), edges=",".join(map(str, edges))),
        lambda reply: decode(reply, messages.HistogramOut).counts,
        run,
        repeatable=True,
    )


def size(counts: Counts) -> int:
    return counts.ready + counts.delayed + counts.leased


def oldest(status: QueueStatus) -> int | None:
    """When the job that has been ready for the longest time fell due."""
    return status.next_at if status.next_at is not None and status.next_at <= status.counts.now else None


# --- administration


def respawn(queue: Queue, ids: Sequence[str] | None, limit: int, ttl: Duration, tries: int | None) -> Call[list[Moved]]:
    ttl_ms = duration_ms(ttl)
    limit = check_whole("limit", limit, 1, messages.MAX_RESPAWN)
    ids = None if ids is None else checks.job_ids(ids)
    tries = None if tries is None else check_tries(tries)

    def request() -> Request:
        return post_request(queue, "respawn", messages.RespawnIn(ids, limit, f"{ttl_ms}ms", tries))

    return Call(
        request,
        lambda reply: [one for one in _results(reply) if isinstance(one, Moved)],
        lambda engine: engine.respawn(queue, ids=ids, limit=limit, ttl_ms=ttl_ms, tries=tries),
    )


def purge(queue: Queue, states: Sequence[State | StateWord], limit: int | None) -> Call[int]:
    states = [checks.state(one) for one in checks.items("states", states)]
    if limit is not None:
        check_whole("limit", limit, 1, messages.MAX_CAP)

    return Call(
        lambda: post_request(queue, "purge", messages.PurgeIn(states, limit)),
        lambda reply: decode(reply, messages.PurgedOut).removed,
        lambda engine: engine.purge(queue, states, limit=limit),
        repeatable=limit is None,
    )


def configure(queue: Queue, change: RulesChange | None) -> Call[QueueRules]:
    if change is not None:
        checks.instance("change", change, RulesChange)
        try:
            msgspec.convert(msgspec.to_builtins(change), messages.RulesIn)
        except (msgspec.ValidationError, TypeError) as error:
            raise InvalidRequest(str(error)) from None

    def request() -> Request:
        if change is None:
            return get_request(queue_path(queue, "rules"))
        return Request("PATCH", queue_path(queue, "rules"), msgspec.json.encode(change))

    return Call(
        request,
        lambda reply: decode(reply, QueueRules),
        lambda engine: engine.store.configure(queue, change),
        repeatable=True,
    )


# --- parts


def first(answers: Sequence[Result]) -> Moved | None:
    """The only answer of a call about one job. Raises it if it is an error."""
    answer = answers[0]
    if isinstance(answer, DuetimeError):
        raise answer
    return answer


def found(job_id: str) -> Callable[[Sequence[Result]], Moved]:
    """Like `first`, but raises JobNotFound if there is no such job."""

    def check(answers: Sequence[Result]) -> Moved:
        moved = first(answers)
        if moved is None:
            raise JobNotFound(f"job not found: {job_id!r}", id=job_id)
        return moved

    return check


def _moved(reply: bytes) -> Moved:
    moved = convert.result(decode(reply, messages.ResultOut))
    if not isinstance(moved, Moved):
        raise DuetimeError("the server's answer lacks what happened to the job")
    return moved


def _results(reply: bytes) -> list[Result]:
    return convert.results(decode(reply, messages.ResultsOut).results)


class Lookup:
    """Asks for each id once. An answer may be cut at its size limit; the next call asks for the rest."""

    def __init__(self, queue: Queue, ids: Sequence[str]) -> None:
        self._queue = queue
        self._ids = checks.job_ids(ids)
        self._left = list(dict.fromkeys(self._ids))
        self._found: dict[str, Job | None] = {}

    def next_call(self) -> Call[list[Job | None]] | None:
        return get(self._queue, self._left[:STEP_JOBS]) if self._left else None

    def take(self, jobs: Sequence[Job | None]) -> None:
        if not jobs:
            raise DuetimeError("the server's answer lacks the jobs that were asked for")
        self._found.update(zip(self._left, jobs, strict=False))
        del self._left[: len(jobs)]

    def jobs(self) -> list[Job | None]:
        """The jobs in the order of the ids, repeats included; None where there is no job."""
        return [self._found[job_id] for job_id in self._ids]


class ClientLeases:
    """`send` makes a call; each list is about one queue."""

    def __init__(self, send: Callable[[Call[Any]], Awaitable[Any]]) -> None:
        self._send = send

    async def ack(self, leases: Sequence[Lease]) -> Sequence[Result]:
        return await self._send(ack(leases[0].queue, leases))

    async def finish(self, finishes: Sequence[Finish]) -> Sequence[Finished | DuetimeError | None]:
        return await self._send(finish(finishes[0].lease.queue, finishes))

    async def release(self, lease: Lease, *, delay_ms: int = 0, error: str = "") -> Moved:
        return await self._send(release(lease, f"{delay_ms}ms", error))

    async def give_back(self, leases: Sequence[Lease], *, delay_ms: int | None = None) -> Sequence[Result]:
        return await self._send(give_back(leases, None if delay_ms is None else f"{delay_ms}ms"))

    async def kill(self, lease: Lease, *, error: str = "") -> Moved:
        return await self._send(kill(lease, error))

    async def extend(self, lease: Lease, ttr_ms: int) -> int:
        return await self._send(extend(lease, f"{ttr_ms}ms"))


class Answered(NamedTuple):
    """A worker's answer to a call: its body and attributes."""

    job_id: str
    body: bytes
    attributes: Mapping[str, str]


def call(queue: Queue, job: NewJob, wait: Duration, if_exists: IfExists = IfExists.KEEP) -> Call[Answered]:
    """Push a job and wait for the answer that a worker pushes to the queue named after its id. Raises NoAnswer.

    It can be repeated: with the same id it continues to wait for the same answer.
    """
    wait_ms = duration_ms(wait)

    async def run(engine: "Engine") -> Answered:
        from duetime.engine import request_reply  # noqa: PLC0415 (calls to a server need no engine)

        answers = await request_reply.begin_call(engine, queue, job, if_exists)
        found = await engine.reserve([answers], wait_ms=wait_ms)
        delivery = request_reply.answer_of(answers, found)
        await request_reply.end_call(engine, delivery, is_received=True)
        return Answered(job.id, delivery.body, delivery.attributes)

    def request() -> Request:
        return Request(
            "POST",
            f"{queue_path(queue, 'call')}?wait={wait_ms}ms",
            msgspec.json.encode(convert.push_in(job, if_exists)),
        )

    def parse(reply: bytes) -> Answered:
        message = decode(reply, messages.AnswerOut)
        return Answered(message.id, convert.read_body(message.body, message.body_b64), message.attributes)

    again = Pushing(queue, [job], lambda others: call(queue, others[0], wait, if_exists))
    return Call(request, parse, run, repeatable=True, wait_ms=wait_ms, subject=again)


def ack_and_reserve(queue: Queue, leased: Leased, ttr_ms: int) -> Call[list[Delivery] | None]:
    """`queue.pop(ack=job)`: finish a job, and lease a ready one if the store can do that in the same step. Raises
    LeaseLost. The answer is None if the store cannot; then the caller reserves a job.
    """
    lease = lease_of(leased)
    finish = ack(lease.queue, [leased])

    def acked(answers: Sequence[Result]) -> None:
        first(answers)
        mark_settled()

    def mark_settled() -> None:
        if isinstance(leased, JobInHand):
            leased.mark_settled()

    async def run(engine: "Engine") -> None:
        acked(await finish.run(engine))

    def run_blocking(engine: "Engine") -> list[Delivery] | None:
        found = engine.run_blocking(engine.requests.AckAndReserveRequest(queue, lease, ttr_ms))
        mark_settled()
        return found

    return Call(
        finish.request,
        lambda reply: acked(finish.parse(reply)),
        run,
        repeatable=True,
        subject=finish.subject,
        run_blocking=run_blocking if lease.queue == queue else None,
    )

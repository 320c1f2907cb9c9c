"""Middleware that comes with Duetime: each is made by a function here and given to a task or an App.

    @app.task(middleware=[rate_limit(50, per="1s"), without_overlapping(key=lambda job: job.arguments["account"])])
    def charge(account: int) -> None: ...

What they share between processes is in the store (counters, and the queue `duetime.locks`), so they hold for all
workers of a namespace, on every store and over HTTP. A job that has to wait is postponed, which uses no try.
"""

import base64
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Raw, Struct

from duetime.client.call import Call
from duetime.client.calls import get, push
from duetime.client.checks import check_callable, instance
from duetime.model.clock import Duration, duration_ms
from duetime.model.errors import NOT_JSON, DuetimeError, InvalidRequest, InvalidSettings, MarkMismatch, StoreUnavailable
from duetime.model.job import DAY_MS, Event, IfExists, Job, NewJob, State, check_whole
from duetime.model.names import Queue, check_queue
from duetime.stores.base import Mark
from duetime.worker.current_job import CurrentJob
from duetime.worker.middleware_chain import Middleware, PendingJob, WaitingKey
from duetime.worker.pusher import generation_of
from duetime.worker.runs import Cancel, Fail, Postpone, Retry
from duetime.worker.shared_counters import count, count_with_life

Answer = TypeVar("Answer")

OUTAGE_PAUSE_S = 1
MAX_LIMIT = 1_000_000_000


class KeyedJob(Protocol):
    """The input of a key: a job that is being pushed (PendingJob), or one that runs (CurrentJob)."""

    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> Mapping[str, Any]: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def hash_key(self) -> bytes: ...


JobKey = Callable[[KeyedJob], object]


def by_task(job: KeyedJob) -> object:
    """One key for all jobs of a task."""
    return ""


def key_text(kind: str, job: KeyedJob, key: JobKey) -> str:
    """A name of bounded length: equal for equal kinds, tasks and keys in every process. A key that is a text is shared
    by no other task, whatever that text is. The hash is keyed if the arguments are encrypted.
    """
    text = repr(key(job)).encode(errors="backslashreplace")
    digest = hashlib.blake2b(text, key=job.hash_key, digest_size=16, person=b"middleware").hexdigest()
    return f"{kind}/{job.name[-64:]}/{digest}"


async def is_leased(job: CurrentJob, queue: Queue, job_id: str, born: int, attempt: int) -> bool:
    """Returns whether this delivery of a job still holds its lease."""
    [found] = await ask(job, get(queue, [job_id]))
    return found is not None and found.state is State.LEASED and (found.born, found.attempt) == (born, attempt)


async def ask(job: CurrentJob, call: Call[Answer]) -> Answer:
    """Send a call to the store. Postpones the job while the store is unavailable: it may not be allowed to run."""
    try:
        return await job.app.send_async(call)
    except StoreUnavailable as error:
        raise Postpone(f"store is unavailable: {error.message}", after=OUTAGE_PAUSE_S) from error


# --- context


class Context:
    """The values travel as headers of the job, named like the variables."""

    def __init__(self, variables: tuple[ContextVar[str], ...], *, trace: bool) -> None:
        self._variables = variables
        self._propagate: Any = None
        if trace:
            try:
                self._propagate = import_module("opentelemetry.propagate")
                self._attach: Any = import_module("opentelemetry.context").attach
            except ImportError as error:
                raise InvalidSettings("context(trace=True) needs OpenTelemetry: pip install duetime[otel]") from error

    def pushing(self, job: PendingJob) -> None:
        for variable in self._variables:
            value = variable.get(None)
            if value is not None:
                job.headers.setdefault(variable.name, value)
        if self._propagate:
            self._propagate.inject(job.headers)

    def opening(self, job: CurrentJob) -> None:
        """Every run has a context of its own, so nothing needs to be put back."""
        for variable in self._variables:
            if variable.name in job.headers:
                variable.set(job.headers[variable.name])
        if self._propagate:
            self._attach(self._propagate.extract(job.headers))

    def __call__(self, job: CurrentJob, call: Callable[[], Any]) -> Any:
        return call()


def context(*variables: ContextVar[str], trace: bool = False) -> Middleware:
    """Carry these variables from the push to the run. A variable that is not set at the push is left alone; a header of
    the same name that the call gives wins. With `trace`, OpenTelemetry's context is carried as well.
    """
    for variable in variables:
        instance("each variable of context()", variable, ContextVar)
    return Context(variables, trace=trace)


# --- encrypted


# Fernet (the package `cryptography`) encrypts and authenticates the arguments together with the namespace, queue, task
# and id of their job, so they cannot be moved to another job. The name of the task, its queue, times and headers are
# not encrypted. Ids and keys that are made of arguments are keyed hashes.


class SealedArguments(Struct, rename={"token": "$encrypted"}, forbid_unknown_fields=True):
    """The key that replaces the arguments; no parameter of a function can have this name."""

    token: str


class BoundArguments(Struct, frozen=True, array_like=True):
    """What is encrypted: the arguments, and the job that they belong to. Fernet has no associated data, so the job is
    part of the authenticated text.
    """

    namespace: str
    queue: str
    task: str
    id: str
    arguments: Raw

    @property
    def job(self) -> tuple[str, str, str, str]:
        return self.namespace, self.queue, self.task, self.id


class Encrypted:
    """`hash_key` is derived from the first key."""

    def __init__(self, keys: Sequence[str | bytes]) -> None:
        try:
            fernet: Any = import_module("cryptography.fernet")
        except ImportError as error:
            raise InvalidSettings(
                "encrypted arguments need the extra `encrypted`: pip install duetime[encrypted]"
            ) from error
        if not keys:
            raise InvalidRequest("encrypted() must have at least one key: cryptography.fernet.Fernet.generate_key()")
        try:
            self._fernet: Any = fernet.MultiFernet([fernet.Fernet(key) for key in keys])
        except (TypeError, ValueError) as error:  # the key is not shown, because it may be almost right
            raise InvalidRequest(f"each key of encrypted() must be one of Fernet.generate_key(): {error}") from None
        self._refusal: type[Exception] = fernet.InvalidToken
        first = base64.urlsafe_b64decode(keys[0])
        self.hash_key = hashlib.blake2b(key=first, digest_size=32, person=b"duetime hash key").digest()

    def pushing(self, job: PendingJob) -> None:
        def seal(queue: Queue, job_id: str) -> bytes:
            bound = BoundArguments(queue.namespace, queue.name, job.name, job_id, Raw(job.data))
            return msgspec.json.encode(SealedArguments(self._fernet.encrypt(msgspec.json.encode(bound)).decode()))

        job.seal = seal

    def opening(self, job: CurrentJob) -> None:
        try:
            sealed = msgspec.json.decode(job.data, type=SealedArguments)
        except NOT_JSON:
            raise Fail("arguments must be encrypted") from None
        try:
            bound = msgspec.json.decode(self._fernet.decrypt(sealed.token), type=BoundArguments)
        except (self._refusal, *NOT_JSON):
            raise Fail("arguments cannot be decrypted: none of the keys fits, or they were changed") from None
        if bound.job != (job.info.namespace, job.info.queue, job.name, job.info.id):
            raise Fail(
                "arguments were encrypted for another job: "
                f"task {bound.task!r} in {bound.namespace}/{bound.queue}, id {bound.id!r}"
            )
        job.data = bytes(bound.arguments)

    def __call__(self, job: CurrentJob, call: Callable[[], Any]) -> Any:
        return call()


def encrypted(*keys: str | bytes) -> Middleware:
    """The first key encrypts and keys the hashes of ids; every key decrypts. To change keys, put the new one first. A
    job whose arguments were encrypted with another key, or for another job, fails immediately; its task does not run.
    """
    return Encrypted(keys)


# --- limits


def skip_if(condition: Callable[[CurrentJob], object]) -> Middleware:
    """Remove the job without running it if the condition is true then. The condition is a plain function."""
    check_callable("condition of skip_if()", condition)

    def skip(job: CurrentJob, call: Callable[[], Any]) -> Any:
        if condition(job):
            raise Cancel("skipped")
        return call()

    return skip


def rate_limit(limit: int, *, per: Duration, key: JobKey = by_task, drop: bool = False) -> Middleware:
    """Let at most `limit` runs of a key begin in each period. What is too much is postponed, or with `drop` removed.

    Runs count when they begin, whatever becomes of them; a job that is postponed has not counted. The period begins
    with its first run, by the store's clock: it is the life of a counter. A job is postponed to the period in which its
    turn comes, by how many are ahead of it, so a long line costs one or two checks per job and not one per period.
    """
    per_ms = _period_ms(limit, per, key)

    async def limited(job: CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
        name = key_text("rate", job, key)
        window = await ask(job, count_with_life(job.info.namespace, name, 1, life_ms=per_ms))
        ahead = (window.value - 1) // limit
        if not ahead:
            return await call()
        if drop:
            raise Cancel(f"more than {limit} runs in {per_ms}ms")
        raise Postpone(after=f"{max(1, window.left_ms) + (ahead - 1) * per_ms}ms")

    return limited


def throttle_exceptions(limit: int, *, per: Duration, key: JobKey = by_task) -> Middleware:
    """After `limit` exceptions in a period, no run of the key begins until the period is over: jobs of a service that
    is down wait, and use no tries. The period begins with its first exception. An exception is raised as ever, and its
    job is retried by the task's backoff; Retry, Postpone, Cancel and Fail do not count.
    """
    per_ms = _period_ms(limit, per, key)

    async def throttled(job: CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
        namespace, name = job.info.namespace, key_text("exceptions", job, key)
        window = await ask(job, count_with_life(namespace, name))
        if window.value >= limit:
            raise Postpone(f"{limit} exceptions in {per_ms}ms", after=f"{max(1, window.left_ms)}ms")
        try:
            return await call()
        except (Retry, Postpone, Cancel, Fail):
            raise
        except Exception:
            await ask(job, count_with_life(namespace, name, 1, life_ms=per_ms))
            raise

    return throttled


def _period_ms(limit: int, per: Duration, key: JobKey) -> int:
    """Checks the arguments of a limit; returns its period."""
    check_callable("key", key)
    check_whole("limit", limit, 1, MAX_LIMIT)
    if not (per_ms := duration_ms(per)):
        raise InvalidRequest(f"period of a limit must be at least 1ms, got {per!r}")
    return per_ms


# --- debounce and unique_until_start

# A key has at most one job that has not begun. The job's id ends with the number of its generation, which a counter of
# the key holds. A job that begins increments the counter, so the next push has another id and no longer meets this job,
# however long it runs and however often it is retried. A push may replace a job that a worker has reserved but not
# begun; such a job does not run.


class OneWaiting:
    """With a `delay_ms` every push gets that delay and replaces the waiting job; otherwise the waiting job is kept."""

    def __init__(self, kind: str, key: JobKey, life_ms: int, delay_ms: int | None = None) -> None:
        check_callable("key", key)
        self._kind = kind
        self._key = key
        self._life_ms = life_ms
        self._delay_ms = delay_ms

    def pushing(self, job: PendingJob) -> None:
        debounces = self._delay_ms is not None
        if debounces:
            job.delay_ms = self._delay_ms
        job.waiting_key = WaitingKey(key_text(self._kind, job, self._key), self._life_ms, replaces=debounces)

    async def __call__(self, job: CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make room for the next job of the key, then run this one, unless a later push has replaced it."""
        found, info = generation_of(job.id), job.info
        if found is not None:
            counter, generation = found
            queue = Queue(info.namespace, info.queue)
            if not await is_leased(job, queue, info.id, info.born, info.attempt):
                raise Cancel("a later push has replaced this job")
            if await ask(job, count(info.namespace, counter)) == generation:
                await ask(job, count(info.namespace, counter, 1, life_ms=DAY_MS))
        return await call()


def debounce(wait: Duration, *, key: JobKey = by_task) -> Middleware:
    """A push is due after `wait`, and takes the place of an earlier one of its key that has not begun: there is one
    job, with the arguments of the last push. The time of `later`, `at` and `options(delay=)` is not used.
    """
    return OneWaiting("debounce", key, DAY_MS, duration_ms(wait))


def by_arguments(job: KeyedJob) -> object:
    return dict(job.arguments)


def unique_until_start(life: Duration, *, key: JobKey = by_arguments) -> Middleware:
    """While a job waits, another push of its key does nothing: its answer is `kept`, with the id of the waiting job.
    For one that holds until the job is done, see the task's option `unique_for`.
    """
    return OneWaiting("unique", key, duration_ms(life))


# --- without_overlapping


# The lock is a job in the queue `duetime.locks`, which nobody reserves. Its id is made of the key; its body names the
# delivery that holds it. A lock lives no longer than the lease of its holder: a job that finds it held checks the
# holder's job, and takes the lock over if that delivery has lost its lease (its worker was killed). Acquiring and
# releasing are each a check and a push with a mark made of the `born` of the lock that was seen, so only one of those
# that saw the same lock can replace it. A released lock stays for a while as a free one: if it went immediately, a
# process that has just seen it could replace its successor.

LOCKS = "duetime.locks"
LIFE_MS = 7 * DAY_MS
"""The longest that a lock is held, and that one is kept whose holder died and whose key nobody asks for again."""
FREE_MS = 120_000
"""The life of a free lock, and of the marks: longer than any read of a lock stays relevant."""
SEEN_S = 30
"""A lock that was seen longer ago is not replaced."""
CHECKS = 5
"""How often a lock that keeps changing is checked before the job waits like others."""


class LockHolder(Struct, frozen=True, array_like=True):
    """One delivery of one job."""

    queue: str
    id: str
    born: int
    attempt: int


def without_overlapping(key: JobKey = by_task, *, after: Duration = "1s", drop: bool = False) -> Middleware:
    """Run no two jobs of a key at the same time. The second one is postponed by `after`, or with `drop` removed."""
    check_callable("key", key)
    after_ms = duration_ms(after)

    async def alone(job: CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
        lock = OverlapLock(job, key_text("overlap", job, key))
        if not await lock.acquire():
            if drop:
                raise Cancel("another one is running")
            raise Postpone(after=f"{after_ms}ms")
        try:
            return await call()
        finally:
            await lock.release()

    return alone


class OverlapLock:
    def __init__(self, job: CurrentJob, name: str) -> None:
        info = job.info
        self._job = job
        self._name = name
        self._queue: Queue = check_queue(info.namespace, LOCKS)
        self._mine = msgspec.json.encode(LockHolder(info.queue, info.id, info.born, info.attempt))
        self._born = 0

    async def acquire(self) -> bool:
        """Returns False if another delivery holds it."""
        for _ in range(CHECKS):
            seen_at = time.monotonic()
            [moved] = (await ask(self._job, push(self._queue, [self._lock()], IfExists.KEEP))).jobs
            if moved.event is not Event.KEPT:
                self._born = moved.born
                return True
            [held] = await ask(self._job, get(self._queue, [self._name]))
            if held is None:
                continue  # it was let go of in this moment
            if held.body == self._mine:  # the answer to the push was lost, and the push was repeated
                self._born = held.born
                return True
            if await self._is_held(held):
                return False
            if time.monotonic() - seen_at < SEEN_S and await self._replace(held.born, self._lock()):
                return True
        return False

    async def release(self) -> None:
        """Free the lock if this delivery still owns it. The mark alone cannot show that: a run that hung may come here
        long after another one took the lock over, when the mark of the takeover has ended.
        """
        try:
            [held] = await ask(self._job, get(self._queue, [self._name]))
            if held is not None and held.born == self._born:
                await self._replace(self._born, NewJob(self._name, b"", delay_ms=FREE_MS, ttl_ms=FREE_MS, tries=0))
        except (DuetimeError, Postpone):
            return  # it ends with the lease

    async def _is_held(self, lock: Job) -> bool:
        try:
            holder = msgspec.json.decode(lock.body, type=LockHolder)
            queue = check_queue(self._queue.namespace, holder.queue)
        except (*NOT_JSON, DuetimeError):
            return False  # it was let go of
        return await is_leased(self._job, queue, holder.id, holder.born, holder.attempt)

    async def _replace(self, born: int, new: NewJob) -> bool:
        """Put a new lock in the place of the one that was born then; False if another run has."""
        mark = Mark(f"/lock/{self._name}~{born}", new.body or b"free", FREE_MS)
        try:
            pushed = await ask(self._job, push(self._queue, [new], IfExists.REPLACE, mark))
        except MarkMismatch:
            return False
        self._born = pushed.jobs[0].born
        return True

    def _lock(self) -> NewJob:
        return NewJob(self._name, self._mine, delay_ms=LIFE_MS, ttl_ms=LIFE_MS, tries=0)

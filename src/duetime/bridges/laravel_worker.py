"""A worker that runs Laravel's jobs in Python, next to PHP workers on the same queues.

A handler gets the LaravelJob. Jobs without a handler are left to other workers: they are given back without
counting as an attempt. Reservations are renewed by `consumer/` while a handler runs.
"""

import asyncio
import logging
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from duetime.bridges.laravel import LaravelJob, LaravelQueues, ReservedJob
from duetime.bridges.payload import LaravelPayload
from duetime.bridges.redis_scripts import ForeignRedis
from duetime.client import event_loop
from duetime.consumer.held_leases import HeldLeases
from duetime.duties import Rounds, run_duty
from duetime.model.errors import DuetimeError, InvalidSettings, LeaseLost, StoreUnavailable
from duetime.model.job import Event, Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Finish, Finished

log = logging.getLogger("duetime.bridges")

Handler = Callable[[LaravelJob], object]
WAIT_S = 2.0
PAUSED_S = 0.5
UNKNOWN_DELAY_S = 10
MAX_ERROR = 10_000


class LaravelCache:
    """The application's cache in Redis, with the flags of `artisan queue:restart` and `queue:pause`, and the count of a
    job's exceptions. Without it a worker knows none of these.
    `prefix` is everything before `illuminate:queue:restart` in the names of its keys: that of the Redis connection and
    that of the cache. `connection` is the name of the queue connection, as in `queue:pause redis:default`.
    """

    def __init__(self, url: str, *, prefix: str = "", connection: str = "redis") -> None:
        self._redis, self._prefix, self._connection = ForeignRedis(url), prefix, connection
        self._stamp: list[bytes | None] = []

    def was_restarted(self) -> bool:
        """Returns whether `queue:restart` was called since this was first asked."""
        stamp = self._get("illuminate:queue:restart")
        self._stamp = self._stamp or [stamp]
        return stamp != self._stamp[0]

    def unpaused(self, queues: Sequence[str]) -> list[str]:
        if self._get("illuminate:queues:paused") is not None:
            return []
        return [name for name in queues if self._get(f"illuminate:queue:paused:{self._connection}:{name}") is None]

    def count_exception(self, uuid: str, most: int) -> bool:
        """Returns whether the job has had as many exceptions as it may."""
        key = f"{self._prefix}job-exceptions:{uuid}"
        self._redis.call("SET", key, 0, "EX", 86_400, "NX")
        if self._redis.call("INCR", key) < most:
            return False
        self._redis.call("DEL", key)
        return True

    def _get(self, name: str) -> bytes | None:
        return self._redis.call("GET", self._prefix + name)


class ReservedJobs:
    """The reservations of a worker as the leases that `consumer/` holds."""

    def __init__(self, queues: LaravelQueues) -> None:
        self._queues = queues
        self._jobs: dict[Lease, ReservedJob] = {}

    def lease(self, job: ReservedJob) -> Lease:
        name = job.payload.uuid or job.payload.id or str(hash(job.text))
        lease = Lease(Queue("laravel", job.queue), name, 0, job.attempts)
        self._jobs[lease] = job
        return lease

    async def ack(self, leases: Sequence[Lease]) -> list[Moved | LeaseLost]:
        return [await self._end(lease, Event.ACKED, self._queues.delete) for lease in leases]

    async def release(self, lease: Lease, *, delay_ms: int = 0, error: str = "") -> Moved:
        return _held(await self._end(lease, Event.RELEASED, lambda job: self._queues.release(job, delay_ms / 1000)))

    async def give_back(self, leases: Sequence[Lease], *, delay_ms: int | None = None) -> list[Moved | LeaseLost]:
        def end(job: ReservedJob) -> bool:
            return self._queues.release(job, (delay_ms or 0) / 1000, uncounted=1)

        return [await self._end(lease, Event.GIVEN_BACK, end) for lease in leases]

    async def kill(self, lease: Lease, *, error: str = "") -> Moved:
        return _held(await self._end(lease, Event.DEAD, lambda job: self._queues.fail(job, error)))

    async def extend(self, lease: Lease, ttr_ms: int) -> int:
        job = self._jobs.get(lease)
        if job is None or not await asyncio.to_thread(self._queues.extend, job):
            raise LeaseLost(f"reservation of Laravel job {lease.id!r} was lost")
        return ttr_ms

    async def finish(self, finishes: Sequence[Finish]) -> list[Finished | DuetimeError | None]:
        raise InvalidSettings("Laravel jobs have no follow-up jobs")

    async def _end(self, lease: Lease, event: Event, end: Callable[[ReservedJob], bool]) -> Moved | LeaseLost:
        # One that is not known ended in an earlier call for several jobs, of which another one failed.
        job = self._jobs.get(lease)
        was_held = job is None or await asyncio.to_thread(end, job)
        self._jobs.pop(lease, None)
        if was_held:
            return Moved(event, lease.id, lease.born, lease.attempt)
        return LeaseLost(f"reservation of Laravel job {lease.id!r} was lost")


def _held(answer: Moved | LeaseLost) -> Moved:
    if isinstance(answer, LeaseLost):
        raise answer
    return answer


class LaravelWorker:
    """`handlers` maps names of jobs to functions: `Class@method`, `Class`, or the class of a serialized PHP command,
    whose handler gets PHP's text. `tries` and `backoff` (seconds) are for payloads that have none, as in
    `artisan queue:work`. With a `cache`, it ends after `queue:restart` and leaves paused queues alone.
    """

    def __init__(  # noqa: PLR0913 - options of `artisan queue:work`
        self,
        queues: LaravelQueues,
        handlers: Mapping[str, Handler],
        *,
        names: Sequence[str] = ("default",),
        concurrency: int = 4,
        tries: int = 1,
        backoff: int = 0,
        cache: LaravelCache | None = None,
    ) -> None:
        if not handlers:
            raise InvalidSettings("LaravelWorker needs at least one handler")
        if concurrency < 1:
            raise InvalidSettings(f"concurrency must be at least 1, got {concurrency}")
        self._queues, self._handlers, self._names = queues, dict(handlers), list(names)
        self._concurrency, self._tries, self._backoff, self._cache = concurrency, tries, backoff, cache
        self._reserved = ReservedJobs(queues)
        self._running: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._leases = HeldLeases(lambda: self._reserved, queues.retry_after_s * 1000, self._spawn)
        self.done = 0

    def run(self) -> None:
        """Block until TERM or INT."""
        event_loop.run(self.run_async(handle_signals=True))

    async def run_async(self, *, handle_signals: bool = False) -> None:
        if handle_signals:
            loop = asyncio.get_running_loop()
            for one in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(one, self.stop)
        renewal = asyncio.create_task(run_duty(self._leases))
        try:
            await run_duty(Rounds("reserve Laravel jobs", self._round))
            while self._running:
                await asyncio.wait(self._running)
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)
            await self._leases.give_back_all()

    def stop(self) -> None:
        """Finish the running jobs and end."""
        self._stop.set()

    async def _round(self) -> float | None:
        """Reserve jobs and run them. Returns None, which ends the worker, after `stop` and after queue:restart."""
        if self._stop.is_set():
            return None
        free = self._concurrency - len(self._running)
        if free <= 0:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            return 0.0
        found = await asyncio.to_thread(self._reserve, free)
        if found is None:
            log.info("laravel_worker_restarts")
            return None
        for job in found:
            self._spawn(self._run(job))
        return 0.0

    def _reserve(self, limit: int) -> list[ReservedJob] | None:
        """Returns None after `artisan queue:restart`."""
        names = self._names
        if self._cache:
            if self._cache.was_restarted():
                return None
            names = self._cache.unpaused(names)
        if names:
            return self._queues.reserve(names, limit, WAIT_S)
        time.sleep(PAUSED_S)
        return []

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _run(self, reserved: ReservedJob) -> None:
        lease = self._reserved.lease(reserved)
        self._leases.add(lease)
        job = LaravelJob(self._queues, reserved)
        handler = next((self._handlers[name] for name in reserved.payload.names if name in self._handlers), None)
        try:
            if handler is None:
                log.warning("unknown_laravel_job", extra={"job": reserved.payload.names[0], "queue": reserved.queue})
                await self._leases.give_back(lease, delay_ms=UNKNOWN_DELAY_S * 1000)
                return
            # This attempt is counted already. A job whose earlier attempts ended with their workers may have none left.
            if reserved.payload.has_ended(reserved.attempts - 1, self._tries):
                await self._leases.kill(lease, error="attempted too many times")
                return
            await asyncio.to_thread(handler, job)
        except LeaseLost as error:
            log.warning("lease_lost", extra={"error": error.message})
            self._leases.drop(lease)
        except Exception:
            await self._failed(lease, job, traceback.format_exc()[-MAX_ERROR:])
        else:
            self.done += 1
            if job.is_ended:
                self._leases.drop(lease)
            else:
                # The job keeps its place until it is deleted, so a crash repeats no more jobs than run at once.
                answered = asyncio.get_running_loop().create_future()
                self._leases.ack(lease, answered.set_result)
                if isinstance(answer := await answered, DuetimeError):
                    log.warning("not_acked", extra={"job": lease.id, "error": answer.message})

    def _had_exceptions(self, payload: LaravelPayload) -> bool:
        """Counts one more. A cache that is away counts none."""
        most, uuid = payload.maxExceptions, payload.uuid
        try:
            return bool(self._cache and most and uuid and self._cache.count_exception(uuid, most))
        except StoreUnavailable as error:
            log.warning("bridge_unavailable", extra={"error": error.message})
            return False

    async def _failed(self, lease: Lease, job: LaravelJob, error: str) -> None:
        payload, log_fields = job.payload, {"job": job.payload.names[0], "attempt": job.attempts}
        if job.is_ended:
            log.warning("laravel_job_failed_after_its_end", extra=log_fields)
            self._leases.drop(lease)
            return
        log.warning("laravel_job_failed", extra=log_fields)
        try:
            had_exceptions = await asyncio.to_thread(self._had_exceptions, payload)
            if had_exceptions or payload.has_ended(job.attempts, self._tries):
                await self._leases.kill(lease, error=error)
            else:
                await self._leases.release(lease, delay_ms=payload.backoff_s(job.attempts, self._backoff) * 1000)
        except LeaseLost as lost:
            log.warning("lease_lost", extra={"error": lost.message})

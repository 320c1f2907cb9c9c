"""The worker: reserves jobs, has a pool run them, reports to the store what became of them.

One event loop: the fetcher reserves, HeldJobs reports, other duties watch time-outs, leases and memory. Outages of the
store stop none of it: running jobs go on, and their results are reported when the store is back.

A worker stops for one reason: it reserves no more jobs, gives back those that have not begun, and lets the others
finish. A second signal gives those back, too. `work` runs one; `load_app` finds its App.
"""

import asyncio
import importlib
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from duetime.client import AsyncClient, connect_async
from duetime.client.calls import oldest, reserve
from duetime.client.schedule_calls import run_due
from duetime.duties import Duty, Rounds, run_duty
from duetime.engine.schedules import ScheduleRunner
from duetime.model.errors import DuetimeError, InvalidSettings
from duetime.model.names import Queue, check_queue
from duetime.wire.payload import PAUSES, RESTARTS
from duetime.wire.worker_beats import (
    BEAT_S,
    LIFE_MS,
    MAX_COUNTER_NAME,
    MOST_RUNS,
    RunBeat,
    WorkerBeat,
    beat_name,
    beat_number,
    run_name,
)
from duetime.worker.app import App
from duetime.worker.batches import BatchKeeper
from duetime.worker.events import TaskEvent
from duetime.worker.execution import NEW_LOOP
from duetime.worker.fork_server import ForkServer, start_fork_server
from duetime.worker.held_jobs import HeldJobs
from duetime.worker.options import PoolKind, WorkerOptions
from duetime.worker.pools import LocalPool, ProcessPool
from duetime.worker.runs import Outcome, PoolHost, Run, WorkerPool, resident_mb
from duetime.worker.shared_counters import count

log = logging.getLogger("duetime.worker")

STATUS = {"memory": 12, "pool_lost": 1}
"""Exit codes by reason. Any other reason exits with 0, or with 1 if the outcome of a job could not be stored."""
BUSY_TICK_S = 0.02
IDLE_TICK_S = 0.2
SECOND_S = 0.9
"""Slightly under a second, so that a change is noticed within one second."""
REPORT_S = 5.0
"""How long a stopping worker tries to reach a store that is unavailable."""
DRAIN_TICK_S = 0.5
LATE_MS = 1_000
"""A job that is later than this asks for more slots."""
WAITS = 10
"""A slot goes when one was free for this many of the worker's waits on empty queues (`--sleep`), 30 s by default."""


def load_app(place: str) -> App:
    """`module:app`, found from the current folder as `python -m` would; `app` if no name follows."""
    module_name, _, path = place.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name and not module_name.startswith(f"{error.name}."):
            raise
        raise InvalidSettings(f"module {module_name!r} not found in the current folder; write module:app") from None
    for part in (path or "app").split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        raise InvalidSettings(f"{place} must be a duetime.App, got {found!r}")
    return found


def work(app: App, options: WorkerOptions) -> int:
    """Run a worker in this process until it stops; returns the exit code. Processes are forked first of all."""
    fork_server = start_fork_server(app) if options.pool is PoolKind.PROCESSES else None

    async def run() -> int:
        return await Worker(app, options, fork_server).run()

    with asyncio.Runner(loop_factory=NEW_LOOP) as runner:
        return runner.run(run())


@dataclass
class ConcurrencyScaler:
    """How many jobs a worker runs at a time, between two bounds. One number serves all queues of a worker, because each
    of its slots runs jobs of any of them. Late jobs while all slots are busy ask for more slots; slots that are
    not needed for `calm_s` go.
    """

    least: int
    most: int
    calm_s: float
    _calm_since: float | None = None

    def __post_init__(self) -> None:
        self.concurrency = self.least

    def update(self, late_ms: int, busy: int, now: float) -> int:
        """Note how late the oldest due job is and how many slots are busy; returns how many slots there should be.
        They grow by a half at a time, at least by one, and go one at a time.
        """
        if busy >= self.concurrency:
            self._calm_since = None
            if late_ms > LATE_MS:
                self.concurrency = min(self.most, self.concurrency + max(1, self.concurrency // 2))
        elif self._calm_since is None:
            self._calm_since = now
        elif now - self._calm_since >= self.calm_s:
            self._calm_since = now
            self.concurrency = max(self.least, self.concurrency - 1)
        return self.concurrency


class Worker:
    """`fork_server` starts the processes of a pool of processes; without one, jobs run in this process."""

    def __init__(self, app: App, options: WorkerOptions, fork_server: ForkServer | None) -> None:
        self._app = app
        self._options = options
        self._client = connect_async(app.url, namespace=app.namespace, token=app.token, journal=app.journal)
        self._tasks = asyncio.TaskGroup()
        self._spawned: set[asyncio.Task[None]] = set()
        self._fetching: asyncio.Task[None] | None = None
        self._jobs = HeldJobs(app, options, self._client, self._spawn)

        def make_pool(host: PoolHost) -> WorkerPool:
            if fork_server is not None:
                return ProcessPool(host, fork_server, options.concurrency)
            return LocalPool(host, app, options.concurrency)

        self._fetcher = Fetcher(self._client, options, self._jobs, self.stop, make_pool)
        self._pool = self._fetcher.pool
        self._batches = BatchKeeper(app)
        self._scaler = ConcurrencyScaler(options.concurrency, options.max_concurrency, WAITS * options.sleep_s)
        self._started_at = time.monotonic()
        self._began = int(time.time())
        self._has_beaten = False
        self._restarts = 0
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._paused_by: set[str] = set()
        self._hinted: set[str] = set()
        self._checked_use = False
        self.reason = ""
        self._jobs.on_change(self._count_jobs)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._tasks.create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return task

    async def run(self) -> int:
        """Work until there is a reason to stop; returns the exit code."""
        self._listen()
        try:
            restarts = await self._first_contact()
            if restarts is not None:
                async with self._tasks:
                    await self._work(restarts)
                    for work in self._spawned:
                        work.cancel()
        finally:
            await self._client.close()
        return self._status

    async def _first_contact(self) -> int | None:
        """Wait for the store and read the restart counter. None if the worker is stopped first."""
        restarts: list[int] = []

        async def read_counter() -> None:
            restarts.append(await self._client.send(count(self._app.namespace, RESTARTS)))

        contact = asyncio.create_task(run_duty(Rounds("first contact", read_counter)))
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([contact, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not contact.done():
            contact.cancel()
            return None
        contact.result()
        return restarts[0]

    async def _work(self, restarts: int) -> None:
        events = self._jobs.events
        async with AsyncExitStack() as stack:
            stack.enter_context(self._app.client_pusher.worker(self._client))
            for companion in self._app.companions:
                await stack.enter_async_context(companion(self._app, self._client))
            await self._pool.start()
            self._restarts = restarts
            due_schedules = run_due(ScheduleRunner(), self._app.namespace)
            duties = (
                self._jobs.leases,
                Rounds("timeouts", self._tick),
                Rounds("worker signals", self._every_second),
                Rounds("worker beat", self._beat),
                Rounds("schedules", lambda: self._client.send(due_schedules)),
            )
            for duty in duties:
                self._spawn(run_duty(duty))
            events.notify_worker(TaskEvent("worker_starting"))
            log.info("worker_started", extra={"queues": ",".join(self._options.queues), "pool": self._options.pool})
            if self._app.url.startswith("memory:"):
                log.warning(
                    "memory_store", extra={"hint": "no other program can push to this worker: give a store URL"}
                )
            with suppress(DuetimeError):
                await self._follow_pause()
                await self._jobs.follow_paused_tasks()
                await self._follow_batches()
            self._fetch()
            await self._stopping.wait()
            self._stop_fetching()
            self._pool.warn()
            await self._drain()
        if self._jobs.held:
            log.error("jobs_not_reported", extra={"jobs": len(self._jobs.held)})
        memory_mb, jobs = resident_mb(), self._jobs.jobs
        events.notify_worker(
            TaskEvent("stopping", reason=self.reason, status=self._status, jobs=jobs, memory_mb=memory_mb)
        )
        log.info("worker_stopped", extra={"reason": self.reason, "jobs": jobs})

    # --- stopping

    def stop(self, reason: str) -> None:
        """The first reason counts."""
        if not self.reason:
            self.reason = reason
            self._stopping.set()

    async def _drain(self) -> None:
        """Let running jobs finish, or give them back if hurried; then wait for a while until the store knows."""
        while not self._hurry.is_set() and any(not run.ended_at for run in self._jobs.held.values()):
            await self._either(self._hurry, self._jobs.empty, DRAIN_TICK_S)
        await self._pool.close(force=self._hurry.is_set())
        self._fetcher.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(REPORT_S):
                await self._jobs.empty.wait()

    async def _either(self, one: asyncio.Event, other: asyncio.Event, timeout_s: float) -> None:
        waits = [asyncio.create_task(one.wait()), asyncio.create_task(other.wait())]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    @property
    def _status(self) -> int:
        return STATUS.get(self.reason, 1 if self._jobs.held else 0)

    def _count_jobs(self) -> None:
        if self._options.most_jobs and self._jobs.jobs >= self._options.most_jobs:
            self.stop("max_jobs")

    # --- signals

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(number, self._interrupt)
        loop.add_signal_handler(signal.SIGUSR2, self._suspend, "signal")
        loop.add_signal_handler(signal.SIGCONT, self._resume, "signal")

    def _interrupt(self) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        else:
            self._jobs.events.notify_worker(TaskEvent("interrupted"))
            running = sum(1 for run in self._jobs.held.values() if not run.ended_at)
            log.info("worker_stopping", extra={"running": running, "hint": "a second Ctrl-C gives running jobs back"})
            self.stop("interrupted")

    def _suspend(self, by: str) -> None:
        """Take no new jobs until all that paused this worker, a signal or the counter, have resumed it."""
        if not self._paused_by:
            self._jobs.events.notify_worker(TaskEvent("pausing"))
            self._stop_fetching()
        self._paused_by.add(by)

    def _resume(self, by: str) -> None:
        if by in self._paused_by:
            self._paused_by.discard(by)
            if not self._paused_by:
                self._jobs.events.notify_worker(TaskEvent("resuming"))
            self._fetch()

    async def _follow_pause(self) -> None:
        """Pause and resume with all workers of the namespace, as an operator decides in the console."""
        if await self._client.send(count(self._app.namespace, PAUSES)) > 0:
            self._suspend("counter")
        else:
            self._resume("counter")

    async def _scale(self) -> None:
        """Run more jobs at a time while jobs are late, and fewer when that is not needed."""
        if not self._options.max_concurrency:
            return
        late_ms = 0
        for name in self._fetcher.queues:
            seen = await self._client.queue(name).status()
            late_ms = max(late_ms, seen.counts.now - (oldest(seen) or seen.counts.now))
        busy = sum(1 for run in self._jobs.held.values() if not run.ended_at)
        concurrency = self._scaler.update(late_ms, busy, time.monotonic())
        if concurrency != self._fetcher.concurrency:
            log.info("concurrency_changed", extra={"concurrency": concurrency, "late_ms": late_ms})
            self._fetcher.concurrency = concurrency
            self._pool.resize(concurrency)
            self._fetcher.widened()

    async def _follow_batches(self) -> None:
        """Check the batches of the namespace, and serve those of this worker's queues."""
        await self._batches.check()
        queues = self._batches.queues(self._options.queues)
        if queues != self._fetcher.queues:
            self._fetcher.queues = queues
            if self._fetching is not None:
                self._stop_fetching()
                self._fetch()

    # --- loops

    def _fetch(self) -> None:
        if not self._paused_by and not self._stopping.is_set() and self._fetching is None:
            self._fetching = self._spawn(run_duty(self._fetcher))

    def _stop_fetching(self) -> None:
        """Takes effect immediately: a cancelled reserve leases no more jobs."""
        if self._fetching is not None:
            self._fetching.cancel()
            self._fetching = None
        self._fetcher.clear()

    async def _tick(self) -> float:
        now = time.monotonic()
        self._pool.check(now)
        self._fetcher.check(now)
        if self._options.max_time_s and now - self._started_at > self._options.max_time_s:
            self.stop("max_time")
        return BUSY_TICK_S if self._jobs.held else IDLE_TICK_S

    async def _every_second(self) -> float:
        if limit_mb := self._options.memory_mb:
            self._pool.check_memory(limit_mb)
            if resident_mb() > limit_mb:
                self.stop("memory")
        await self._jobs.write_progress()
        await self._jobs.write_output()
        if await self._client.send(count(self._app.namespace, RESTARTS)) != self._restarts:
            self.stop("restart_signal")
        await self._follow_pause()
        await self._jobs.follow_paused_tasks()
        await self._follow_batches()
        await self._scale()
        return SECOND_S

    async def _beat(self) -> float:
        """Report every few seconds that this worker is there, for the console."""
        options = self._options
        with suppress(DuetimeError):  # outages are logged elsewhere; a token may not be allowed to count
            number, jobs = beat_number(), len(self._jobs.held)
            place = (socket.gethostname(), os.getpid(), options.pool, self._fetcher.concurrency)
            me = WorkerBeat(*place, ",".join(options.queues), self._began)
            for name in self._run_names(me, number):
                await self._client.send(count(self._app.namespace, name, 1, life_ms=LIFE_MS))
            await self._client.send(count(self._app.namespace, beat_name(me, number), jobs + 1, life_ms=LIFE_MS))
            await self._jobs.report_unknown_tasks()
            await self._say_why_idle()
        is_first, self._has_beaten = not self._has_beaten, True
        return SECOND_S if is_first else BEAT_S

    async def _say_why_idle(self) -> None:
        """Log once that a queue of an idle worker is paused, or that nothing was ever pushed to any of its queues."""
        if self._jobs.held:
            return
        queues = [self._client.queue(name) for name in self._options.queues]
        paused = {queue.name.name for queue in queues if (await queue.status()).rules.paused}
        for name in sorted(paused - self._hinted):
            log.warning("queue_paused", extra={"queue": name, "hint": f"duetime queue resume {name}"})
        self._hinted = paused
        if self._checked_use or self._jobs.jobs:
            return
        self._checked_use = True
        if not any([(await queue.totals()).running.accepted for queue in queues]):
            names = ",".join(self._options.queues)
            log.warning(
                "queues_unused", extra={"queues": names, "hint": "nothing was ever pushed: are the names right?"}
            )

    def _run_names(self, me: WorkerBeat, number: int) -> list[str]:
        """The counters of the jobs that have run longest."""
        now, now_ms = time.monotonic(), int(time.time() * 1000)
        running = [run for run in self._jobs.held.values() if run.started_at and not run.ended_at]
        running.sort(key=lambda run: run.started_at)
        names: list[str] = []
        for run in running[:MOST_RUNS]:
            lease, began_at = run.delivery.lease, now_ms - int((now - run.started_at) * 1000)
            beat = RunBeat(me.host, me.pid, lease.queue.name, lease.id, run.payload.name, began_at)
            names.append(run_name(beat, number))
        return [name for name in names if len(name) <= MAX_COUNTER_NAME]


AHEAD_S = 0.02
PREFETCHED_S = 0.25
MAX_AHEAD = 200
PIPE_S = 0.002
"""Seconds of work that may lie in one process's inbox. One short job may always wait there behind another."""
MAX_INBOX = 16
MAX_LIMIT = 500
VETO_S = 1.0


class Fetcher(Duty):
    """A duty that reserves jobs and hands them to the pool, whose host it is: as many as there is room for, and
    ahead of time only what it will surely start in a moment. `prefetched` are the jobs that are reserved and not yet
    handed over.

    What is fetched ahead is worth at most AHEAD_S of work, by the mean of what jobs took lately, and nothing while no
    job ends; so long jobs are never fetched ahead, and short ones in batches that make the round trip cheap. Jobs that
    have not begun after PREFETCHED_S are given back for others to take.
    """

    name = "reserve jobs"

    def __init__(
        self,
        client: AsyncClient,
        options: WorkerOptions,
        held: HeldJobs,
        stop: Callable[[str], None],
        make_pool: Callable[[PoolHost], WorkerPool],
    ) -> None:
        self.prefetched: deque[Run] = deque()
        self.queues = tuple(check_queue(client.namespace, name).name for name in options.queues)
        self.concurrency = options.concurrency
        self._client = client
        self._namespace = client.namespace
        self._options = options
        self._jobs = held
        self._stop = stop
        self._resting = 0
        self._mean_s = 0.0
        self._ended_at = 0.0
        self._changed = asyncio.Event()
        self._dispatching = False
        held.on_change(self._changed.set)
        self.began = held.began
        self.said = held.said
        self.widened = self._dispatch_soon
        self.broken = partial(stop, "pool_lost")
        self.pool = make_pool(self)

    async def run_once(self) -> float:
        """Reserve jobs once and hand them over. A cancelled wait takes no job with it."""
        want = self._want()
        if want <= 0:
            self._changed.clear()
            await self._changed.wait()
            return 0.0
        if not self._jobs.events.notify_worker(TaskEvent("looping")):
            return VETO_S
        self._jobs.events.notify_worker(TaskEvent("popping"))
        queues = [Queue(self._namespace, name) for name in self.queues]
        call = reserve(self._namespace, queues, want, self._options.lease_s, self._wait_s())
        found = await self._client.send(call)
        self.prefetched.extend(run for delivery in found if (run := self._jobs.add(delivery)))
        self.dispatch()
        if not found:
            await self._nothing()
        return 0.0

    def _want(self) -> int:
        most = self._options.most_jobs
        ahead = 0 if most or self._options.rest_s else self._ahead()
        if ahead and len(self.prefetched) > ahead // 2:
            return 0
        want = min(self._room() + ahead - len(self.prefetched), MAX_LIMIT)
        return min(want, most - self._jobs.reserved) if most else want

    def _ahead(self) -> int:
        if not self._mean_s or time.monotonic() - self._ended_at > 2 * AHEAD_S:
            return 0
        return min(MAX_AHEAD, int(self.concurrency * AHEAD_S / self._mean_s))

    def _room(self) -> int:
        return self.pool.room() - self._resting

    def _wait_s(self) -> float:
        if self._options.stop_when_empty:
            return 0.0
        if empty_for := self._options.stop_when_empty_for_s:
            return max(0.0, min(self._options.sleep_s, self._jobs.last_job_at + empty_for - time.monotonic()))
        return self._options.sleep_s

    async def _nothing(self) -> None:
        self._jobs.events.notify_worker(TaskEvent("idle"))
        options, busy = self._options, bool(self._jobs.held)
        if options.stop_when_empty or options.once:
            if busy:
                self._changed.clear()
                await self._changed.wait()
            else:
                self._stop("empty")
                await asyncio.Event().wait()  # until cancelled
        elif options.stop_when_empty_for_s and not busy:
            if time.monotonic() - self._jobs.last_job_at >= options.stop_when_empty_for_s:
                self._stop("empty_for")
                await asyncio.Event().wait()
        elif options.sleep_s == 0:
            await asyncio.sleep(0.01)  # a worker without waits must still yield the CPU

    # --- handing over

    def dispatch(self) -> None:
        """Hand prefetched jobs to the pool."""
        self._dispatching = False
        for _ in range(min(len(self.prefetched), max(0, self._room()))):
            if not self.pool.submit(self.prefetched[0]):
                return
            self.prefetched.popleft()

    def ended(self, run: Run, outcome: Outcome) -> None:
        self._jobs.ended(run, outcome)
        self._ended_at = run.ended_at
        if run.started_at:
            self._learn_duration(run.ended_at - run.started_at)
        if self._options.rest_s:
            self._resting += 1
            asyncio.get_running_loop().call_later(self._options.rest_s, self._rested)
        self._dispatch_soon()

    def returned(self, run: Run) -> None:
        self.prefetched.appendleft(run)
        self._dispatch_soon()

    def _rested(self) -> None:
        self._resting -= 1
        self._dispatch_soon()

    def _dispatch_soon(self) -> None:
        """Hand over jobs once for all runs that end in the same loop iteration."""
        self._changed.set()
        if self.prefetched and not self._dispatching:
            self._dispatching = True
            asyncio.get_running_loop().call_soon(self.dispatch)

    def _learn_duration(self, seconds: float) -> None:
        """A running mean that follows longer jobs quickly and shorter ones slowly."""
        if not self._mean_s:
            self._mean_s = max(seconds, 1e-5)
        else:
            self._mean_s += (seconds - self._mean_s) * (0.3 if seconds > 2 * self._mean_s else 0.05)
        least = 2 if self._mean_s < AHEAD_S else 1
        self.pool.depth = max(least, min(MAX_INBOX, int(PIPE_S / self._mean_s)))

    # --- not handing over

    def check(self, now: float) -> None:
        """Give back jobs that were prefetched too long ago, so that other workers can take them."""
        if self.prefetched and now - self.prefetched[0].reserved_at > PREFETCHED_S:
            self.clear()

    def clear(self) -> None:
        """Give back jobs that have not begun."""
        while self.prefetched:
            self._jobs.give_back(self.prefetched.pop())

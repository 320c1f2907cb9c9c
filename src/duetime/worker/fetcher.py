"""How a worker gets jobs: as many as there is room for, and ahead of time only what it will surely start in a moment.

What is fetched ahead is worth at most AHEAD_S of work, by the mean of what jobs took lately, and nothing while no job
ends; so long jobs are never fetched ahead, and short ones in batches that make the round trip cheap. Should it turn out
otherwise, jobs that have not begun after PREFETCHED_S are given back for others to take.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from duetime.client import AsyncClient
from duetime.client.calls import reserve
from duetime.engine.duties import Duty
from duetime.model.names import Queue, check_queue
from duetime.worker.events import TaskEvent
from duetime.worker.held_jobs import HeldJobs
from duetime.worker.options import WorkerOptions
from duetime.worker.runs import Outcome, PoolHost, Run, WorkerPool

AHEAD_S = 0.02
PREFETCHED_S = 0.25
MAX_AHEAD = 200
PIPE_S = 0.002
"""Seconds of work that may lie in one process's inbox. One short job may always wait there behind another."""
MAX_INBOX = 16
MAX_LIMIT = 500
VETO_S = 1.0


class Fetcher(Duty):
    """A duty that reserves jobs and hands them to the pool, whose host it is. `prefetched` are the jobs that are
    reserved and not yet handed over.
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

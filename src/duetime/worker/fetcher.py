"""How a worker gets jobs: as many as there is room for, and ahead of time only what it will surely start in a moment.

What is fetched ahead is worth at most AHEAD_S of work, by the mean of what jobs took lately, and nothing while no job
comes to its end; so long jobs are never
fetched ahead, and short ones in batches that make the round trip cheap. Should it turn out otherwise, jobs that have
not begun after SHELF_S are given back for others to take.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from duetime.client import AsyncClient
from duetime.model.backoff import Outage
from duetime.model.errors import DuetimeError
from duetime.worker.events import TaskEvent
from duetime.worker.held_jobs import HeldJobs
from duetime.worker.options import WorkerOptions
from duetime.worker.pool import WorkerPool
from duetime.worker.runs import Outcome, Run

log = logging.getLogger("duetime.worker")

AHEAD_S = 0.02
SHELF_S = 0.25
MAX_AHEAD = 200
PIPE_S = 0.002
"""Seconds of work that may lie in one process's mailbox. One short job may always wait there behind another."""
MAX_DEPTH = 16
MAX_LIMIT = 500
VETO_S = 1.0


class Fetcher:
    """Reserves jobs and hands them to the pool, whose host it is. The shelf has the jobs that are reserved and not yet
    handed over.
    """

    def __init__(
        self, client: AsyncClient, options: WorkerOptions, held: HeldJobs, stop: Callable[[str], None]
    ) -> None:
        self.shelf: deque[Run] = deque()
        self.pool: WorkerPool | None = None
        self.queues = options.queues
        self.concurrency = options.concurrency
        self._client = client
        self._options = options
        self._jobs = held
        self._stop = stop
        self._resting = 0
        self._mean_s = 0.0
        self._ended_at = 0.0
        self._news = asyncio.Event()
        self._pumping = False
        held.on_change(self._news.set)

    async def run(self) -> None:
        """Fetch jobs until cancelled. A cancelled wait takes no job with it."""
        outage = Outage()
        while True:
            want = self._want()
            if want <= 0:
                self._news.clear()
                await self._news.wait()
                continue
            if not self._jobs.teller.worker(TaskEvent("looping")):
                await asyncio.sleep(VETO_S)
                continue
            self._jobs.teller.worker(TaskEvent("popping"))
            try:
                found = await self._client.reserve(
                    self.queues, limit=want, ttr=self._options.lease_s, wait=self._wait_s()
                )
            except DuetimeError as error:
                if outage.failed():
                    log.warning("reserve_failed", extra={"code": error.code, "error": error.message})
                await asyncio.sleep(outage.pause_s)
                continue
            outage.worked()
            self.shelf.extend(run for job in found if (run := self._jobs.take(job.delivery)))
            self.pump()
            if not found:
                await self._nothing()

    def _left(self) -> int:
        """How many more jobs may be taken; -1 = any number."""
        most = self._options.most_jobs
        return max(0, most - self._jobs.taken) if most else -1

    def _want(self) -> int:
        assert self.pool is not None
        left = self._left()
        ahead = self._ahead() if left < 0 and not self._options.rest_s else 0
        if ahead and len(self.shelf) > ahead // 2:
            return 0
        want = min(self._room() + ahead - len(self.shelf), MAX_LIMIT)
        return want if left < 0 else min(want, left)

    def _ahead(self) -> int:
        if not self._mean_s or time.monotonic() - self._ended_at > 2 * AHEAD_S:
            return 0
        return min(MAX_AHEAD, int(self.concurrency * AHEAD_S / self._mean_s))

    def _room(self) -> int:
        assert self.pool is not None
        return self.pool.room() - self._resting

    def _wait_s(self) -> float:
        if self._options.stop_when_empty:
            return 0.0
        if empty_for := self._options.stop_when_empty_for_s:
            return max(0.0, min(self._options.sleep_s, self._jobs.last_job_at + empty_for - time.monotonic()))
        return self._options.sleep_s

    async def _nothing(self) -> None:
        self._jobs.teller.worker(TaskEvent("idle"))
        options, busy = self._options, bool(self._jobs.held)
        if options.stop_when_empty or options.once:
            if busy:
                self._news.clear()
                await self._news.wait()
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

    def pump(self) -> None:
        """Hand jobs from the shelf to the pool."""
        assert self.pool is not None
        self._pumping = False
        for _ in range(min(len(self.shelf), max(0, self._room()))):
            if not self.pool.submit(self.shelf[0]):
                return
            self.shelf.popleft()

    def began(self, run: Run) -> None:
        self._jobs.began(run)

    def ended(self, run: Run, outcome: Outcome) -> None:
        self._jobs.ended(run, outcome)
        self._ended_at = run.ended_at
        if run.started_at:
            self._learn(run.ended_at - run.started_at)
        if self._options.rest_s:
            self._resting += 1
            asyncio.get_running_loop().call_later(self._options.rest_s, self._rested)
        self._soon()

    def returned(self, run: Run) -> None:
        self.shelf.appendleft(run)
        self._soon()

    def said(self, run: Run, word: str, value: int) -> None:
        self._jobs.said(run, word, value)

    def widened(self) -> None:
        self._soon()

    def broken(self) -> None:
        self._stop("pool_lost")

    def _rested(self) -> None:
        self._resting -= 1
        self._soon()

    def _soon(self) -> None:
        """Runs that finish in the same loop iteration are settled together."""
        self._news.set()
        if self.shelf and not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self.pump)

    def _learn(self, seconds: float) -> None:
        """A running mean that follows longer jobs quickly and shorter ones slowly."""
        assert self.pool is not None
        if not self._mean_s:
            self._mean_s = max(seconds, 1e-5)
        else:
            self._mean_s += (seconds - self._mean_s) * (0.3 if seconds > 2 * self._mean_s else 0.05)
        least = 2 if self._mean_s < AHEAD_S else 1
        self.pool.depth = max(least, min(MAX_DEPTH, int(PIPE_S / self._mean_s)))

    # --- not handing over

    def check(self, now: float) -> None:
        """Give back jobs that have waited on the shelf for too long, so that other workers can take them."""
        if self.shelf and now - self.shelf[0].reserved_at > SHELF_S:
            self.clear()

    def clear(self) -> None:
        """Give back jobs that have not begun."""
        while self.shelf:
            self._jobs.give_back(self.shelf.pop())

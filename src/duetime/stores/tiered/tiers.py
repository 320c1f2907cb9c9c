"""The two stores of a tiered pool, and how jobs move from cold to hot.

Hot decides everything that happens to a job: consumers take jobs from there, and a verb that changes or removes a job
of cold first brings the job to hot. A promotion copies before it removes, so that a crash leaves the job in both tiers
and never in none:

    push to hot, once, by a mark  ->  withdraw from cold, if the job is still as it was read

A job that is found in both tiers under one born counts as a job of hot; the copy in cold is removed at the next
promotion. A promotion that is repeated after a crash, or runs in two processes, finds the mark and does not bring back
a job that was delivered and acked, or cancelled, meanwhile. The mark lives until the promoter has tried for MARK_MS.

Jobs never go back to cold. After the copy to cold a crash would leave both, and when the job is then cancelled or acked
in hot, nothing would distinguish the copy in cold from a job that is still wanted.
"""

import asyncio
import logging
from collections.abc import Sequence

from duetime.duties import Rounds
from duetime.model.clock import Clock
from duetime.model.errors import DuetimeError, JobExists, StoreUnavailable
from duetime.model.job import STEP_JOBS, IfExists, Job, Moved, NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import Mark, Push, Pushed, Store, Withdrawal, get_all
from duetime.stores.bulk import Pacer
from duetime.stores.group.member import Member

MARK_MS = 6 * 3_600_000
"""How long a promotion that broke off can be repeated safely. A mark costs Redis some 300 bytes."""
MARGIN_MS = 60_000
"""A job of cold that is due this long after the horizon is not touched by any promoter for the time of a call."""
LEAD_MS = 5000
"""A promoter that leads promotes for this long before the next one is chosen."""
IDLE_S = 1.0
PAGES = 4
"""How many pages of STEP_JOBS are promoted at the same time."""
LATE_MS = 10_000
"""A promoter that is later than this is a problem of the pool."""

log = logging.getLogger("duetime.stores")


class Tiers:
    """Jobs that are due within `horizon_ms` belong to hot, later ones to cold."""

    def __init__(self, name: str, hot: Store, cold: Member, horizon_ms: int, clock: Clock) -> None:
        self.name, self.hot, self.cold, self.horizon_ms, self._clock = name, hot, cold, horizon_ms, clock

    def now(self) -> int:
        return self._clock.now_ms()

    def horizon(self) -> int:
        """Jobs that are due after this instant belong to cold."""
        return self.now() + self.horizon_ms

    async def read_cold(self, queue: Queue, ids: Sequence[str]) -> list[Job]:
        """The jobs with these ids that are in cold. Raises a MemberProblem."""
        if not ids:
            return []
        return [job for job in await self.cold.call(lambda store: get_all(store, queue, ids)) if job]

    async def promote(self, queue: Queue, jobs: Sequence[Job]) -> int:
        """Bring jobs of cold to hot, at most STEP_JOBS, and return how many are there now. The others stay in cold:
        hot has another job with their id, or refuses them. Raises a MemberProblem, or StoreUnavailable of hot.
        """
        if not jobs:
            return 0
        answers = await self.hot.push(queue, [self._promotion(job) for job in jobs])
        came = [job for job, answer in zip(jobs, answers, strict=True) if isinstance(answer, Pushed)]
        refused = [(job, answer) for job, answer in zip(jobs, answers, strict=True) if isinstance(answer, DuetimeError)]
        if refused:
            came += await self._there_already(queue, refused)
        await self._remove_from_cold(queue, came)
        return len(came)

    def _promotion(self, job: Job) -> Push:
        """A job that a verb brings to hot before its time may stay in cold after a crash until the promoter comes."""
        now = self.now()
        early_ms = max(job.due_at - self.horizon_ms - now, 0)
        mark = Mark(f"/promote/{job.born}/{job.attempt}/{job.id}", b"", early_ms + MARK_MS, brief=True)
        return Push([_copy(job, now)], IfExists.ERROR, mark)

    async def _there_already(self, queue: Queue, refused: Sequence[tuple[Job, DuetimeError]]) -> list[Job]:
        """The refused jobs that hot has under the same born. Raises StoreUnavailable if hot could not answer."""
        for job, error in refused:
            if isinstance(error, StoreUnavailable):
                raise error
            if not isinstance(error, JobExists):
                extra = {"pool": self.name, "queue": str(queue), "id": job.id, "error": error.message}
                log.warning("tier_promotion_refused", extra=extra)
        jobs = [job for job, error in refused if isinstance(error, JobExists)]
        there = await get_all(self.hot, queue, [job.id for job in jobs])
        return [job for job, other in zip(jobs, there, strict=True) if other and other.born == job.born]

    async def _remove_from_cold(self, queue: Queue, came: Sequence[Job]) -> None:
        answers = await self._withdraw_from_cold(queue, came)
        changed = [job for job, answer in zip(came, answers, strict=True) if answer is None]
        there = {job.id: job for job in await self.read_cold(queue, [job.id for job in changed])}
        changed = [job for job in changed if job.id in there]  # the others were removed by another promotion
        # A due time that was changed in cold meanwhile does not hold: hot decides.
        await self._withdraw_from_cold(queue, [there[job.id] for job in changed if there[job.id].born == job.born])
        # A job that was replaced in cold meanwhile must not stay in hot.
        replaced = [job for job in changed if there[job.id].born > job.born]
        if replaced:
            await self.hot.withdraw(queue, [Withdrawal(job.id, job.born, job.due_at) for job in replaced])

    async def _withdraw_from_cold(self, queue: Queue, jobs: Sequence[Job]) -> Sequence[Moved | StoreUnavailable | None]:
        if not jobs:
            return []
        asked = [Withdrawal(job.id, job.born, job.due_at) for job in jobs]
        return await self.cold.call(lambda store: store.withdraw(queue, asked))


def _copy(job: Job, now: int) -> NewJob:
    """The job for hot. Jobs in cold were never tried, so no try is used up."""
    return NewJob(
        job.id,
        job.body,
        due_at=job.due_at,
        ttl_ms=max(job.expires_at - now, 1) if job.expires_at else 0,
        tries=job.tries,
        priority=job.priority,
        attributes=job.attributes,
        born=job.born,
        attempt=job.attempt,
    )


class Promoter:
    """Promotes the jobs of cold that are due within the horizon, earliest first.

    Every engine on the pool runs `duty`, and one of them leads: the one that is first to raise a counter that lives for
    LEAD_MS. Two that lead at the same time do no harm.
    """

    def __init__(self, tiers: Tiers, *, per_s: int = 0) -> None:
        """At most `per_s` jobs per second are promoted, 0 for no limit. Jobs that are overdue are not limited."""
        self._tiers = tiers
        self._pace = Pacer(per_s).wait if per_s else None
        self._page = min(per_s or STEP_JOBS, STEP_JOBS)
        self._late_ms, self._checked_at = 0, float("-inf")
        self.duty = Rounds(f"promotions of {tiers.name}", self._run_in_turn)

    async def late_ms(self) -> int:
        """How long the earliest job of cold has been due, read at most LATE_MS ago. Raises a MemberProblem."""
        if asyncio.get_running_loop().time() - self._checked_at > LATE_MS / 1000:
            await self._waiting()
        return self._late_ms

    async def _waiting(self) -> list[tuple[int, Queue]]:
        """The queues of cold by the due time of their first job."""
        queues = await self._tiers.cold.call(lambda store: store.queues())
        heads = await self._tiers.cold.call(lambda store: store.heads(queues))
        waiting = sorted((head, queue) for head, queue in zip(heads, queues, strict=True) if head is not None)
        self._late_ms = max(0, self._tiers.now() - waiting[0][0]) if waiting else 0
        self._checked_at = asyncio.get_running_loop().time()
        return waiting

    async def run_once(self, until: float = float("inf")) -> int:
        """Promote what is within the horizon, until a time of the event loop; returns the number of jobs. Jobs that are
        overdue in any queue come first. Raises a MemberProblem, or StoreUnavailable of hot.
        """
        promoted, waiting = 0, await self._waiting()
        now, last = self._tiers.now(), self._tiers.horizon()
        for state, due_by in ((State.READY, now), (State.DELAYED, last)):
            for head, queue in waiting:
                if head > due_by:
                    break
                promoted += await self._promote_state(queue, state, last, until)
        return promoted

    async def _promote_state(self, queue: Queue, state: State, last: int, until: float) -> int:
        """Read page by page while up to PAGES earlier pages are promoted, so that both stores have work."""
        promoted, more = 0, True
        cursor: str | None = None
        under_way: set[asyncio.Task[int]] = set()
        try:
            while more:
                page = await self._tiers.cold.call(
                    lambda store, cursor=cursor: store.list_jobs(queue, state, cursor=cursor, limit=self._page)
                )
                jobs = [job for job in page.jobs if job.due_at <= last]
                cursor, more = page.cursor, page.cursor is not None and len(jobs) == len(page.jobs)
                more = more and asyncio.get_running_loop().time() < until
                if self._pace and state is State.DELAYED:
                    await self._pace(len(jobs))
                under_way.add(asyncio.create_task(self._tiers.promote(queue, jobs)))
                if len(under_way) == PAGES or not more:
                    wait_for = asyncio.FIRST_COMPLETED if more else asyncio.ALL_COMPLETED
                    done, under_way = await asyncio.wait(under_way, return_when=wait_for)
                    promoted += sum([task.result() for task in done])
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
        return promoted

    async def _run_in_turn(self) -> float:
        turn = await self._tiers.hot.registry.increment(f"tier/{self._tiers.name}", life_ms=LEAD_MS)
        if turn.value != 1 or not self._tiers.cold.is_up:
            return turn.left_ms / 1000
        loop = asyncio.get_running_loop()
        until = loop.time() + LEAD_MS / 1000
        while loop.time() < until:
            if not await self.run_once(until):
                await asyncio.sleep(IDLE_S)
        return 0.0

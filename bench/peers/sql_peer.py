"""procrastinate, pgqueuer and chancy on a PostgreSQL: one JSON document per call. Runs in `.venv-bench`.

python sql_peer.py PEER install URL JOBS SECONDS          makes the tables and puts JOBS delayed jobs into them
python sql_peer.py PEER rates|lateness|through URL JOBS SECONDS

Each measurement ends after JOBS, or after SECONDS.
"""

import asyncio
import json
import sys
import time
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

BODY = "x" * 100
DAY_S = 86_400
STEP = 500
TAKE = 100
CALLERS = 64
POLL_S = 0.1


class Peer(ABC):
    """What is measured, in the peer's own calls. `stack` closes what they open."""

    takes = TAKE
    """How many jobs one call can take."""
    table = ""
    """Where jobs are kept."""
    new_id = ""
    """What makes an id, where the table has no default for it."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.url, self.stack = url, stack

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def install(self) -> None: ...

    @abstractmethod
    async def push(self, bodies: list[str], delays_s: list[float]) -> None: ...

    @abstractmethod
    async def take(self) -> list: ...

    @abstractmethod
    async def finish(self, jobs: list) -> None: ...

    @abstractmethod
    def body(self, job) -> str: ...


class Procrastinate(Peer):
    takes = 1
    table = "procrastinate_jobs"

    async def open(self) -> None:
        import procrastinate

        self.app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=self.url, max_size=10))
        self.task = self.app.task(name="job", queue="jobs")(_nothing)
        await self.stack.enter_async_context(self.app.open_async())

    async def install(self) -> None:
        await self.app.schema_manager.apply_schema_async()

    async def push(self, bodies: list[str], delays_s: list[float]) -> None:
        now = datetime.now(UTC)
        if len(bodies) == 1:
            at = now + timedelta(seconds=delays_s[0])
            await self.task.configure(schedule_at=at).defer_async(body=bodies[0])
            return
        for delay, group in _by_delay(bodies, delays_s).items():
            deferrer = self.task.configure(schedule_at=now + timedelta(seconds=delay))
            await deferrer.batch_defer_async(*({"body": body} for body in group))

    async def take(self) -> list:
        if not hasattr(self, "worker"):
            self.worker = await self.app.job_manager.register_worker()
        job = await self.app.job_manager.fetch_job(queues=None, worker_id=self.worker)
        return [job] if job else []

    async def finish(self, jobs: list) -> None:
        from procrastinate.jobs import Status

        for job in jobs:
            await self.app.job_manager.finish_job(job, status=Status.SUCCEEDED, delete_job=True)

    def body(self, job) -> str:
        return job.task_kwargs["body"]


class Pgqueuer(Peer):
    table = "pgqueuer"

    async def open(self) -> None:
        import asyncpg
        from pgqueuer.adapters.drivers.asyncpg import AsyncpgPoolDriver
        from pgqueuer.queries import Queries

        pool = await self.stack.enter_async_context(asyncpg.create_pool(self.url, min_size=1, max_size=10))
        self.queries = Queries(AsyncpgPoolDriver(pool))

    async def install(self) -> None:
        await self.queries.install()

    async def push(self, bodies: list[str], delays_s: list[float]) -> None:
        count = len(bodies)
        delays = [timedelta(seconds=delay) for delay in delays_s]
        await self.queries.enqueue(["job"] * count, [body.encode() for body in bodies], [0] * count, delays)

    async def take(self) -> list:
        import uuid

        from pgqueuer.ports.repository import EntrypointExecutionParameter

        entrypoints = {"job": EntrypointExecutionParameter(concurrency_limit=0)}
        return await self.queries.dequeue(TAKE, entrypoints, uuid.uuid4(), None, timedelta(seconds=30))

    async def finish(self, jobs: list) -> None:
        await self.queries.log_jobs([(job, "successful", None) for job in jobs])

    def body(self, job) -> str:
        return job.payload.decode()


class Chancy(Peer):
    table = "chancy_jobs"
    new_id = "gen_random_uuid()"

    async def open(self) -> None:
        from chancy import Chancy as App
        from chancy import Queue, Worker

        self.app = await self.stack.enter_async_context(
            App(self.url, max_connection_pool_size=10, no_default_plugins=True)
        )
        self.worker, self.queue = Worker(self.app), Queue("jobs")

    async def install(self) -> None:
        await self.app.migrate()
        await self.app.declare(self.queue)

    async def push(self, bodies: list[str], delays_s: list[float]) -> None:
        from chancy import Job

        now = datetime.now(UTC)
        jobs = [
            Job(func="job", kwargs={"body": body}, queue="jobs", scheduled_at=now + timedelta(seconds=delay))
            for body, delay in zip(bodies, delays_s, strict=True)
        ]
        if len(jobs) == 1:
            await self.app.push(jobs[0])
            return
        async for _ in self.app.push_many(jobs, batch_size=STEP):
            pass

    async def take(self) -> list:
        async with self.app.pool.connection() as connection:
            return await self.worker.fetch_jobs(self.queue, connection, up_to=TAKE)

    async def finish(self, jobs: list) -> None:
        import dataclasses

        from chancy.job import QueuedJob

        ended = datetime.now(UTC)
        for job in jobs:
            done = dataclasses.replace(job, state=QueuedJob.State.SUCCEEDED, completed_at=ended)
            await self.worker.queue_update(done)
        await self.worker.flush()

    def body(self, job) -> str:
        return job.kwargs["body"]


PEERS = {"procrastinate": Procrastinate, "pgqueuer": Pgqueuer, "chancy": Chancy}


async def _nothing(body: str) -> None:
    """The task that is never run here."""


def _by_delay(bodies: list[str], delays_s: list[float]) -> dict[float, list[str]]:
    groups: dict[float, list[str]] = {}
    for body, delay in zip(bodies, delays_s, strict=True):
        groups.setdefault(delay, []).append(body)
    return groups


class Meter:
    """Counts jobs, for at most so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._started, self._seconds, self._done = time.perf_counter(), seconds, 0

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._started

    def is_open(self, jobs: int) -> bool:
        return self._done < jobs and self.elapsed < self._seconds

    def count(self, jobs: int = 1) -> None:
        self._done += jobs

    @property
    def rate(self) -> float:
        return self._done / self.elapsed


async def install(peer: Peer, jobs: int, _: float) -> None:
    """One job is pushed, and the server copies it: a million pushes would take some of the peers an hour."""
    await peer.install()
    if jobs:
        await peer.push([BODY], [DAY_S])
        _copy(peer, jobs - 1)


def _copy(peer: Peer, times: int) -> None:
    import psycopg

    table = peer.table
    with psycopg.connect(peer.url, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = %s AND column_name <> 'id'", (table,)
        )
        columns = ", ".join(f'"{name}"' for (name,) in rows)
        into, values = (f"id, {columns}", f"{peer.new_id}, {columns}") if peer.new_id else (columns, columns)
        connection.execute(f"INSERT INTO {table} ({into}) SELECT {values} FROM {table}, generate_series(1, {times})")
        connection.execute(f"VACUUM (ANALYZE) {table}")


async def rates(peer: Peer, jobs: int, seconds: float) -> dict[str, float]:
    alone = Meter(seconds)
    while alone.is_open(jobs):
        await peer.push([BODY], [DAY_S])
        alone.count()
    found = {"one by one": alone.rate}

    together = Meter(seconds)

    async def producer() -> None:
        while together.is_open(jobs * 2):
            together.count()
            await peer.push([BODY], [DAY_S])

    await asyncio.gather(*(producer() for _ in range(CALLERS)))
    found[f"{CALLERS} tasks"] = together.rate

    batched = Meter(seconds)
    while batched.is_open(max(STEP, jobs * 5)):
        await peer.push([BODY] * STEP, [0.0] * STEP)
        batched.count(STEP)
    found[f"batches of {STEP}"] = batched.rate

    finished = Meter(seconds)
    while finished.is_open(sys.maxsize) and (taken := await peer.take()):
        await peer.finish(taken)
        finished.count(len(taken))
    return {**found, "take + finish": finished.rate}


async def lateness(peer: Peer, jobs: int, seconds: float) -> list[float]:
    """None of the peers has a timer for delayed jobs: they poll, here every 100 ms."""
    start = time.time() + 2
    dues = [start + 3 * number / jobs for number in range(jobs)]
    for at in range(0, jobs, STEP):
        part = dues[at : at + STEP]
        now = time.time()
        for due in part if peer.takes == 1 else []:
            await peer.push([str(due)], [due - time.time()])
        if peer.takes > 1:
            await peer.push([str(due) for due in part], [due - now for due in part])
    late: list[float] = []
    meter = Meter(seconds + 5)
    while len(late) < jobs and meter.is_open(sys.maxsize):
        found = await peer.take()
        received = time.time()
        late += [(received - float(peer.body(job))) * 1000 for job in found]
        await peer.finish(found)
        if not found:
            await asyncio.sleep(POLL_S)
    return late


async def through(peer: Peer, jobs: int, seconds: float) -> int:
    """Answers how many jobs went through."""
    done, meter = 0, Meter(seconds)
    while done < jobs and meter.is_open(sys.maxsize):
        await peer.push([BODY] * STEP, [0.0] * STEP)
        while found := await peer.take():
            await peer.finish(found)
        done += STEP
    return done


async def main() -> None:
    name, task, url, jobs, seconds = sys.argv[1:]
    async with AsyncExitStack() as stack:
        peer = PEERS[name](url, stack)
        await peer.open()
        print(
            json.dumps(
                await {"install": install, "rates": rates, "lateness": lateness, "through": through}[task](
                    peer, int(jobs), float(seconds)
                )
            )
        )


if __name__ == "__main__":
    asyncio.run(main())

"""Pushes portions of rows to a store or a server: waits out outages, keeps a pace, counts what became of the rows.

`push_portions` runs in one task on an executor. A store that does not answer is tried again for about a minute before
the task fails: every step may be repeated, and with marks a repetition adds nothing. Any other refusal ends the load
with the store's own words.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from duetime.client import AsyncClient, calls, connect_async, store_calls
from duetime.model.backoff import Exponential, Outage
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.job import IfExists, Moved
from duetime.model.names import Queue
from duetime.spark.load.chunks import Portion
from duetime.spark.load.options import LoadOptions
from duetime.stores.base import Pushed, StoreInfo
from duetime.stores.bulk import Bulk, Failed, JobColumns, Loaded, LoadStep, LostColumns, Pace, loaded
from duetime.stores.open import open_bulk

TRIES = 12
PAUSE = Exponential(base_ms=100, cap_ms=10_000)
HTTP_UNDER_WAY = 4

T = TypeVar("T")
OnLoaded = Callable[[Portion, Loaded], Awaitable[None]]


@dataclass
class PushCounts:
    """What became of the rows. `accepted` and `kept` include repeated steps, whose marks remember the answer."""

    rows: int = 0
    accepted: int = 0
    kept: int = 0
    repeated: int = 0

    def count(self, answer: Loaded) -> None:
        size = answer.step.last - answer.step.first
        self.rows += size
        self.kept += answer.kept
        self.accepted += answer.accepted
        self.repeated += size if answer.repeated else 0


class LoadFailed(DuetimeError):
    """A part of the load was refused."""

    code = "load_failed"
    status = 409


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a new event loop; in another thread if this one runs a loop already, as notebooks do."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def open_destination(options: LoadOptions) -> Bulk:
    """The store, or the server in front of it."""
    if options.is_http:
        return HttpBulk(connect_async(options.url, namespace=options.namespace, token=options.token), options.namespace)
    return await open_bulk(options.store_url)


async def ask_store(options: LoadOptions) -> StoreInfo:
    """The time and the epoch of the destination. Raises if it does not answer or reports a problem."""
    destination = await open_destination(options)
    try:
        info = await destination.ping()
    finally:
        await destination.close()
    for problem in info.problems.values():
        raise problem  # its epoch may not be known: that must not look like a store that was wiped
    return info


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Do the work, and repeat it for about a minute while the store does not answer."""
    outage = Outage(PAUSE)
    while True:
        try:
            return await work()
        except StoreUnavailable:
            outage.failed()
            if outage.failures == TRIES:
                raise
        await asyncio.sleep(outage.pause_s)


async def push_portions(
    portions: Iterable[Portion],
    options: LoadOptions,
    *,
    writers: int,
    on_loaded: OnLoaded | None = None,
    on_step: Callable[[Loaded], None] | None = None,
) -> PushCounts:
    """Push all portions. `writers` tasks share the pace. Raises LoadFailed, or StoreUnavailable after the retries.

    `on_loaded` gets every step that was pushed, with its portion; `on_step` then counts it.
    """
    tally, destination = PushCounts(), await patiently(lambda: open_destination(options))
    pace = Pacer(options.max_jobs_per_second / max(writers, 1)).wait if options.max_jobs_per_second else None
    try:
        for portion in portions:
            async for answer in _push(destination, portion, pace):
                tally.count(answer)
                if on_loaded:
                    await on_loaded(portion, answer)
                if on_step:
                    on_step(answer)
    except DuetimeError as error:
        fields = {**error.fields, "pushed": tally.rows}
        raise type(error)(f"{error.message}; this task had pushed {tally.rows} rows before", **fields) from error
    finally:
        await destination.close()
    return tally


async def _push(destination: Bulk, portion: Portion, pace: Pace | None) -> AsyncIterator[Loaded]:
    """The portion's answers in the order of its steps, whatever had to be repeated."""
    answers: dict[int, Loaded] = {}
    left, outage = list(portion.steps), Outage(PAUSE)
    while left:
        unanswered: list[LoadStep] = []
        problem: StoreUnavailable | None = None
        async for answer in destination.load(portion.queue, portion.columns, left, pace=pace):
            if isinstance(answer, Loaded):
                answers[answer.step.first] = answer
            elif isinstance(answer.error, StoreUnavailable):
                unanswered.append(answer.step)
                problem = answer.error
            else:
                raise LoadFailed(f"{portion.queue}: {answer.error.message}", code=answer.error.code)
        if problem is not None:
            if len(unanswered) < len(left):
                outage.worked()
            outage.failed()
            if outage.failures == TRIES:
                raise problem
            await asyncio.sleep(outage.pause_s)
        left = unanswered
    for step in portion.steps:
        yield answers[step.first]


class Pacer:
    """Lets so many jobs pass in a second; time that was not used is not made up for later."""

    def __init__(self, jobs_per_second: float) -> None:
        self._rate = jobs_per_second
        self._free_at = 0.0

    async def wait(self, jobs: int) -> None:
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now)
        pause = self._free_at - now
        self._free_at += jobs / self._rate
        if pause > 0:
            await asyncio.sleep(pause)


class HttpBulk:
    """Keeps the contract of `stores.bulk.Bulk` through a server, which journals for us."""

    def __init__(self, client: AsyncClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def load(
        self, queue: Queue, columns: JobColumns, steps: Sequence[LoadStep], *, pace: Pace | None = None
    ) -> AsyncIterator[Loaded | Failed]:
        waiting: list[asyncio.Task[Loaded | Failed]] = []
        try:
            for step in steps:
                if pace:
                    await pace(step.last - step.first)
                if len(waiting) == HTTP_UNDER_WAY:
                    yield await waiting.pop(0)
                waiting.append(asyncio.create_task(self._send(queue, columns, step)))
            while waiting:
                yield await waiting.pop(0)
        finally:
            for task in waiting:
                task.cancel()

    async def _send(self, queue: Queue, columns: JobColumns, step: LoadStep) -> Loaded | Failed:
        call = calls.push(queue, columns.jobs(step.first, step.last), IfExists.KEEP, step.mark)
        try:
            return loaded(step, await self._client.send(call))
        except DuetimeError as error:
            return Failed(step, error)

    async def put_back(self, queue: Queue, jobs: LostColumns) -> int | Sequence[Pushed | DuetimeError]:
        """A server gives each job its mark by itself."""
        answers = await self._client.send(calls.push_each(queue, jobs.jobs(), IfExists.KEEP))
        return [Pushed([answer], 0) if isinstance(answer, Moved) else answer or DuetimeError() for answer in answers]

    async def ping(self) -> StoreInfo:
        return await self._client.send(store_calls.store_info(self._namespace))

    async def close(self) -> None:
        await self._client.close()

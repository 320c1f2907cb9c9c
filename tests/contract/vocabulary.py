"""The words the contract tests are written in.

`push_one`, `reserve_one` ... do one thing to one job and raise where the store answers with an error. `counts` and
`states` say where everything is. Nothing here knows more about a store than its protocol.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from duetime.model.clock import Duration, ManualClock, duration_ms
from duetime.model.errors import DuetimeError
from duetime.model.job import Counts, Delivery, IfExists, Job, Lease, Moved, NewJob, Priority, State
from duetime.model.names import Queue
from duetime.stores.base import Ask, GiveBack, Mark, Push, Pushed, Reserved, RulesChange, Store, Wake

QUEUE = Queue("shop", "mail")
OTHER = Queue("shop", "sms")

HIGH, NORMAL, LOW = Priority

NOW = ManualClock().now_ms()
"""What the clock of every test shows at first."""
YEAR_2100 = 4_102_444_800_000
DEADLINE_S = 60
"""How long a test waits for what must come; long, because only a failing test waits for it."""

ODD_IDS = [
    "1", " ", " leading and trailing ", 'it\'s "quoted"', "'; DROP TABLE jobs; --", "100% _like_ [x]* ?", "%s %d %%",
    "a:b:c", "a/b/../c", "back\\slash \\n \\0", "{tag}", "ÅÄÖ é e\u0301", "日本語の識別子", "🙂🚀👩",
    "$(reboot) `ls` | & ; > <", "]] .. redis.call('FLUSHALL') --[[", "null", "0", "-1", "1e5", "0x10", "nan",
    "x" * 128, "🚀" * 128,
]  # fmt: skip

T = TypeVar("T")


def value(answer: T | DuetimeError) -> T:
    """The answer, or raise the error that it is."""
    if isinstance(answer, DuetimeError):
        raise answer
    return answer


def job(job_id: str, body: bytes = b"hello", *, delay: Duration = 0, ttl: Duration = 0, **options: Any) -> NewJob:
    return NewJob(job_id, body, delay_ms=duration_ms(delay), ttl_ms=duration_ms(ttl), **options)


def mark(name: str = "load-1", digest: bytes = b"digest", *, life: Duration = "1h") -> Mark:
    return Mark(name, digest, duration_ms(life))


def as_lists(answer: Any) -> Any:
    """The answer with every sequence in it as a list, so that whole answers can be compared."""
    if isinstance(answer, msgspec.Struct):
        fields = {name: as_lists(getattr(answer, name)) for name in answer.__struct_fields__}
        return type(answer)(**fields)
    if isinstance(answer, Queue):
        return answer
    if isinstance(answer, list | tuple):
        return [as_lists(each) for each in answer]
    if isinstance(answer, Mapping):
        return {key: as_lists(each) for key, each in answer.items()}
    return answer


def nothing_reserved(next_at: int | None = None, *, now: int = NOW, asks: int = 1, paused: bool = False) -> Reserved:
    return Reserved([[] for _ in range(asks)], next_at, now, expired=[], paused=paused)


# --- doing one thing


def shown_job(**fields: Any) -> Job:
    """The job "a" as `Store.get` shows it, pushed at NOW with the options of `job`, but for these fields."""
    defaults = {"queue": QUEUE, "id": "a", "born": NOW, "state": State.READY, "body": b"hello", "due_at": NOW}
    return Job(**{**defaults, "priority": Priority.NORMAL, "tries": 5, "used": 0, "attempt": 0, **fields})


async def push(
    store: Store,
    *jobs: NewJob,
    queue: Queue = QUEUE,
    if_exists: IfExists = IfExists.KEEP,
    mark: Mark | None = None,
) -> Pushed:
    """One request."""
    [answer] = await store.push(queue, [Push(jobs, if_exists, mark)])
    return as_lists(value(answer))


async def push_one(
    store: Store,
    job_id: str,
    body: bytes = b"hello",
    *,
    queue: Queue = QUEUE,
    if_exists: IfExists = IfExists.KEEP,
    **options: Any,
) -> Moved:
    pushed = await push(store, job(job_id, body, **options), queue=queue, if_exists=if_exists)
    [moved] = pushed.jobs
    return moved


async def replace_one(store: Store, job_id: str, body: bytes = b"hello", **options: Any) -> Moved:
    return await push_one(store, job_id, body, if_exists=IfExists.REPLACE, **options)


async def reserve(
    store: Store,
    limit: int = 1,
    *,
    ttr: Duration = "60s",
    quotas: tuple[int, int, int] = (0, 0, 0),
    queue: Queue = QUEUE,
) -> Reserved:
    return await reserve_asks(store, Ask(limit, duration_ms(ttr), quotas), queue=queue)


async def reserve_asks(store: Store, *asks: Ask, queue: Queue = QUEUE) -> Reserved:
    """One call with several asks."""
    return as_lists(await store.reserve(queue, asks))


async def reserve_some(store: Store, limit: int = 500, **options: Any) -> list[Delivery]:
    [deliveries] = (await reserve(store, limit, **options)).deliveries
    return list(deliveries)


async def reserve_one(store: Store, **options: Any) -> Delivery:
    """The one job that must be ready."""
    deliveries = await reserve_some(store, 1, **options)
    assert len(deliveries) == 1, "nothing was delivered"
    return deliveries[0]


async def reserved_ids(store: Store, limit: int = 500, **options: Any) -> list[str]:
    return [delivery.lease.id for delivery in await reserve_some(store, limit, **options)]


async def ack_one(store: Store, lease: Lease) -> Moved | None:
    [answer] = await store.ack(lease.queue, [lease])
    return value(answer)


async def give_back_one(store: Store, lease: Lease, delay_ms: int | None = None) -> Moved:
    [answer] = await store.give_back(lease.queue, [GiveBack(lease, delay_ms)])
    return value(answer)


async def cancel_one(store: Store, job_id: str, queue: Queue = QUEUE) -> Moved | None:
    [answer] = await store.cancel(queue, [job_id])
    return answer


async def reschedule_one(store: Store, job_id: str, *, queue: Queue = QUEUE, **when: Any) -> Moved | None:
    [answer] = await store.reschedule(queue, [job_id], **when)
    return value(answer)


async def get_one(store: Store, job_id: str, queue: Queue = QUEUE) -> Job | None:
    [found] = await store.get(queue, [job_id])
    return found


async def found(store: Store, job_id: str, queue: Queue = QUEUE) -> Job:
    """The job that must be there."""
    job = await get_one(store, job_id, queue)
    assert job is not None, f"{job_id!r} is not there"
    return job


async def reap(store: Store, queue: Queue = QUEUE) -> list[Moved]:
    """What the reaper moved in a queue; nothing may have moved elsewhere."""
    reaped = await store.reap()
    assert set(reaped.moved) <= {queue}
    return list(reaped.moved.get(queue, []))


async def pause(store: Store, queue: Queue = QUEUE) -> None:
    await store.configure(queue, RulesChange(paused=True))


async def resume(store: Store, queue: Queue = QUEUE) -> None:
    await store.configure(queue, RulesChange(paused=False))


async def keep_expired(store: Store, queue: Queue = QUEUE) -> None:
    await store.configure(queue, RulesChange(expired_to_dead=True))


# --- bringing a job somewhere


async def given_leased(store: Store, job_id: str, *, ttr: Duration = "60s", **options: Any) -> Lease:
    """A job that nothing else is ready before, in a consumer's hands."""
    await push_one(store, job_id, **options)
    delivery = await reserve_one(store, ttr=ttr, queue=options.get("queue", QUEUE))
    assert delivery.lease.id == job_id
    return delivery.lease


async def given_dead(store: Store, job_id: str, *, error: str = "", **options: Any) -> Lease:
    """A killed job; answers the lease that was lost by that."""
    lease = await given_leased(store, job_id, **options)
    await store.kill(lease, error)
    return lease


async def given_expired(store: Store, clock: ManualClock, job_id: str, **options: Any) -> None:
    """A job that has just passed its ttl and that nobody has met since."""
    await push_one(store, job_id, ttl="1s", **options)
    clock.advance("1001ms")


# --- looking


async def counts(store: Store, queue: Queue = QUEUE) -> Counts:
    """The counts without their instant and the tier of jobs, to be compared as a whole."""
    [counted] = await store.counts([queue])
    return msgspec.structs.replace(counted, now=0, cold=0)


async def walk(store: Store, state: State, queue: Queue = QUEUE, *, limit: int = 100) -> list[Job]:
    """All jobs of a state, page by page."""
    jobs: list[Job] = []
    cursor: str | None = None
    while True:
        page = await store.list_jobs(queue, state, cursor=cursor, limit=limit)
        assert len(page.jobs) <= limit
        jobs += page.jobs
        if page.cursor is None:
            return jobs
        cursor = page.cursor


async def states(store: Store, queue: Queue = QUEUE) -> dict[str, str]:
    """Id -> state of every job, as listing shows them."""
    return {job.id: state.value for state in State for job in await walk(store, state, queue)}


# --- waiting


class Wakes:
    """What a listener has heard so far."""

    def __init__(self) -> None:
        self._heard: asyncio.Queue[Wake] = asyncio.Queue()

    def hear(self, wake: Wake) -> None:
        self._heard.put_nowait(wake)

    async def until(self, wanted: Wake) -> list[Wake]:
        """Wait for a wake; answers everything heard since the last call, the wanted one last."""
        seen: list[Wake] = []
        async with asyncio.timeout(DEADLINE_S):
            while wanted not in seen:
                seen.append(await self._heard.get())
        return seen


@asynccontextmanager
async def listening(store: Store) -> AsyncIterator[Wakes]:
    """Listen to a store's wakeups; inside the block the listener is connected."""
    wakes = Wakes()

    async def listen() -> None:
        async for wake in store.wakeups():
            wakes.hear(wake)

    task = asyncio.create_task(listen())
    try:
        await wakes.until(Wake())
        yield wakes
    finally:
        task.cancel()
        await asyncio.wait([task])

"""Lost jobs go back by columns as a push of each would bring them back: once, under the old born."""

from collections.abc import AsyncIterator, Sequence

import pyarrow as pa
import pytest

from duetime.model.errors import DuetimeError, QueueFull
from duetime.model.job import Event, Job, NewJob, Priority, State
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, RulesChange, Store, repair_mark
from duetime.stores.bulk import Bulk, LostColumns
from duetime.stores.open import bulk_of, open_store

QUEUE, OTHER = Queue("crm", "recall"), Queue("crm", "other")
BORN, DUE = 1_790_000_000_000, 4_000_000_000_000


@pytest.fixture
async def both(url: str) -> AsyncIterator[tuple[Bulk, Store]]:
    store = await open_store(url)
    yield bulk_of(store, url), store
    assert await store.check() == []
    await store.close()


def lost(*names: str, born: int = BORN, attempt: int = 1, due_at: int = DUE, ttl_ms: int = 0) -> LostColumns:
    """The first two have the same born, as jobs of one push have; the fourth and fifth share all but their born."""

    def numbers(*values: int) -> pa.Array:
        return pa.array([values[index % len(values)] for index in range(len(names))], pa.int64())

    return LostColumns(
        ids=pa.array(names, pa.string()),
        bodies=pa.array([b"\0\r\n$3\xff" + name.encode() for name in names], pa.binary()),
        due_at=pa.array([due_at + index for index in range(len(names))], pa.int64()),
        ttl_ms=numbers(ttl_ms),
        tries=numbers(5, 5, 7),
        priority=numbers(2, 2, 1),
        attempt=numbers(attempt),
        born=pa.array([born + index // 2 for index in range(len(names))], pa.int64()),
    )


def told(answer: int | Sequence[Pushed | DuetimeError]) -> list[tuple[str, bool]]:
    """What became of each job, and whether it was said before."""
    assert not isinstance(answer, int)
    return [(one.jobs[0].event, one.repeated) if isinstance(one, Pushed) else (one.code, False) for one in answer]


async def listed(store: Store, queue: Queue = QUEUE, state: State = State.DELAYED) -> list[Job]:
    return list((await store.list_jobs(queue, state, limit=500)).jobs)


async def test_they_are_as_a_push_of_each_makes_them(both: tuple[Bulk, Store]) -> None:
    bulk, store = both
    jobs = lost("a", "ü-\N{SNOWMAN}", "c", "d", "e", ttl_ms=10**11 * 30)
    answer = await bulk.put_back(QUEUE, jobs)
    await store.push(OTHER, [Push([job]) for job in jobs.jobs()])

    assert isinstance(answer, int) or all(event == Event.ACCEPTED for event, _ in told(answer))
    columns, pushed = await listed(store), await listed(store, OTHER)
    assert [(job.id, job.born, job.attempt, job.tries, job.priority) for job in columns] == [
        ("a", BORN, 1, 5, Priority.NORMAL),
        ("ü-\N{SNOWMAN}", BORN, 1, 5, Priority.NORMAL),
        ("c", BORN + 1, 1, 7, Priority.HIGH),
        ("d", BORN + 1, 1, 5, Priority.NORMAL),
        ("e", BORN + 2, 1, 5, Priority.NORMAL),
    ]
    assert [(job.id, job.body, job.due_at, job.born, job.attempt, job.used) for job in columns] == [
        (job.id, job.body, job.due_at, job.born, job.attempt, job.used) for job in pushed
    ]
    assert all(0 <= theirs.expires_at - ours.expires_at < 60_000 for ours, theirs in zip(columns, pushed, strict=True))


async def test_each_goes_back_once_also_after_it_was_acked(both: tuple[Bulk, Store]) -> None:
    bulk, store = both
    jobs = lost("a", "b", "c", due_at=BORN)
    await bulk.put_back(QUEUE, jobs)
    given = (await store.reserve(QUEUE, [Ask(10, 60_000)])).deliveries[0]
    await store.ack(QUEUE, [one.lease for one in given])

    # Another run has another plan: some of these, and one more.
    again = await bulk.put_back(QUEUE, lost("a", "b", "c", "d", due_at=BORN))
    assert told(again) == [(Event.ACCEPTED, True)] * 3 + [(Event.ACCEPTED, False)]
    assert [job.id for job in await listed(store, state=State.READY)] == ["d"]
    [later] = (await bulk.put_back(QUEUE, lost("a", attempt=2, due_at=BORN)),)
    assert isinstance(later, int) or told(later) == [(Event.ACCEPTED, False)]


async def test_columns_and_single_pushes_know_each_others_marks(both: tuple[Bulk, Store]) -> None:
    bulk, store = both
    jobs = lost("a", "b")
    first, second = jobs.jobs()
    await store.push(QUEUE, [Push([first], mark=repair_mark(first))])
    await store.cancel(QUEUE, ["a"])
    assert told(await bulk.put_back(QUEUE, jobs)) == [
        (Event.ACCEPTED, True),
        (Event.ACCEPTED, False),
    ]
    await bulk.put_back(OTHER, jobs)
    await store.cancel(OTHER, ["a", "b"])
    answers = await store.push(OTHER, [Push([job], mark=repair_mark(job)) for job in (first, second)])
    assert told(answers) == [(Event.ACCEPTED, True)] * 2
    assert [(one.id, one.born, one.attempt, one.due_at) for answer in answers for one in answer.jobs] == [
        ("a", BORN, 1, DUE),
        ("b", BORN, 1, DUE + 1),
    ]


async def test_existing_jobs_are_kept_and_reported(both: tuple[Bulk, Store]) -> None:
    bulk, store = both
    await store.push(QUEUE, [Push([NewJob("b", b"newer", due_at=DUE)])])
    jobs = lost("a", "b")
    assert told(await bulk.put_back(QUEUE, jobs)) == [(Event.ACCEPTED, False), (Event.KEPT, False)]
    await store.cancel(QUEUE, ["b"])
    assert told(await bulk.put_back(QUEUE, jobs)) == [(Event.ACCEPTED, True), (Event.KEPT, True)]
    assert [job.id for job in await listed(store)] == ["a"]


async def test_a_full_queue_takes_what_fits(both: tuple[Bulk, Store]) -> None:
    bulk, store = both
    await store.configure(QUEUE, RulesChange(max_jobs=2))
    answers = await bulk.put_back(QUEUE, lost("a", "b", "c"))
    assert told(answers) == [(Event.ACCEPTED, False)] * 2 + [(QueueFull.code, False)]

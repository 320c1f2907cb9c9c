"""Loading by columns answers and leaves behind what the ordinary push does."""

from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from duetime.model.errors import BodyTooLarge, ExpiresBeforeDue, MarkMismatch
from duetime.model.job import Event, Job, Priority, State
from duetime.model.names import Queue
from duetime.stores.base import Mark, Push, Pushed, RulesChange, Store
from duetime.stores.bulk import Bulk, Failed, JobColumns, Loaded, LoadStep
from duetime.stores.open import open_bulk, open_store

QUEUE, OTHER = Queue("crm", "recall"), Queue("crm", "other")
DUE = 4_000_000_000_000


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = await open_store(url)
    yield store
    await store.close()


@pytest.fixture
async def bulk(url: str) -> AsyncIterator[Bulk]:
    bulk = await open_bulk(url)
    yield bulk
    await bulk.close()


def columns(*names: str, body: bytes = b"body", ttl_ms: int = 0, first_due: int = DUE) -> JobColumns:
    return JobColumns(
        pa.array(names, pa.string()),
        pa.array([body + name.encode() for name in names], pa.binary()),
        pa.array([first_due + index for index in range(len(names))], pa.int64()),
        ttl_ms,
        7,
        Priority.HIGH,
    )


def mark(name: str = "b/0/0", digest: bytes = b"digest") -> Mark:
    return Mark(name, digest, 60_000, brief=True)


async def load(bulk: Bulk, jobs: JobColumns, *steps: LoadStep) -> list[Loaded | Failed]:
    return [one async for one in bulk.load(QUEUE, jobs, steps or [LoadStep(0, len(jobs.ids))])]


async def listed(store: Store, queue: Queue = QUEUE) -> list[Job]:
    return list((await store.list_jobs(queue, State.DELAYED, limit=500)).jobs)


async def test_jobs_are_as_push_makes_them(bulk: Bulk, store: Store) -> None:
    jobs = columns("a", "b", "ü-\N{SNOWMAN}", "long-" + "x" * 100, body=b"\0\r\n$3\r\n\xff")
    [answer] = await load(bulk, jobs)
    await store.push(OTHER, [Push(jobs.jobs(0, 4))])

    assert isinstance(answer, Loaded)
    assert (answer.count(Event.ACCEPTED), answer.repeated) == (4, False)
    by_columns, by_push = await listed(store), await listed(store, OTHER)
    assert len(by_columns) == 4
    assert {job.born for job in by_columns} == {answer.born}
    assert [(job.id, job.body, job.due_at, job.tries, job.priority) for job in by_columns] == [
        (job.id, job.body, job.due_at, job.tries, job.priority) for job in by_push
    ]
    assert await store.check() == []


async def test_a_repeated_step_does_nothing_also_after_its_jobs_are_gone(bulk: Bulk, store: Store) -> None:
    jobs = columns("a", "b")
    [first] = await load(bulk, jobs, LoadStep(0, 2, mark()))
    await store.cancel(QUEUE, ["a"])
    [again] = await load(bulk, jobs, LoadStep(0, 2, mark()))

    assert isinstance(first, Loaded)
    assert isinstance(again, Loaded)
    assert (again.repeated, again.count(Event.ACCEPTED), again.born) == (True, 2, first.born)
    assert [job.id for job in await listed(store)] == ["b"]


async def test_a_brief_mark_answers_the_ordinary_push_too(bulk: Bulk, store: Store) -> None:
    jobs = columns("a", "b")
    await load(bulk, jobs, LoadStep(0, 2, mark()))
    [pushed] = await store.push(QUEUE, [Push(jobs.jobs(0, 2), mark=mark())])

    assert isinstance(pushed, Pushed)
    assert pushed.repeated
    assert [(one.event, one.id, one.due_at) for one in pushed.jobs] == [
        (Event.ACCEPTED, "a", DUE),
        (Event.ACCEPTED, "b", DUE + 1),
    ]


async def test_existing_jobs_are_kept_and_reported(bulk: Bulk, store: Store) -> None:
    await load(bulk, columns("b", body=b"old"))
    jobs = columns("a", "b", "c")
    [first] = await load(bulk, jobs, LoadStep(0, 3, mark()))
    [again] = await load(bulk, jobs, LoadStep(0, 3, mark()))

    assert isinstance(first, Loaded)
    assert isinstance(again, Loaded)
    assert (first.count(Event.ACCEPTED), first.count(Event.KEPT)) == (2, 1)
    assert first.moved == again.moved
    assert [job.body for job in await listed(store) if job.id == "b"] == [b"oldb"]


async def test_steps_are_answered_in_their_order(bulk: Bulk, store: Store) -> None:
    jobs = columns(*[f"job-{index:04}" for index in range(1000)])
    steps = [LoadStep(first, first + 100, mark(f"b/0/{first}")) for first in range(0, 1000, 100)]
    answers = await load(bulk, jobs, *steps)

    assert [answer.step for answer in answers] == steps
    assert (await store.counts([QUEUE]))[0].delayed == 1000
    assert await store.check() == []


async def test_one_refused_step_does_not_fail_its_neighbours(bulk: Bulk, store: Store) -> None:
    await store.configure(QUEUE, RulesChange(max_body=6))
    jobs = columns("a", "too-long", "c")
    answers = await load(bulk, jobs, LoadStep(0, 1), LoadStep(1, 2), LoadStep(2, 3))

    assert isinstance(answers[1], Failed)
    assert isinstance(answers[1].error, BodyTooLarge)
    assert answers[1].error.fields["id"] == "too-long"
    assert [job.id for job in await listed(store)] == ["a", "c"]


async def test_refusals_have_the_words_of_push(bulk: Bulk) -> None:
    await load(bulk, columns("a"), LoadStep(0, 1, mark()))
    [other] = await load(bulk, columns("b"), LoadStep(0, 1, mark(digest=b"another")))
    [late] = await load(bulk, columns("c", ttl_ms=1000))

    assert isinstance(other, Failed)
    assert isinstance(other.error, MarkMismatch)
    assert isinstance(late, Failed)
    assert isinstance(late.error, ExpiresBeforeDue)


async def test_the_pace_is_kept_before_each_step(bulk: Bulk) -> None:
    paced: list[int] = []

    async def pace(jobs: int) -> None:
        paced.append(jobs)

    jobs = columns("a", "b", "c")
    async for _ in bulk.load(QUEUE, jobs, [LoadStep(0, 2), LoadStep(2, 3)], pace=pace):
        pass
    assert paced == [2, 1]

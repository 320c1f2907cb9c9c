"""The verbs at the engine's door: what is refused, what is cut, and that long lists go in bounded steps."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from duetime.engine import Engine
from duetime.engine.requests import check_job
from duetime.model.clock import MAX_DURATION
from duetime.model.errors import (
    BodyTooLarge,
    DuetimeError,
    InvalidId,
    InvalidRequest,
    InvalidTime,
    LeaseLost,
)
from duetime.model.job import MAX_ERROR, STEP_JOBS, Event, Lease, NewJob, Priority, State
from duetime.stores.base import Mark
from tests.simulation.engine_room import OTHER, QUEUE, given_store, ids, job, push
from tests.simulation.virtual_loop import virtual_time

SURROGATE = "\ud800"
"""Half a character: a string in Python, and not writable anywhere."""

BAD_JOBS = {
    "an empty id": (NewJob("", b""), InvalidId),
    "a long id": (NewJob("x" * 129, b""), InvalidId),
    "an unprintable id": (NewJob("a\n", b""), InvalidId),
    "an unwritable id": (NewJob(SURROGATE, b""), InvalidId),
    "a large body": (NewJob("a", b"x" * 101), BodyTooLarge),
    "a body of text": (NewJob("a", "text"), InvalidRequest),  # type: ignore[arg-type]
    "too many tries": (NewJob("a", b"", tries=65_536), InvalidRequest),
    "negative tries": (NewJob("a", b"", tries=-1), InvalidRequest),
    "a negative delay": (NewJob("a", b"", delay_ms=-1), InvalidTime),
    "an endless delay": (NewJob("a", b"", delay_ms=2**43), InvalidTime),
    "a negative ttl": (NewJob("a", b"", ttl_ms=-1), InvalidTime),
    "an endless ttl": (NewJob("a", b"", ttl_ms=2**43), InvalidTime),
    "a time before 1970": (NewJob("a", b"", due_at=-1), InvalidTime),
    "a time after 9999": (NewJob("a", b"", due_at=253_402_300_800_000), InvalidTime),
    "no priority": (NewJob("a", b"", priority=4), InvalidRequest),  # type: ignore[arg-type]
    "no name for an attribute": (NewJob("a", b"", attributes={"": "x"}), InvalidRequest),
    "an unwritable attribute": (NewJob("a", b"", attributes={"x": SURROGATE}), InvalidRequest),
    "too many attributes": (NewJob("a", b"", attributes={str(number): "" for number in range(65)}), InvalidRequest),
    "a negative born": (NewJob("a", b"", born=-1), InvalidRequest),
    "a born after 9999": (NewJob("a", b"", born=2**48), InvalidRequest),
    "an endless attempt": (NewJob("a", b"", attempt=2**32), InvalidRequest),
}


@pytest.mark.parametrize("what", BAD_JOBS)
@virtual_time
async def test_a_job_is_refused_for(what: str) -> None:
    bad, error = BAD_JOBS[what]
    store = given_store()
    async with Engine(store, max_body=100) as engine:
        with pytest.raises(error) as caught:
            await engine.push(QUEUE, [job("good"), bad])
        assert type(caught.value) is error
        assert caught.value.message
        assert store.count("push") == 0
        assert await store.queues() == []


@pytest.mark.parametrize("most", [NewJob("a", b"", delay_ms=MAX_DURATION), NewJob("a", b"", ttl_ms=MAX_DURATION)])
def test_the_longest_delay_and_ttl_that_lmstfy_knows_are_accepted(most: NewJob) -> None:
    assert MAX_DURATION == (2**32 - 1) * 1000
    check_job(most, max_body=10)


@virtual_time
async def test_a_push_of_nothing_is_refused() -> None:
    async with Engine(given_store()) as engine:
        with pytest.raises(InvalidRequest):
            await engine.push(QUEUE, [])


GOOD = Lease(QUEUE, "a", 1, 1)
BAD_CALLS: dict[str, tuple[Callable[[Engine], Awaitable[Any]], type[DuetimeError]]] = {
    "cancel of an unwritable id": (lambda engine: engine.cancel(QUEUE, ["a", SURROGATE]), InvalidId),
    "reschedule of an unwritable id": (lambda engine: engine.reschedule(QUEUE, [SURROGATE]), InvalidId),
    "reschedule by a negative delay": (lambda engine: engine.reschedule(QUEUE, ["a"], delay_ms=-1), InvalidTime),
    "reschedule to before 1970": (lambda engine: engine.reschedule(QUEUE, ["a"], due_at=-1), InvalidTime),
    "reschedule to after 9999": (lambda engine: engine.reschedule(QUEUE, ["a"], due_at=2**48), InvalidTime),
    "release by a negative delay": (lambda engine: engine.release(GOOD, delay_ms=-1), InvalidTime),
    "release by an endless delay": (lambda engine: engine.release(GOOD, delay_ms=2**43), InvalidTime),
    "extend by a negative ttr": (lambda engine: engine.extend(GOOD, -1), InvalidRequest),
    "respawn with a negative ttl": (lambda engine: engine.respawn(QUEUE, ttl_ms=-1), InvalidTime),
    "respawn with too many tries": (lambda engine: engine.respawn(QUEUE, tries=65_536), InvalidRequest),
    "respawn of an unwritable id": (lambda engine: engine.respawn(QUEUE, ids=[SURROGATE]), InvalidId),
    "an unwritable mark": (lambda engine: engine.push(QUEUE, [job("a")], mark=Mark(SURROGATE, b"", 1)), InvalidRequest),
    "an endless mark": (lambda engine: engine.push(QUEUE, [job("a")], mark=Mark("m", b"", 2**43)), InvalidTime),
}
BAD_LEASES = [
    Lease(QUEUE, SURROGATE, 1, 1),
    Lease(QUEUE, "", 1, 1),
    Lease(QUEUE, "a", -1, 1),
    Lease(QUEUE, "a", 2**64, 1),
    Lease(QUEUE, "a", 1, -1),
    Lease(QUEUE, "a", 1, 2**32),
]


@pytest.mark.parametrize("what", BAD_CALLS)
@virtual_time
async def test_impossible_requests_are_refused(what: str) -> None:
    call, error = BAD_CALLS[what]
    store = given_store()
    async with Engine(store) as engine:
        with pytest.raises(error) as caught:
            await call(engine)
        assert type(caught.value) is error
        assert [one.verb for one in store.calls if one.verb not in ("reap", "ping", "heads")] == []


@pytest.mark.parametrize("lease", BAD_LEASES, ids=lambda lease: f"{lease.id!r} {lease.born} {lease.attempt}")
@virtual_time
async def test_a_lease_that_cannot_be_is_refused_by_every_verb(lease: Lease) -> None:
    async with Engine(given_store()) as engine:
        for verb in (engine.release, engine.kill, engine.extend):
            with pytest.raises(InvalidRequest):
                await verb(lease)
        for verb in (engine.ack, engine.give_back):
            with pytest.raises(InvalidRequest):
                await verb([GOOD, lease])


# --- errors of consumers


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        ("", ""),
        ("short", "short"),
        ("x" * MAX_ERROR, "x" * MAX_ERROR),
        ("head" + "x" * MAX_ERROR, "x" * MAX_ERROR),
        ("é" * MAX_ERROR, "é" * (MAX_ERROR // 2)),
        ("a" + "é" * MAX_ERROR + "b", "é" * (MAX_ERROR // 2 - 1) + "b"),
        ("🚀" * MAX_ERROR + "ab", "🚀" * (MAX_ERROR // 4 - 1) + "ab"),
        (f"half {SURROGATE} a character", "half ? a character"),
        ("nul \0 in it", "nul ? in it"),
    ],
    ids=range(9),
)
@virtual_time
async def test_an_error_is_cut_to_its_last_four_kibibytes(error: str, kept: str) -> None:
    store = given_store()
    async with Engine(store) as engine:
        await push(engine, "released", "killed")
        first, second = await engine.reserve([QUEUE], limit=2)
        await engine.release(first.lease, delay_ms=1000, error=error)
        await engine.kill(second.lease, error=error)
        found = await store.get(QUEUE, ["released", "killed"])
        assert [one.error for one in found] == [kept, kept]
        assert len(kept.encode()) <= MAX_ERROR


# --- answers


@virtual_time
async def test_ack_answers_per_lease_over_several_queues() -> None:
    async with Engine(given_store()) as engine:
        await push(engine, "a", "b")
        await push(engine, "c", queue=OTHER)
        a, b, c = await engine.reserve([QUEUE, OTHER], limit=3)
        await engine.release(b.lease, delay_ms=1000)
        gone = Lease(OTHER, "gone", 1, 1)
        answers = await engine.ack([c.lease, b.lease, gone, a.lease])
        assert [type(answer) for answer in answers[1:3]] == [LeaseLost, type(None)]
        assert [(one.event, one.id) for one in (answers[0], answers[3])] == [(Event.ACKED, "c"), (Event.ACKED, "a")]
        assert await engine.ack([]) == []


# --- bounded steps

MANY = 2 * STEP_JOBS + 1
MANY_IDS = [f"j{number:04}" for number in range(MANY)]


async def given_many(engine: Engine, **options: Any) -> None:
    for at in range(0, MANY, STEP_JOBS):
        await push(engine, *MANY_IDS[at : at + STEP_JOBS], **options)


async def taken_all(engine: Engine) -> list[Lease]:
    leases: list[Lease] = []
    while found := await engine.reserve([QUEUE], limit=STEP_JOBS):
        leases += [delivery.lease for delivery in found]
    assert len(leases) == MANY
    return leases


@virtual_time
async def test_long_lists_are_sent_in_steps_and_answered_completely() -> None:
    store = given_store()
    async with Engine(store) as engine:
        await given_many(engine, delay="1h")
        moved = await engine.reschedule(QUEUE, [*MANY_IDS, "none"], delay_ms=0)
        assert [one and one.id for one in moved] == [*MANY_IDS, None]

        leases = await taken_all(engine)
        answers = await engine.ack([*leases[:600], Lease(OTHER, "gone", 1, 1)])
        assert [one and one.id for one in answers] == [*MANY_IDS[:600], None]

        cancelled = await engine.cancel(QUEUE, MANY_IDS)
        assert [one and one.id for one in cancelled] == [None] * 600 + MANY_IDS[600:]

        for verb in ("reschedule", "ack", "cancel"):
            assert max(len(request) for request in store.requests(verb)) <= STEP_JOBS


@virtual_time
async def test_respawn_goes_in_steps_by_id_and_by_age() -> None:
    store = given_store()
    async with Engine(store) as engine:
        await given_many(engine)
        for lease in await taken_all(engine):
            await engine.kill(lease)
        first = await engine.respawn(QUEUE, limit=STEP_JOBS + 2)
        rest = await engine.respawn(QUEUE, ids=MANY_IDS, tries=7)
        assert [moved.id for moved in first + rest] == MANY_IDS
        assert await engine.respawn(QUEUE, limit=10_000) == []
        assert (await store.counts([QUEUE]))[0].ready == MANY


@virtual_time
async def test_purge_goes_in_steps_up_to_its_limit() -> None:
    store = given_store()
    async with Engine(store) as engine:
        await given_many(engine)
        assert await engine.purge(QUEUE, [State.READY], limit=STEP_JOBS + 1) == STEP_JOBS + 1
        assert await engine.purge(QUEUE, [State.READY]) == MANY - STEP_JOBS - 1
        assert await engine.purge(QUEUE, list(State)) == 0
        assert await store.queues() == []


@virtual_time
async def test_rotations_of_many_queues_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime.engine.batcher.MAX_QUEUES", 10)
    async with Engine(given_store()) as engine:
        for number in range(25):
            queue = QUEUE._replace(name=f"q{number}")
            await push(engine, "a", queue=queue, priority=Priority.LOW)
            assert ids(await engine.reserve([queue])) == ["a"]
        assert len(engine._batcher._rotations) <= 10

"""Receivers that hang, answer garbage or without an end, and faults of ours around a call: every job is settled."""

import asyncio
from contextlib import suppress

import pytest

from duetime.callbacks.caller import MAX_ANSWER, Caller
from duetime.callbacks.request import CallbackRequest
from duetime.callbacks.targets import AllowedTargets
from duetime.callbacks.topic_lane import TopicLane
from tests.courier.conftest import LOOPBACK, World
from tests.courier.receiver import EMPTY, OK, Receiver, Says
from tests.plugins.until import until


async def test_a_receiver_that_hangs_costs_the_topics_timeout(world: World, receiver: Receiver) -> None:
    receiver.hold()
    await world.topic(timeout_ms=500)

    await world.add("1")
    job = await world.waits("1")

    assert len(receiver.calls) == 3
    assert job.error == "retry 1: no answer within 500 ms"


ODD_ANSWERS = [
    b'{"code":"' + b"1" * 5000 + b'"}',
    b'{"code":' + b"1" * 5000 + b"}",
    b'{"code":1e999}',
    b'{"code":' + b"[" * 800 + b"]" * 800 + b',"was":' + b"[" * 800 + b"]" * 800 + b"}",
    b"[" * 30_000 + b"]" * 30_000,
]


@pytest.mark.parametrize("body", ODD_ANSWERS, ids=lambda body: body[:12].decode())
@pytest.mark.parametrize("retry_if", ["{res.code} == {res.was}", "{res.code} < '5' || {res.code} == 'x'"])
async def test_whatever_an_answer_is_its_job_is_settled(
    world: World, receiver: Receiver, body: bytes, retry_if: str
) -> None:
    receiver.answer = lambda call: Says(body)
    await world.topic(retry_if=retry_if)
    await world.add("1")

    async def settled() -> bool:
        return (await world.counts()).leased == 0 and bool(receiver.calls)

    await until(settled)

    lane = world.lane("mail")
    assert isinstance(lane, TopicLane)
    await until(lambda: not world.courier.held)


async def test_a_number_beyond_64_bits_is_large_and_not_a_success(world: World, receiver: Receiver) -> None:
    receiver.answer = lambda call: Says(b'{"code":500,"trace":' + b"7" * 5000 + b"}")
    await world.topic(retry_if="{res.code} != 200")

    await world.add("1")

    job = await world.waits("1")
    assert "the retry condition holds" in job.error


@pytest.mark.parametrize("step", ["write_request", "judge", "retry_after_s", "describe"])
async def test_a_fault_of_ours_is_a_failed_attempt(
    world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Whatever raises around a call: the job waits for its next attempt and the breakers let that one through."""
    receiver.answer = lambda call: EMPTY
    topic = await world.topic(schedule="50ms", cap=1000)
    lane = world.lane("mail")
    assert isinstance(lane, TopicLane)
    for breaker in (lane.breaker, lane.host.breaker):
        breaker.pause(0)  # half open: the next call is its probe

    def broken(*_: object, **__: object) -> object:
        raise ZeroDivisionError("planted")

    with monkeypatch.context() as planted:
        planted.setattr(f"duetime.callbacks.topic_lane.{step}", broken)
        await world.add("1")
        job = await world.waits("1", attempt=2)
    assert "planted" in job.error

    receiver.answer = lambda call: OK
    await world.gone("1")
    await until(lambda: not world.courier.held)

    async def counted() -> bool:
        return (await world.totals(topic))["failed"] >= 1

    await until(counted)


async def test_a_fault_in_one_round_of_acks_does_not_hold_the_next(
    world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What succeeds while a round of acks breaks is acked by the next round."""
    await world.topic()
    ack, began, go = world.engine.ack, asyncio.Event(), asyncio.Event()

    async def broken(*_: object) -> object:
        monkeypatch.setattr(world.engine, "ack", ack)
        began.set()
        await go.wait()
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(world.engine, "ack", broken)
    await world.add("1")
    await began.wait()
    await world.add("2")
    await receiver.got(2)
    await until(lambda: world.courier.in_flight == 0)
    go.set()

    await world.gone("2")
    assert len(receiver.calls) == 2
    await until(lambda: not world.courier.held)


@pytest.mark.parametrize(
    "said",
    [
        Says(raw=b"what?\r\n\r\n"),
        Says(drop=True),
        Says(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nshort"),
    ],
)
async def test_garbage_is_an_empty_answer(world: World, receiver: Receiver, said: Says) -> None:
    receiver.answer = lambda call: said
    await world.topic()

    await world.add("1")
    job = await world.waits("1")

    assert job.error.startswith("retry 1: the call broke")


async def test_an_answer_is_read_up_to_a_bound(world: World) -> None:
    """What follows is not waited for: this receiver would never end, and is hung up on."""
    hung_up = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n" + b"x" * (MAX_ANSWER + 1))
        with suppress(ConnectionError):
            await reader.read()
        hung_up.set()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        await world.topic(callback=url, timeout_ms=60_000)
        await world.add("1")
        await world.gone("1")
        await hung_up.wait()


async def test_no_more_than_the_bound_is_kept(receiver: Receiver) -> None:
    receiver.answer = lambda call: Says(b"x" * 1_000_000)
    async with Caller(AllowedTargets(LOOPBACK)) as caller:
        answer = await caller.call(CallbackRequest("GET", receiver.url, {}), timeout_ms=20_000, verify=True)

    assert len(answer.body) == MAX_ANSWER

"""The channel between worker and supervisor, and what the siblings of a worker make of it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from duetime.metrics.siblings import WorkerReply
from duetime.model.backoff import Fixed
from duetime.model.errors import InvalidSettings
from duetime.model.settings import Settings
from duetime.server.supervision.control_channel import Channel, ControlLost
from duetime.server.supervision.program import Start
from duetime.server.supervision.siblings import Alone, SiblingWorker
from duetime.server.supervision.worker_slot import WorkerProcess, WorkerSlot
from tests.plugins.until import until

Pair = tuple[Channel, Channel]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    left, right = (Channel(sock) for sock in socket.socketpair())
    await left.open()
    await right.open()
    yield left, right
    await left.close()
    await right.close()


async def shout(body: bytes) -> bytes:
    return body.upper()


async def test_both_ends_ask_and_answer(pair: Pair) -> None:
    for asking, answering in (pair, pair[::-1]):
        answering.handle("shout", shout)
        assert await asking.ask("shout", b"hello") == b"HELLO"


async def test_answers_find_their_questions_in_any_order(pair: Pair) -> None:
    gates = {b"first": asyncio.Event(), b"second": asyncio.Event()}

    async def wait(body: bytes) -> bytes:
        await gates[body].wait()
        return body

    pair[1].handle("wait", wait)
    asked = [asyncio.create_task(pair[0].ask("wait", body)) for body in gates]
    gates[b"second"].set()
    assert await asked[1] == b"second"
    assert not asked[0].done()
    gates[b"first"].set()
    assert await asked[0] == b"first"


async def test_large_bodies_pass(pair: Pair) -> None:
    pair[1].handle("shout", shout)
    assert await pair[0].ask("shout", b"x" * 5_000_000) == b"X" * 5_000_000


async def test_no_answer_is_an_error_and_not_a_wait(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    async def never(body: bytes) -> bytes:
        return await asyncio.get_running_loop().create_future()

    async def broken(body: bytes) -> bytes:
        raise KeyError(body)

    pair[1].handle("never", never)
    pair[1].handle("broken", broken)
    with pytest.raises(ControlLost, match="no answer to never"):
        await pair[0].ask("never", within_s=0.01)
    with pytest.raises(ControlLost, match="there is no handler for unknown"):
        await pair[0].ask("unknown")
    with pytest.raises(ControlLost, match="KeyError"):
        await pair[0].ask("broken")
    assert "control_failed" in caplog.text


async def test_the_end_of_one_process_is_seen_by_the_other(pair: Pair) -> None:
    async def leave(body: bytes) -> bytes:
        await pair[1].close()
        return b""

    pair[1].handle("leave", leave)
    with pytest.raises(ControlLost):
        await pair[0].ask("leave")
    await asyncio.wait_for(pair[0].gone.wait(), 10)
    with pytest.raises(ControlLost):
        await pair[0].ask("leave")


async def test_a_crew_of_one_asks_itself() -> None:
    siblings = Alone()
    siblings.handle("shout", shout)
    assert await siblings.ask_all("shout", b"me") == [WorkerReply("1", b"ME")]
    assert await siblings.ask_all("unknown") == []
    assert [worker.state for worker in await siblings.workers()] == ["ready"]


async def test_a_member_without_a_supervisor_speaks_for_itself(pair: Pair) -> None:
    siblings = SiblingWorker("2", pair[0])
    siblings.handle("shout", shout)
    await pair[1].close()
    assert await siblings.ask_all("shout", b"me") == [WorkerReply("2", b"ME")]


# --- a worker slot when no process can be started in it


START = Start("1", Settings(), {})


def make_slot(command: Sequence[str]) -> WorkerSlot:
    return WorkerSlot(START, command, {}, ended=lambda child: None, others_serve=lambda: False, restart=Fixed(1))


async def test_a_missing_interpreter_is_logged_and_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    interpreter = tmp_path / "python"
    slot = make_slot([str(interpreter)])
    kept = asyncio.create_task(slot.keep())
    async with asyncio.timeout(60):
        await until(lambda: sum(record.message == "worker_not_started" for record in caplog.records) >= 2)
        interpreter.write_text("#!/bin/sh\nexec sleep 600\n")
        interpreter.chmod(0o755)
        await until(lambda: any(slot.pids))
        abort = asyncio.Event()
        abort.set()
        child = slot.child
        assert child is not None
        child.kill()
        await slot.leave(abort)
        await kept


async def test_new_settings_whose_worker_cannot_be_started_are_refused() -> None:
    slot = make_slot(["/nowhere/python"])
    slot.child = before = WorkerProcess(START)
    with pytest.raises(InvalidSettings, match="cannot start a worker"):
        await slot.replace(START, abort=asyncio.Event())
    assert slot.child is before

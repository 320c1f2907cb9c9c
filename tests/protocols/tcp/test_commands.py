"""Points 1 to 4 of what must match exactly, over a real socket."""

import asyncio
import contextlib
from typing import Any

import pytest

from duetime.model.job import State
from duetime.model.names import Queue
from duetime.model.topic import Status
from duetime.protocols.tcp import CommandRules
from duetime.stores.group.layout import home
from duetime.stores.memory.store import MemoryStore
from tests.faults.store_faults import FaultyStore
from tests.protocols.tcp.conftest import PLACE, Site, Talk, packed

DONE = {"code": 1, "msg": "succ", "data": []}
FAILED = {"code": 0, "msg": "fail", "data": []}


async def add(talk: Talk, job_id: Any = "1001", **fields: Any) -> dict[str, Any]:
    return await talk.call(**{"cmd": "add", "topic": "order", "id": job_id, "body": {"a": 1}, **fields})


async def test_add_get_del(site: Site) -> None:
    async with site.serving(), site.talk() as talk:
        assert await add(talk) == DONE
        found = await talk.call(cmd="get", topic="order", id="1001")
        assert (found["code"], found["msg"]) == (1, "succ")
        assert found["data"].keys() == {"a", "notify_time", "dq_set_time"}
        assert await talk.call(cmd="del", topic="order", id="1001") == DONE
        assert await talk.call(cmd="del", topic="order", id="1001") == FAILED
        assert await talk.call(cmd="get", topic="order", id="1001") == FAILED


async def test_a_job_is_due_at_its_fix_time_else_after_the_topics_delay(site: Site) -> None:
    async with site.serving(), site.talk() as talk:
        await add(talk, "fixed", fix_time="2030-01-02 03:04:05")
        await add(talk, "relative")
        store = site.pools.engine("default").store
        fixed, relative = await store.get(PLACE.queue, ["fixed", "relative"])
        assert fixed is not None
        assert relative is not None
        assert fixed.due_at == 1_893_553_445_000
        assert relative.due_at == relative.born + 60_000
        body = (await talk.call(cmd="get", topic="order", id="fixed"))["data"]
        assert body["notify_time"] == "2030-01-02 03:04:05"


async def test_dq_set_time_is_set_the_first_time_only(site: Site) -> None:
    async with site.serving(), site.talk() as talk:
        await add(talk, body={"dq_set_time": "2020-01-01 00:00:00"})
        body = (await talk.call(cmd="get", topic="order", id="1001"))["data"]
        assert body["dq_set_time"] == "2020-01-01 00:00:00"


async def test_an_add_of_a_known_id_updates_it_and_succeeds_unless_it_must_fail_as_before(site: Site) -> None:
    async with site.serving(), site.talk() as talk:
        await add(talk)
        assert await add(talk, body={"b": 2}) == DONE
        assert "b" in (await talk.call(cmd="get", topic="order", id="1001"))["data"]
    async with site.serving(CommandRules("default", "shop", update_fails=True)), site.talk() as talk:
        assert await add(talk, body={"c": 3}) == FAILED
        assert "c" in (await talk.call(cmd="get", topic="order", id="1001"))["data"]
        assert await add(talk, "new") == DONE


async def test_unknown_and_offline_topics_take_nothing_and_still_answer(site: Site) -> None:
    async with site.serving(), site.talk() as talk:
        assert await add(talk, topic="nothing") == FAILED
        await add(talk)
        await site.topics.set_status(PLACE, Status.OFFLINE)
        assert await add(talk, "1002") == FAILED
        assert (await talk.call(cmd="get", topic="order", id="1001"))["code"] == 1
        assert await talk.call(cmd="del", topic="order", id="1001") == DONE


@pytest.mark.parametrize("members", [{name: FaultyStore(MemoryStore()) for name in ("a", "b")}], ids=["a group"])
async def test_adds_in_a_row_fail_only_for_the_member_that_is_down(site: Site, members: dict[str, FaultyStore]) -> None:
    ids = [f"{number}" for number in range(20)]
    async with site.serving(), site.talk() as talk:
        members["b"].down("push")
        await talk.send(b"".join(packed({"cmd": "add", "topic": "order", "id": one, "body": {}}) for one in ids))
        answers = [await talk.receive() for _ in ids]
    expected = [DONE if home(PLACE.queue, one, ("a", "b")) == "a" else FAILED for one in ids]
    assert DONE in expected
    assert FAILED in expected
    assert answers == expected


async def test_ids_may_have_colons_and_be_numbers(site: Site) -> None:
    async with site.serving(), site.talk() as talk:
        assert await add(talk, "a:b:c") == DONE
        assert await add(talk, 42) == DONE
        assert (await talk.call(cmd="get", topic="order", id="42"))["code"] == 1
        assert await talk.call(cmd="del", topic="order", id="a:b:c") == DONE


async def test_a_body_may_be_text_that_holds_an_object_as_java_sends_it(site: Site) -> None:
    async with site.serving(), site.talk() as talk:
        assert await add(talk, body='{"from": "java"}') == DONE
        assert (await talk.call(cmd="get", topic="order", id="1001"))["data"]["from"] == "java"
        assert await add(talk, "php", body=[]) == DONE
        for wrong in ("text", "[1]", 7, None, [1], True):
            assert await add(talk, "wrong", body=wrong) == FAILED


async def test_an_unknown_command_has_no_reply(site: Site) -> None:
    async with site.serving(), site.talk() as talk:
        await talk.send(packed({"cmd": "update", "topic": "order", "id": "1"}))
        await talk.send(packed({"no": "command"}))
        assert await add(talk) == DONE


@pytest.mark.parametrize("junk", [b"abcd{}", b"0002{]", b"0000", b"0003[1]", b"GET / HTTP/1.1\r\n\r\n"])
async def test_bad_frames_close_the_connection_after_the_replies_before_them(site: Site, junk: bytes) -> None:
    async with site.serving(), site.talk() as talk:
        await talk.send(packed({"cmd": "add", "topic": "order", "id": "1", "body": {}}) + junk)
        assert await talk.receive() == DONE
        assert await talk.is_closed()
        async with site.talk() as next_talk:
            assert await add(next_talk) == DONE


async def test_commands_come_in_pieces_and_in_rows(site: Site) -> None:
    async with site.serving(), site.talk() as talk:
        stream = b"".join(
            packed({"cmd": "add", "topic": "order", "id": str(number), "body": {"n": number}}) for number in range(20)
        )
        for at in range(0, 100, 7):
            await talk.send(stream[at : at + 7])
            await asyncio.sleep(0)
        await talk.send(stream[105:])
        assert [await talk.receive() for _ in range(20)] == [DONE] * 20


async def test_requests_in_a_row_are_answered_in_their_order(site: Site) -> None:
    def request(cmd: str, job_id: Any, **fields: Any) -> bytes:
        return packed({"cmd": cmd, "topic": "order", "id": job_id, **fields})

    row: list[tuple[bytes, object]] = [
        (request("add", "a", body={"n": 1}), DONE),
        (request("add", "", body={}), FAILED),
        (request("add", 1, body={"n": 2}), DONE),
        (request("add", "1", body={"n": 3}), DONE),
        (packed({"cmd": "add", "topic": "nothing", "id": "b", "body": {}}), FAILED),
        (request("add", "c", body=7), FAILED),
        (request("del", "a"), DONE),
        (request("add", "a", body={"n": 4}, fix_time="2030-01-02 03:04:05"), DONE),
        *((request("add", f"many-{n}", body={}), DONE) for n in range(250)),
        (request("del", "c"), FAILED),
    ]
    async with site.serving(), site.talk() as talk:
        await talk.send(b"".join(sent for sent, _ in row))
        for _, expected in row:
            assert await talk.receive() == expected
    engine = site.pools.engine("default")
    a, one = await engine.store.get(PLACE.queue, ["a", "1"])
    assert a is not None
    assert one is not None
    assert a.due_at == 1_893_553_445_000
    assert b'"n":3' in one.body
    [counts] = await engine.store.counts([PLACE.queue])
    assert counts.delayed == 252


async def test_replaced_jobs_in_a_row_fail_each_if_they_must(site: Site) -> None:
    adds = [packed({"cmd": "add", "topic": "order", "id": job_id, "body": {}}) for job_id in ("a", "b", "c")]
    async with site.serving(CommandRules("default", "shop", update_fails=True)), site.talk() as talk:
        assert await add(talk, "b") == DONE
        await talk.send(b"".join(adds))
        assert [await talk.receive() for _ in adds] == [DONE, FAILED, DONE]


async def test_a_body_that_does_not_fit_into_a_frame_fails(site: Site) -> None:
    async with site.serving(), site.talk() as talk:
        big = {"text": "x" * 9900}
        assert await add(talk, body=big) == DONE  # with what is added it is longer than a frame
        assert await talk.call(cmd="get", topic="order", id="1001") == FAILED
        assert await talk.call(cmd="del", topic="order", id="1001") == DONE


async def test_a_token_may_be_asked_for(site: Site) -> None:
    async with site.serving(CommandRules("default", "shop", token="secret")), site.talk() as talk:
        assert await add(talk) == FAILED
        assert await add(talk, token="wrong") == FAILED
        assert await add(talk, token="secret") == DONE


async def test_connections_beyond_the_limit_are_refused_and_idle_ones_closed(site: Site) -> None:
    async with site.serving(connections=2), site.talk() as one, site.talk() as two:
        assert await add(one, "1") == DONE
        assert await add(two, "2") == DONE
        async with site.talk() as three:
            assert await three.is_closed()
        assert await add(one, "3") == DONE
    async with site.serving(idle_s=0.05), site.talk() as talk:
        assert await add(talk) == DONE
        assert await talk.is_closed()


async def test_many_connections_at_once(site: Site, scale: int) -> None:
    async def client(number: int) -> None:
        async with site.talk() as talk:
            for turn in range(3):
                assert await add(talk, f"{number}-{turn}") == DONE

    number = 200 * scale
    async with site.serving():
        await asyncio.gather(*(client(one) for one in range(min(number, 2000))))
    [counts] = await site.pools.engine("default").store.counts([Queue("shop", "order")])
    assert counts.delayed == 3 * min(number, 2000)


async def test_a_drain_answers_what_has_arrived_and_closes_who_is_idle(site: Site) -> None:
    async with site.serving() as server, site.talk() as busy, site.talk() as idle:
        assert await add(idle, "idle") == DONE
        await busy.send(packed({"cmd": "add", "topic": "order", "id": "busy", "body": {}}))
        assert await busy.receive() == DONE
        await server.stop(5)
        assert await idle.is_closed()
        assert await busy.is_closed()
        with pytest.raises(OSError):  # noqa: PT011
            await asyncio.open_connection("127.0.0.1", site.port)
    page = await site.pools.engine("default").store.list_jobs(PLACE.queue, State.DELAYED)
    assert {job.id for job in page.jobs} == {"idle", "busy"}


async def test_a_client_that_never_reads_is_closed(site: Site) -> None:
    async with site.serving(idle_s=0.3) as server, site.talk() as talk:
        assert await add(talk, body={"text": "x" * 9000}) == DONE
        talk.writer.transport.pause_reading()
        many = packed({"cmd": "get", "topic": "order", "id": "1001"}) * 50
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(60):
                while server._talks:
                    await talk.send(many)
                    await asyncio.sleep(0)
        assert not server._talks

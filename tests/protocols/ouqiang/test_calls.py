"""Points 12 to 14 of what must match exactly, and what the original cannot do."""

import asyncio

import httpx
import pytest

from duetime.model.names import Queue
from duetime.protocols.ouqiang import OuqiangApp
from tests.plugins.until import until
from tests.protocols.ouqiang.conftest import NAMESPACE, Caller
from tests.protocols.v1.server import listen

ORDER = Queue(NAMESPACE, "order")


async def test_a_job_from_push_to_finish(caller: Caller) -> None:
    assert (await caller.push("15702398321"))["code"] == 0
    caller.clock.advance("10s")
    popped = await caller.call("/pop", topic="order")
    assert popped["code"] == 0
    assert popped["data"] == {"id": "15702398321", "body": "body of 15702398321"}
    assert (await caller.call("/finish", id="15702398321")) == {"code": 0, "message": "done", "data": None}
    assert (await caller.call("/get", id="15702398321"))["data"] is None


async def test_get_tells_the_absolute_second(caller: Caller) -> None:
    await caller.push("7", delay=3600, ttr=120)
    found = await caller.call("/get", id="7")
    due = caller.clock.now_ms() // 1000 + 3600
    assert found["data"] == {"topic": "order", "id": "7", "delay": due, "ttr": 120, "body": "body of 7"}


async def test_a_job_comes_again_after_its_own_ttr_until_it_is_finished(caller: Caller) -> None:
    await caller.push("7", ttr=90)
    caller.clock.advance("10s")
    for attempt in range(1, 4):
        assert (await caller.call("/pop", topic="order"))["data"]["id"] == "7"
        [job] = await caller.engine.store.get(ORDER, ["7"])
        assert job is not None
        assert (job.attempt, job.lease_until) == (attempt, caller.clock.now_ms() + 90_000)
        caller.clock.advance("90001ms")
    await caller.call("/delete", id="7")
    [counts] = await caller.engine.store.counts([ORDER])
    assert counts.total == 0


async def test_tries_may_have_a_limit_and_end_in_the_dead_letters(caller: Caller) -> None:
    app = OuqiangApp(lambda: caller.engine, NAMESPACE, tries=2, max_body=1000)
    async with listen(app) as at, httpx.AsyncClient(base_url=at.url, timeout=30) as http:
        await http.post("/push", json={"topic": "order", "id": "7", "delay": 1, "ttr": 90, "body": "x"})
        caller.clock.advance("1s")
        for _ in range(2):
            assert (await http.post("/pop", json={"topic": "order"})).json()["data"]["id"] == "7"
            caller.clock.advance("90001ms")

        async def is_dead() -> bool:
            [counts] = await caller.engine.store.counts([ORDER])
            return counts.dead == 1

        await until(is_dead)
        assert (await http.post("/finish", json={"id": "7"})).json()["code"] == 0


async def test_topics_of_a_pop_are_taken_in_their_order(caller: Caller) -> None:
    await caller.push("low", "b")
    await caller.push("high", "a", delay=11)
    caller.clock.advance("11s")
    assert (await caller.call("/pop", topic="a, b"))["data"]["id"] == "high"
    assert (await caller.call("/pop", topic="a, b"))["data"]["id"] == "low"


async def test_a_pop_waits_for_a_job(caller: Caller) -> None:
    waiting = asyncio.create_task(caller.call("/pop", topic="order"))
    await caller.push("later", delay=1)
    caller.clock.advance("1s")
    assert (await waiting)["data"]["id"] == "later"


async def test_a_push_replaces_a_job_of_its_id_also_under_another_topic(caller: Caller) -> None:
    await caller.push("7", "order")
    await caller.push("7", "order", body="second", delay=20)
    assert (await caller.call("/get", id="7"))["data"]["body"] == "second"
    await caller.push("7", "mail", body="third")
    assert (await caller.call("/get", id="7"))["data"]["topic"] == "mail"
    [order, mail] = await caller.engine.store.counts([ORDER, Queue(NAMESPACE, "mail")])
    assert (order.total, mail.total) == (0, 1)


async def test_finish_and_delete_succeed_for_ids_that_nobody_knows(caller: Caller) -> None:
    await caller.push("1")
    for path in ("/finish", "/delete"):
        assert (await caller.call(path, id="unknown"))["code"] == 0
    assert (await caller.call("/get", id="unknown")) == {"code": 0, "message": "found", "data": None}


async def test_another_process_finds_what_this_one_has_not_seen(caller: Caller) -> None:
    await caller.push("1", "order")
    await caller.push("2", "mail")
    other = OuqiangApp(lambda: caller.engine, NAMESPACE, max_body=1000)
    async with listen(other) as at, httpx.AsyncClient(base_url=at.url) as http:
        assert (await http.post("/get", json={"id": "2"})).json()["data"]["topic"] == "mail"
        assert (await http.post("/finish", json={"id": "1"})).json()["code"] == 0
    assert (await caller.call("/get", id="1"))["data"] is None


async def test_id_topic_and_body_are_trimmed(caller: Caller) -> None:
    await caller.push("  7\n", " order ", body="  text\t")
    assert (await caller.call("/get", id=" 7 "))["data"]["body"] == "text"


@pytest.mark.parametrize(
    "wrong",
    [
        {"job_id": ""},
        {"job_id": "   "},
        {"topic": ""},
        {"delay": 0},
        {"delay": -1},
        {"delay": 2**31 + 1},
        {"ttr": 0},
        {"ttr": 86_401},
        {"delay": "10"},
        {"topic": "no such/name"},
        {"job_id": "x" * 129},
        {"body": 7},
    ],
)
async def test_what_is_out_of_range_is_refused_with_code_1(caller: Caller, wrong: dict[str, object]) -> None:
    answer = await caller.push(**wrong)  # type: ignore[arg-type]
    assert answer["code"] == 1
    assert answer["message"]
    assert await caller.engine.store.queues() == []


async def test_the_ends_of_the_ranges_are_allowed(caller: Caller) -> None:
    assert (await caller.push("1", delay=2**31, ttr=86_400))["code"] == 0
    assert (await caller.push("2", delay=1, ttr=1))["code"] == 0


async def test_any_method_is_accepted_and_garbage_is_code_1(caller: Caller) -> None:
    await caller.push("1")
    for method in ("GET", "PUT", "DELETE"):
        reply = await caller.http.request(method, "/get", content=b'{"id":"1"}')
        assert (reply.status_code, reply.json()["data"]["id"]) == (200, "1")
    for garbage in (b"", b"{", b"[]", b"null", b"\xff"):
        reply = await caller.http.post("/push", content=garbage)
        assert (reply.status_code, reply.json()["code"]) == (200, 1)
    assert (await caller.http.post("/nothing")).status_code == 404


async def test_a_client_that_goes_away_takes_no_job_with_it(caller: Caller) -> None:
    waiting = asyncio.create_task(caller.call("/pop", topic="order"))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await caller.push("1", delay=1)
    caller.clock.advance("1s")
    assert (await caller.call("/pop", topic="order"))["data"]["id"] == "1"
    [job] = await caller.engine.store.get(ORDER, ["1"])
    assert job is not None
    assert job.used == 1


async def test_a_token_may_be_asked_for(caller: Caller) -> None:
    app = OuqiangApp(lambda: caller.engine, NAMESPACE, token="secret", max_body=1000)
    async with listen(app) as at, httpx.AsyncClient(base_url=at.url) as http:
        assert (await http.post("/get", json={"id": "1"})).json()["code"] == 1
        assert (await http.post("/get?token=wrong", json={"id": "1"})).json()["code"] == 1
        assert (await http.post("/get?token=secret", json={"id": "1"})).json()["code"] == 0
        bearer = {"Authorization": "Bearer secret"}
        assert (await http.post("/get", json={"id": "1"}, headers=bearer)).json()["code"] == 0


async def test_a_server_that_drains_ends_pops_without_a_job(caller: Caller) -> None:
    app = OuqiangApp(lambda: caller.engine, NAMESPACE, max_body=1000)
    async with listen(app) as at, httpx.AsyncClient(base_url=at.url, timeout=30) as http:
        waiting = asyncio.create_task(http.post("/pop", json={"topic": "order"}))
        await until(lambda: at.connections() == 1)
        await asyncio.sleep(0.05)
        await at.stop()
        assert (await waiting).json()["data"] is None

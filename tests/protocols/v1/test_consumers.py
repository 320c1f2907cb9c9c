"""Reserve, and one verb per outcome."""

import asyncio

import httpx
import pytest

from duetime.engine import Engine
from duetime.model.clock import ManualClock
from duetime.model.job import NewJob
from duetime.model.names import Queue
from tests.plugins.until import until
from tests.protocols.v1.server import Served
from tests.protocols.v1.vocabulary import MAIL, NOW, lease, ok, post, problem, push, reserve, someone_waits


async def test_reserve_hands_over_what_is_ready(http: httpx.AsyncClient) -> None:
    await push(http, "a", attributes={"k": "v"}, ttl="1h")
    await push(http, "later", delay=5)

    assert await reserve(http, 10, ttr="2m") == [
        {
            "queue": "mail",
            "lease": {"id": "a", "born": NOW, "attempt": 1},
            "due_at": NOW,
            "lease_until": NOW + 120_000,
            "priority": "normal",
            "tries": 5,
            "used": 1,
            "body": "hello",
            "expires_at": NOW + 3_600_000,
            "attributes": {"k": "v"},
        }
    ]
    assert await reserve(http) == []


async def test_reserve_needs_no_body(http: httpx.AsyncClient) -> None:
    await push(http, "a")

    [delivery] = (await ok(await http.post(f"{MAIL}/reserve")))["deliveries"]

    assert delivery["lease_until"] == NOW + 60_000


async def test_reserve_takes_several_queues_in_the_given_order(http: httpx.AsyncClient) -> None:
    for name in ("mail", "sms", "fax"):
        await push(http, name, queue=f"/v1/queues/shop/{name}")

    answer = await ok(
        await http.post("/v1/namespaces/shop/reserve", json={"queues": ["sms", "mail", "sms"], "limit": 3})
    )

    assert [delivery["queue"] for delivery in answer["deliveries"]] == ["sms", "mail"]


async def test_a_waiting_reserve_gets_a_job_that_comes_later(http: httpx.AsyncClient, engine: Engine) -> None:
    waiting = asyncio.create_task(reserve(http, wait="30s"))
    await someone_waits(engine)

    await push(http, "a")

    [delivery] = await waiting
    assert delivery["lease"]["id"] == "a"


async def test_a_wait_that_is_over_answers_an_empty_list(http: httpx.AsyncClient) -> None:
    assert await reserve(http, wait="10ms") == []


async def test_a_request_does_not_wait_for_ever(http: httpx.AsyncClient) -> None:
    assert problem(await http.post(f"{MAIL}/reserve", json={"wait": "2h"}), 400, "invalid_time")


async def test_ack_says_what_happened_to_each(http: httpx.AsyncClient, clock: ManualClock) -> None:
    first = await lease(http, "a")
    second = await lease(http, "b")
    await post(http, "release", {"lease": second})

    answer = await post(http, "ack", {"leases": [first, second, {"id": "gone", "born": 1, "attempt": 1}]})

    acked, lost, gone = answer["results"]
    assert acked["moved"]["event"] == "acked"
    assert lost["error"]["code"] == "lease_lost"
    assert lost["error"]["fields"] == {"id": "b"}
    assert gone == {}


async def test_a_released_job_comes_again_with_its_error(http: httpx.AsyncClient, clock: ManualClock) -> None:
    held = await lease(http)

    answer = await post(http, "release", {"lease": held, "delay": "10s", "error": "no luck"})

    assert answer == {"moved": {"event": "released", "id": "a", "born": NOW, "attempt": 1, "due_at": NOW + 10_000}}
    clock.advance("10s")
    [again] = await reserve(http)
    assert (again["lease"]["attempt"], again["used"], again["error"]) == (2, 2, "no luck")


async def test_a_job_out_of_tries_is_dead(http: httpx.AsyncClient) -> None:
    held = await lease(http, tries=1)

    answer = await post(http, "release", {"lease": held})

    assert answer == {"moved": {"event": "dead", "id": "a", "born": NOW, "attempt": 1, "reason": "tries"}}


async def test_a_job_given_back_was_not_tried(http: httpx.AsyncClient) -> None:
    held = await lease(http)

    answer = await post(http, "give_back", {"lease": held})

    assert answer["results"][0]["moved"]["event"] == "given_back"
    [again] = await reserve(http)
    assert (again["lease"]["attempt"], again["used"]) == (2, 1)
    answer = await post(http, "give_back", {"leases": [held, again["lease"]], "delay": "5s"})
    [lost, moved] = answer["results"]
    assert (lost["error"]["code"], moved["moved"]["due_at"]) == ("lease_lost", NOW + 5000)


async def test_an_extended_lease_ends_later(http: httpx.AsyncClient, clock: ManualClock) -> None:
    held = await lease(http)
    clock.advance("30s")

    assert await post(http, "extend", {"lease": held}) == {"lease_until": NOW + 90_000}
    assert await post(http, "extend", {"lease": held, "ttr": "5m"}) == {"lease_until": NOW + 330_000}


async def test_one_lease_is_acked_as_it_is_released(http: httpx.AsyncClient, clock: ManualClock) -> None:
    held = await lease(http, "a")

    [acked] = (await post(http, "ack", {"lease": held}))["results"]
    [gone] = (await post(http, "ack", {"lease": held}))["results"]

    assert (acked["moved"]["event"], gone) == ("acked", {})
    lost = await lease(http, "b")
    await post(http, "release", {"lease": lost})
    assert problem(await http.post(f"{MAIL}/ack", json={"lease": lost}), 409, "lease_lost")
    for both_or_none in ({}, {"lease": lost, "leases": [lost]}):
        assert problem(await http.post(f"{MAIL}/ack", json=both_or_none), 400, "invalid_request")


@pytest.mark.parametrize("verb", ["release", "give_back", "kill", "extend"])
async def test_a_lost_lease_is_refused(http: httpx.AsyncClient, verb: str) -> None:
    held = await lease(http)
    await post(http, "ack", {"leases": [held]})

    reply = await http.post(f"{MAIL}/{verb}", json={"lease": held})

    assert problem(reply, 409, "lease_lost")["fields"] == {"id": "a"}


async def test_a_draining_server_ends_a_wait_with_an_empty_answer(
    served: Served, http: httpx.AsyncClient, engine: Engine
) -> None:
    waiting = asyncio.create_task(reserve(http, wait="30s"))
    await someone_waits(engine)

    await served.stop()

    assert await waiting == []


async def test_a_body_at_the_limit_of_a_job_fits_into_a_reserve(http: httpx.AsyncClient, engine: Engine) -> None:
    body = "\u0001" * 1_048_576
    await ok(await http.post(f"{MAIL}/jobs", json={"id": "a", "body": body}), 201)
    await engine.push(Queue("shop", "mail"), [NewJob("b", b"\xff" * 1_048_576)])

    first, second = await reserve(http, 10)

    assert first["body"] == body
    assert len(second["body_b64"]) == 1_398_104


async def test_finish_pushes_what_follows_and_keeps_the_result(http: httpx.AsyncClient) -> None:
    held = await lease(http, "a")
    finish = {"lease": held, "then": [{"id": "b", "body": {"x": 1}}], "result": {"sum": 42}, "result_ttl": "1h"}

    [done, gone] = (await ok(await http.post(f"{MAIL}/finish", json={"finishes": [finish, finish]})))["results"]

    assert (done["moved"]["event"], [moved["id"] for moved in done["then"]], gone) == ("acked", ["b"], {})
    [delivery] = await reserve(http)
    assert delivery["body"] == {"x": 1}
    answer = await ok(await http.post(f"{MAIL}/results", json={"ids": ["a", "b"]}))
    [kept, missing] = answer["results"]
    assert (kept["result"], kept["born"], missing) == ({"sum": 42}, held["born"], None)


async def test_a_result_that_is_not_text_comes_back_in_base64(http: httpx.AsyncClient) -> None:
    finish = {"lease": await lease(http, "a"), "result_b64": "/w==", "result_ttl": 60}
    await ok(await http.post(f"{MAIL}/finish", json={"finishes": [finish]}))
    [kept] = (await ok(await http.post(f"{MAIL}/results", json={"ids": ["a"]})))["results"]
    assert kept["result_b64"] == "/w=="


async def test_a_request_waits_for_a_result(http: httpx.AsyncClient, engine: Engine) -> None:
    held = await lease(http, "a")
    waiting = asyncio.create_task(http.post(f"{MAIL}/results", json={"ids": ["a"], "wait": "30s"}))
    await until(lambda: bool(engine._results._waiting))
    await ok(await http.post(f"{MAIL}/finish", json={"finishes": [{"lease": held, "result": "x", "result_ttl": 9}]}))
    [kept] = (await ok(await waiting))["results"]
    assert kept["result"] == "x"


async def test_a_draining_server_ends_a_wait_for_results(
    served: Served, http: httpx.AsyncClient, engine: Engine
) -> None:
    waiting = asyncio.create_task(http.post(f"{MAIL}/results", json={"ids": ["a", "b"], "wait": "30s"}))
    await until(lambda: bool(engine._results._waiting))
    await served.stop()
    assert (await ok(await waiting))["results"] == [None, None]


async def test_what_a_finish_is_refused_for(http: httpx.AsyncClient) -> None:
    held = await lease(http, "a")
    for fields, status, code in (
        ({"result": "x" * 262_145, "result_ttl": 1}, 413, "body_too_large"),
        ({"result": "x", "result_ttl": "32d"}, 400, "invalid_time"),
        ({"result": "x", "result_b64": "eA=="}, 400, "invalid_request"),
        ({"result_b64": "?"}, 400, "invalid_request"),
        ({"then": [{"id": "b\n"}]}, 400, "invalid_id"),
        ({"then": [{"id": "b"}, {"id": "b"}]}, 400, "invalid_request"),
        ({"then": [{}] * 500}, 400, "invalid_request"),
    ):
        problem(await http.post(f"{MAIL}/finish", json={"finishes": [{"lease": held, **fields}]}), status, code)
    problem(await http.post(f"{MAIL}/results", json={"ids": [str(n) for n in range(17)]}), 400, "invalid_request")
    problem(await http.post(f"{MAIL}/results", json={"ids": ["a"], "wait": "2h"}), 400, "invalid_time")

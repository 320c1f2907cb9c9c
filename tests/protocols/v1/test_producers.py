"""Push, batches, Idempotency-Key, cancel and reschedule."""

import base64
import json
from typing import Any

import httpx
import pytest

from duetime.model.clock import ManualClock
from duetime.stores.base import RulesChange, Store
from tests.contract.vocabulary import ODD_IDS, QUEUE
from tests.protocols.v1.vocabulary import MAIL, NOW, lease, ok, post, problem, push, reserve


async def get(http: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    [job] = (await post(http, "get", {"ids": [job_id]}))["jobs"]
    assert job is not None
    return dict(job)


# --- push


async def test_a_pushed_job_is_there_as_it_was_sent(http: httpx.AsyncClient) -> None:
    sent = {
        "id": "a",
        "body": "hi",
        "delay": "1m",
        "ttl": "1h",
        "tries": 3,
        "priority": "high",
        "attributes": {"k": "v"},
    }

    reply = await http.post(f"{MAIL}/jobs", json=sent)

    assert await ok(reply, 201) == {"moved": {"event": "accepted", "id": "a", "born": NOW, "due_at": NOW + 60_000}}
    assert await get(http, "a") == {
        "namespace": "shop",
        "queue": "mail",
        "id": "a",
        "born": NOW,
        "state": "delayed",
        "due_at": NOW + 60_000,
        "priority": "high",
        "tries": 3,
        "body": "hi",
        "expires_at": NOW + 3_600_000,
        "attributes": {"k": "v"},
    }


async def test_a_job_without_an_id_gets_one(http: httpx.AsyncClient) -> None:
    answer = await ok(await http.post(f"{MAIL}/jobs", json={"body": "hi"}), 201)

    assert len(answer["moved"]["id"]) == 26


@pytest.mark.parametrize(
    ("field", "kept"),
    [
        ('"body": "text"', b"text"),
        ('"body": "t\\u00e9xt \\ud83d\\ude00"', "téxt 😀".encode()),
        ('"body": {"to" : "ann",  "n": 1.50}', b'{"to" : "ann",  "n": 1.50}'),
        ('"body": [1, 2]', b"[1, 2]"),
        ('"body": []', b"[]"),
        ('"body_b64": "/wA="', b"\xff\x00"),
        ('"id": "no body"', b""),
    ],
)
async def test_a_body_is_text_or_json_as_sent_or_base64(
    http: httpx.AsyncClient, store: Store, field: str, kept: bytes
) -> None:
    answer = await ok(await http.post(f"{MAIL}/jobs", content=f"{{{field}}}"), 201)

    [job] = await store.get(QUEUE, [answer["moved"]["id"]])
    assert job is not None
    assert job.body == kept


@pytest.mark.parametrize("value", ["12", "-1.5e3", "true", "false", "null"])
async def test_a_bare_value_is_no_body(http: httpx.AsyncClient, value: str) -> None:
    detail = problem(await http.post(f"{MAIL}/jobs", content=f'{{"body": {value}}}'), 400, "invalid_request")["detail"]

    assert detail == f'body must be text, an object or an array, got {value}; as text it is "{value}"'


@pytest.mark.parametrize(
    "body",
    [
        {"to": "ann", "n": 1.5, "deep": [{"é": None}, True]},
        [],
        {},
        [1, [2, "]"]],
        "text",
        "",
        "12",
        "null",
        '"quoted"',
        "{not json}",
        '{"a": 1} ',
        '{"half": "\\ud800"}',
        "[" * 61 + "]" * 61,
        "[" * 100_000 + "]" * 100_000,
        "[" * 60,
    ],
)
async def test_json_comes_back_as_json_and_text_as_text(http: httpx.AsyncClient, body: Any) -> None:
    await ok(await http.post(f"{MAIL}/jobs", json={"id": "a", "body": body}), 201)

    assert (await get(http, "a"))["body"] == body
    [delivery] = await reserve(http)
    assert delivery["body"] == body
    assert "body_b64" not in delivery


async def test_text_that_is_an_object_or_an_array_comes_back_as_json(http: httpx.AsyncClient) -> None:
    text = '{"to" : "ann", "brackets": "' + "[" * 200 + '"}'
    await ok(await http.post(f"{MAIL}/jobs", json={"id": "a", "body": text}), 201)

    reply = await http.get(f"{MAIL}/jobs/a")

    assert reply.json()["body"] == json.loads(text)
    assert text in reply.text  # byte for byte
    deepest = "[" * 60 + "]" * 60
    await ok(await http.post(f"{MAIL}/jobs", json={"id": "b", "body": deepest}), 201)
    assert (await get(http, "b"))["body"] == json.loads(deepest)


async def test_a_body_that_is_not_text_comes_back_in_base64(http: httpx.AsyncClient) -> None:
    sent = base64.b64encode(bytes(range(256))).decode()
    await ok(await http.post(f"{MAIL}/jobs", json={"id": "a", "body_b64": sent}), 201)

    assert (await get(http, "a"))["body_b64"] == sent
    [delivery] = await reserve(http)
    assert delivery["body_b64"] == sent
    assert "body" not in delivery


async def test_push_keeps_replaces_or_refuses_what_is_there(http: httpx.AsyncClient, clock: ManualClock) -> None:
    await push(http, "a", body="first")
    clock.advance(1)

    kept = await ok(await http.post(f"{MAIL}/jobs", json={"id": "a", "body": "second"}), 200)
    assert kept["moved"] == {"event": "kept", "id": "a", "born": NOW, "due_at": NOW, "reason": "waiting"}

    refused = await http.post(f"{MAIL}/jobs", json={"id": "a", "if_exists": "error"})
    assert problem(refused, 409, "job_exists")["fields"] == {"id": "a"}

    replaced = await push(http, "a", body="third", if_exists="replace")
    assert replaced == {"event": "replaced", "id": "a", "born": NOW + 1000, "due_at": NOW + 1000, "was": NOW}
    assert (await get(http, "a"))["body"] == "third"


@pytest.mark.parametrize("job_id", ODD_IDS)
async def test_any_printable_id_goes_through_bodies_and_paths(http: httpx.AsyncClient, job_id: str) -> None:
    path = f"{MAIL}/jobs/" + "".join(f"%{byte:02X}" for byte in job_id.encode())
    await push(http, job_id)

    assert (await ok(await http.get(path)))["id"] == job_id
    assert (await ok(await http.patch(path, json={"delay": 5})))["moved"]["due_at"] == NOW + 5000
    assert (await ok(await http.delete(path)))["moved"]["event"] == "cancelled"


# --- batches


async def test_a_batch_is_all_or_nothing(http: httpx.AsyncClient, store: Store) -> None:
    await push(http, "b")
    jobs = [{"id": "a"}, {"id": "b"}, {"id": "c"}]

    refused = await http.post(f"{MAIL}/batch", json={"jobs": jobs, "if_exists": "error"})
    assert problem(refused, 409, "job_exists")["fields"] == {"id": "b"}
    assert await store.get(QUEUE, ["a", "c"]) == [None, None]

    answer = await ok(await http.post(f"{MAIL}/batch", json={"jobs": jobs}), 201)
    assert [result["moved"]["event"] for result in answer["results"]] == ["accepted", "kept", "accepted"]
    assert answer["now"] == NOW


async def test_a_batch_that_is_not_atomic_has_one_result_per_job(http: httpx.AsyncClient) -> None:
    jobs = [
        {"id": "a"},
        {"id": "a"},
        {"id": ""},
        {"id": "b", "delay": "soon"},
        {"id": "c", "delay": 5, "due_at": 0},
        {"id": "d", "delay": 10, "ttl": 5},
        {"id": "e"},
    ]

    answer = await ok(await http.post(f"{MAIL}/batch", json={"jobs": jobs, "atomic": False, "if_exists": "error"}), 201)

    told = [result["moved"]["event"] if "moved" in result else result["error"]["code"] for result in answer["results"]]
    assert told == [
        "accepted",
        "job_exists",
        "invalid_id",
        "invalid_time",
        "invalid_request",
        "expires_before_due",
        "accepted",
    ]


async def test_a_batch_takes_a_thousand_jobs_and_no_more(http: httpx.AsyncClient) -> None:
    jobs = [{"id": str(number)} for number in range(1001)]

    assert len((await ok(await http.post(f"{MAIL}/batch", json={"jobs": jobs[:1000]}), 201))["results"]) == 1000
    refused = await http.post(f"{MAIL}/batch", json={"jobs": jobs})
    assert problem(refused, 400, "invalid_request")["fields"] == {"path": "$.jobs"}
    assert problem(await http.post(f"{MAIL}/batch", json={"jobs": []}), 400, "invalid_request")


async def test_a_batch_with_a_mark_is_done_once(http: httpx.AsyncClient) -> None:
    message = {"jobs": [{"body": "a"}, {"body": "b"}], "mark": {"name": "load-1", "digest": "00ff", "life": "1h"}}
    first = await ok(await http.post(f"{MAIL}/batch", json=message), 201)

    again = await ok(await http.post(f"{MAIL}/batch", json=message), 201)
    assert again == {**first, "repeated": True}

    message["mark"] = {"name": "load-1", "digest": "00aa", "life": "1h"}
    assert problem(await http.post(f"{MAIL}/batch", json=message), 422, "mark_mismatch")


@pytest.mark.parametrize(
    "mark",
    [
        {"name": "x", "digest": "not hex", "life": 1},
        {"name": "a\u0000b", "digest": "", "life": 1},
        {"name": "x", "digest": "", "life": "long"},
        {"name": "", "digest": "", "life": 1},
        {"name": "x" * 256, "digest": "", "life": 1},
    ],
)
async def test_marks_that_are_none(http: httpx.AsyncClient, mark: dict[str, Any]) -> None:
    reply = await http.post(f"{MAIL}/batch", json={"jobs": [{"id": "a"}], "mark": mark})

    assert reply.status_code == 400
    assert reply.json()["code"] in ("invalid_request", "invalid_time")


# --- Idempotency-Key


async def test_a_key_makes_a_push_happen_once(http: httpx.AsyncClient, clock: ManualClock) -> None:
    async def push_once(content: str) -> httpx.Response:
        return await http.post(f"{MAIL}/jobs", content=content, headers={"Idempotency-Key": "order-7"})

    first = await push_once('{"body": [1]}')
    assert first.status_code == 201
    assert "idempotent-replayed" not in first.headers
    [delivery] = await reserve(http)
    await post(http, "ack", {"leases": [delivery["lease"]]})

    # The job is long gone, and still the same request makes no second one.
    clock.advance("23h")
    again = await push_once('{"body": [1]}')
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    assert await reserve(http) == []

    # Not even white space may differ: it is another request.
    assert problem(await push_once('{"body":[1]}'), 422, "mark_mismatch")

    clock.advance("1h1s")
    assert (await push_once('{"body": [1]}')).json() != first.json()


async def test_a_refused_push_leaves_its_key_free(http: httpx.AsyncClient, store: Store) -> None:
    await store.configure(QUEUE, RulesChange(max_body=3))
    headers = {"Idempotency-Key": "k"}

    assert problem(await http.post(f"{MAIL}/jobs", json={"body": "long"}, headers=headers), 413, "body_too_large")
    assert (await http.post(f"{MAIL}/jobs", json={"body": "ok"}, headers=headers)).status_code == 201


@pytest.mark.parametrize("atomic", [True, False])
async def test_a_key_makes_a_batch_happen_once(http: httpx.AsyncClient, store: Store, atomic: bool) -> None:
    async def push_once(bodies: list[str]) -> httpx.Response:
        message = {"jobs": [{"body": body} for body in bodies], "atomic": atomic}
        return await http.post(f"{MAIL}/batch", json=message, headers={"Idempotency-Key": "k"})

    first = await ok(await push_once(["a", "b", "c"]), 201)
    deliveries = await reserve(http, 10)
    assert [delivery["body"] for delivery in deliveries] == ["a", "b", "c"]
    await post(http, "ack", {"leases": [delivery["lease"] for delivery in deliveries]})

    reply = await push_once(["a", "b", "c"])
    assert await ok(reply, 201) == {**first, "repeated": True}
    assert reply.headers["idempotent-replayed"] == "true"
    assert problem(await push_once(["a", "b"]), 422, "mark_mismatch")
    assert (await store.counts([QUEUE]))[0].total == 0


async def test_a_keyed_batch_tries_again_only_what_was_refused(http: httpx.AsyncClient, store: Store) -> None:
    # The first job is refused, so that the second one is the first to be marked.
    await store.configure(QUEUE, RulesChange(max_body=3))

    async def push_once(last: str = "d") -> httpx.Response:
        message = {"jobs": [{"body": body} for body in ("too long", "b", "too long", last)], "atomic": False}
        return await http.post(f"{MAIL}/batch", json=message, headers={"Idempotency-Key": "k"})

    first = await ok(await push_once(), 201)
    assert ["moved" in result for result in first["results"]] == [False, True, False, True]
    assert len(await reserve(http, 10)) == 2

    assert problem(await push_once("e"), 422, "mark_mismatch")
    assert await reserve(http, 10) == []

    await store.configure(QUEUE, RulesChange(max_body=0))
    again = await ok(await push_once(), 201)
    assert again["results"][1::2] == first["results"][1::2]
    assert "repeated" not in again
    assert [delivery["body"] for delivery in await reserve(http, 10)] == ["too long", "too long"]


@pytest.mark.parametrize("key", ["", "x" * 201, "caf\u00e9"])
async def test_keys_that_are_none(http: httpx.AsyncClient, key: str) -> None:
    headers = {"Idempotency-Key": key.encode("latin-1")}

    assert problem(await http.post(f"{MAIL}/jobs", json={}, headers=headers), 400, "invalid_request")


async def test_a_key_and_a_mark_are_one_too_many(http: httpx.AsyncClient) -> None:
    message = {"jobs": [{}], "mark": {"name": "m", "digest": "", "life": 1}}

    reply = await http.post(f"{MAIL}/batch", json=message, headers={"Idempotency-Key": "k"})

    assert problem(reply, 400, "invalid_request")


async def test_the_mark_of_single_results_leaves_room_for_numbers(http: httpx.AsyncClient) -> None:
    message = {"jobs": [{}], "atomic": False, "mark": {"name": "m" * 251, "digest": "", "life": 1}}

    assert problem(await http.post(f"{MAIL}/batch", json=message), 400, "invalid_request")


async def test_a_mark_of_a_whole_batch_does_not_fit_single_results(http: httpx.AsyncClient) -> None:
    message = {"jobs": [{}, {}], "mark": {"name": "m", "digest": "", "life": 1}}
    await ok(await http.post(f"{MAIL}/batch", json=message), 201)

    reply = await http.post(f"{MAIL}/batch", json={**message, "atomic": False})

    assert problem(reply, 422, "mark_mismatch")


# --- cancel and reschedule


async def test_cancel_says_what_happened_to_each(http: httpx.AsyncClient) -> None:
    held = await lease(http, "leased")
    killed = await lease(http, "dead")
    await post(http, "kill", {"lease": killed})
    await push(http, "waiting")

    answer = await post(http, "cancel", {"ids": ["waiting", "leased", "dead", "absent"]})

    assert answer["results"] == [
        {"moved": {"event": "cancelled", "id": "waiting", "born": NOW}},
        {"moved": {"event": "cancelled", "id": "leased", "born": NOW, "attempt": 1, "reason": "running"}},
        {"moved": {"event": "deleted", "id": "dead", "born": NOW, "attempt": 1}},
        {},
    ]
    assert (await post(http, "ack", {"leases": [held]}))["results"] == [{}]


async def test_reschedule_says_what_happened_to_each(http: httpx.AsyncClient) -> None:
    await lease(http, "leased")
    await push(http, "waiting")
    await push(http, "mortal", ttl=30)

    answer = await post(http, "reschedule", {"ids": ["waiting", "leased", "mortal", "absent"], "delay": "1m"})

    moved, running, expiring, absent = answer["results"]
    assert moved["moved"]["event"] == "rescheduled"
    assert moved["moved"]["due_at"] == NOW + 60_000
    assert running["error"]["code"] == "job_running"
    assert expiring["error"]["code"] == "expires_before_due"
    assert absent == {}


async def test_one_job_is_rescheduled_by_its_address(http: httpx.AsyncClient) -> None:
    await push(http, "a")

    answer = await ok(await http.patch(f"{MAIL}/jobs/a", json={"due_at": "2030-01-01T00:00:00Z"}))

    assert answer["moved"]["due_at"] == 1_893_456_000_000


@pytest.mark.parametrize("due_at", [1_795_236_220, "1795236220"])
async def test_a_due_time_in_seconds_is_refused_with_the_milliseconds(
    http: httpx.AsyncClient, due_at: int | str
) -> None:
    await push(http, "a")

    for reply in (
        await http.post(f"{MAIL}/jobs", json={"due_at": due_at}),
        await http.post(f"{MAIL}/batch", json={"jobs": [{"due_at": due_at}]}),
        await http.post(f"{MAIL}/reschedule", json={"ids": ["a"], "due_at": due_at}),
        await http.patch(f"{MAIL}/jobs/a", json={"due_at": due_at}),
    ):
        assert "give 1795236220000" in problem(reply, 400, "invalid_time")["detail"]


@pytest.mark.parametrize("when", [{}, {"delay": 1, "due_at": 1}])
async def test_a_new_time_is_given_in_one_way(http: httpx.AsyncClient, when: dict[str, int]) -> None:
    await push(http, "a")

    assert problem(await http.patch(f"{MAIL}/jobs/a", json=when), 400, "invalid_request")
    assert problem(await http.post(f"{MAIL}/reschedule", json={"ids": ["a"], **when}), 400, "invalid_request")


async def test_one_job_that_is_not_there(http: httpx.AsyncClient) -> None:
    for reply in (
        await http.get(f"{MAIL}/jobs/a"),
        await http.delete(f"{MAIL}/jobs/a"),
        await http.patch(f"{MAIL}/jobs/a", json={"delay": 1}),
    ):
        assert problem(reply, 404, "job_not_found")["fields"] == {"id": "a"}


async def test_one_job_that_cannot_be_rescheduled(http: httpx.AsyncClient) -> None:
    held = await lease(http, "a")
    assert problem(await http.patch(f"{MAIL}/jobs/a", json={"delay": 1}), 409, "job_running")

    await post(http, "kill", {"lease": held})
    assert problem(await http.patch(f"{MAIL}/jobs/a", json={"delay": 1}), 409, "job_dead")

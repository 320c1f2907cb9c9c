"""Topics through the native API."""

import json
from typing import Any

import httpx
import pytest

from tests.protocols.v1.vocabulary import NOW, ok, problem

TOPICS = "/v1/namespaces/shop/topics"
MAIL = f"{TOPICS}/mail"
URL = "https://shop.example.com/mail"


async def add(http: httpx.AsyncClient, topic: str = "mail", **fields: Any) -> dict[str, Any]:
    return await ok(await http.post(TOPICS, json={"topic": topic, "callback": URL, **fields}), 201)


async def test_a_topic_is_added_shown_changed_and_removed(http: httpx.AsyncClient) -> None:
    added = await add(http, delay="10m", alert=["ops@example.com"], priority="high")

    assert (added["id"], added["delay_ms"], added["priority"], added["signed"]) == (1, 600_000, "high", False)
    assert await ok(await http.get(MAIL)) == added
    await add(http, "other")
    assert [one["topic"] for one in (await ok(await http.get(TOPICS)))["topics"]] == ["mail", "other"]
    changed = await ok(await http.patch(MAIL, json={"timeout": "1s", "method": "JSON", "alert": []}))
    assert changed == {key: value for key, value in added.items() if key != "alert"} | {
        "timeout_ms": 1000,
        "method": "JSON",
    }
    assert (await ok(await http.post(f"{MAIL}/offline")))["status"] == "offline"
    assert (await ok(await http.post(f"{MAIL}/online")))["status"] == "online"
    await ok(await http.delete(MAIL))
    problem(await http.get(MAIL), 404, "topic_not_found")


async def test_secrets_come_back_once(http: httpx.AsyncClient) -> None:
    added = await add(http, secret="new")

    assert added["secret"].startswith("whsec_")
    assert "secret" not in await ok(await http.get(MAIL))
    changed = await ok(await http.patch(MAIL, json={"secret": "new"}))
    assert changed["secret"] != added["secret"]
    ended = await ok(await http.patch(MAIL, json={"secret": ""}))
    assert (ended["signed"], "secret" in ended) == (False, False)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"callback": "gopher://x"}, "invalid_request"),
        ({"retry_if": "{res.code} ="}, "invalid_condition"),
        ({"delay": "soon"}, "invalid_time"),
        ({"topic": "a b"}, "invalid_name"),
        ({"schedule": "x"}, "invalid_request"),
        ({"colour": "red"}, "invalid_request"),
    ],
)
async def test_what_is_wrong_is_said_when_it_is_saved(
    http: httpx.AsyncClient, fields: dict[str, str], code: str
) -> None:
    problem(await http.post(TOPICS, json={"topic": "mail", "callback": URL, **fields}), 400, code)

    assert (await ok(await http.get(TOPICS)))["topics"] == []


async def test_the_place_of_an_error_in_a_condition_is_told(http: httpx.AsyncClient) -> None:
    told = problem(
        await http.post(TOPICS, json={"topic": "mail", "callback": URL, "retry_if": "{res.a} === 1"}),
        400,
        "invalid_condition",
    )

    assert told["fields"]["position"] == 9


async def test_two_topics_of_a_name_cannot_be(http: httpx.AsyncClient) -> None:
    await add(http)

    problem(await http.post(TOPICS, json={"topic": "mail", "callback": URL}), 409, "topic_exists")


async def test_jobs_are_added_with_the_topics_own_options(http: httpx.AsyncClient) -> None:
    await add(http, delay="10m", priority="low")

    moved = (await ok(await http.post(f"{MAIL}/jobs", json={"id": "1", "body": {"to": "ann"}}), 201))["moved"]
    assert (moved["event"], moved["due_at"]) == ("accepted", NOW + 600_000)
    again = (await ok(await http.post(f"{MAIL}/jobs", json={"id": "1", "due_at": NOW + 5}), 200))["moved"]
    assert (again["event"], again["due_at"]) == ("replaced", NOW + 5)
    job = await ok(await http.get("/v1/queues/shop/mail/jobs/1"))
    assert (job["priority"], job["tries"]) == ("low", 0)
    problem(
        await http.post(f"{MAIL}/jobs", json={"due_at": 1, "fix_time": "2026-11-15 09:00:00"}), 400, "invalid_request"
    )
    problem(await http.post(f"{MAIL}/jobs", json={"fix_time": "tomorrow"}), 400, "invalid_time")
    problem(await http.post(f"{MAIL}/jobs", json={"fix_time": ""}), 400, "invalid_request")
    await http.post(f"{MAIL}/offline")
    problem(await http.post(f"{MAIL}/jobs", json={"body": {}}), 409, "topic_offline")
    problem(await http.post(f"{TOPICS}/nowhere/jobs", json={"body": {}}), 404, "topic_not_found")


async def test_a_sample_call_tells_what_happened_and_goes_nowhere_private(http: httpx.AsyncClient) -> None:
    await ok(await http.post(TOPICS, json={"topic": "mail", "callback": "http://127.0.0.1:1/x", "secret": "new"}), 201)

    told = await ok(await http.post(f"{MAIL}/test", json={"body": {"to": "ann"}}))

    assert (told["request"]["method"], told["request"]["url"]) == ("POST", "http://127.0.0.1:1/x")
    assert json.loads(told["request"]["body"])["to"] == "ann"
    assert told["request"]["headers"]["webhook-id"] == "sample"
    assert told["answer"]["status"] == 0
    assert "must be public" in told["answer"]["error"]
    assert told["verdict"] == "error"


async def test_a_new_topic_posts_json_and_wants_a_2xx_status_unless_it_says_otherwise(http: httpx.AsyncClient) -> None:
    new = await ok(await http.post(TOPICS, json={"topic": "mail", "callback": URL}), 201)
    rules = {"method": "GET", "success": "body"}
    old = await ok(await http.post(TOPICS, json={"topic": "php", "callback": URL, **rules}), 201)

    assert (new["method"], new["success"]) == ("JSON", "status")
    assert {name: old[name] for name in rules} == rules
    edited = await ok(await http.patch(MAIL, json={"delay": "1m"}))
    assert (edited["method"], edited["success"]) == ("JSON", "status")

"""Dead letters, purging, rules, pause and resume."""

import asyncio

import httpx

from duetime.engine import Engine
from duetime.model.clock import ManualClock
from tests.protocols.v1.vocabulary import MAIL, NOW, lease, ok, post, problem, push, reserve, someone_waits

NO_RULES = {
    "paused": False,
    "strict": False,
    "expired_to_dead": False,
    "max_jobs": 0,
    "max_body": 0,
    "kept": False,
    "offline": False,
}


async def kill(http: httpx.AsyncClient, *ids: str) -> None:
    for job_id in ids:
        await post(http, "kill", {"lease": await lease(http, job_id)})


async def test_dead_letters_come_back_by_id_or_the_oldest_first(http: httpx.AsyncClient, clock: ManualClock) -> None:
    for job_id in ("a", "b", "c"):
        await kill(http, job_id)
        clock.advance(1)

    by_id = await post(http, "respawn", {"ids": ["c", "absent"], "ttl": "1h", "tries": 9})
    assert [result["moved"]["event"] for result in by_id["results"]] == ["respawned"]
    [job] = (await post(http, "get", {"ids": ["c"]}))["jobs"]
    assert (job["state"], job["tries"], job["expires_at"]) == ("ready", 9, NOW + 3_603_000)

    oldest = await ok(await http.post(f"{MAIL}/respawn"))
    assert [result["moved"]["id"] for result in oldest["results"]] == ["a"]

    rest = await post(http, "respawn", {"limit": 10_000})
    assert [result["moved"]["id"] for result in rest["results"]] == ["b"]


async def test_a_respawn_has_a_bound(http: httpx.AsyncClient) -> None:
    reply = await http.post(f"{MAIL}/respawn", json={"limit": 10_001})

    assert problem(reply, 400, "invalid_request")["fields"] == {"path": "$.limit"}


async def test_purge_removes_by_state(http: httpx.AsyncClient) -> None:
    await kill(http, "d1", "d2")
    await push(http, "r")

    assert await post(http, "purge", {"states": ["dead", "dead"], "limit": 1}) == {"removed": 1}
    assert await post(http, "purge", {"states": ["dead"]}) == {"removed": 1}
    assert await post(http, "purge", {"states": ["delayed", "ready", "leased", "dead"]}) == {"removed": 1}
    assert (await ok(await http.get("/v1/queues")))["queues"] == []


async def test_rules_change_one_by_one(http: httpx.AsyncClient) -> None:
    assert await ok(await http.get(f"{MAIL}/rules")) == NO_RULES

    assert await ok(await http.patch(f"{MAIL}/rules", json={"max_jobs": 1})) == {**NO_RULES, "max_jobs": 1}
    both = await ok(await http.patch(f"{MAIL}/rules", json={"expired_to_dead": True, "strict": True}))
    assert both == {**NO_RULES, "max_jobs": 1, "expired_to_dead": True, "strict": True}

    await push(http, "a")
    full = await http.post(f"{MAIL}/jobs", json={"id": "b"})
    assert problem(full, 429, "queue_full")["fields"] == {"max_jobs": 1}


async def test_a_paused_queue_delivers_after_resume(http: httpx.AsyncClient, engine: Engine) -> None:
    await push(http, "a")

    assert (await ok(await http.post(f"{MAIL}/pause")))["paused"] is True
    assert await reserve(http) == []
    waiting = asyncio.create_task(reserve(http, wait="30s"))
    await someone_waits(engine)
    assert (await ok(await http.post(f"{MAIL}/resume")))["paused"] is False

    assert len(await waiting) == 1


async def test_a_count_of_a_join_is_raised_and_goes_on(http: httpx.AsyncClient) -> None:
    for count in (2, 1):  # it never falls
        raised = {"joins": [{"name": "g~>join", "count": count, "life": "1h"}]}
        assert await post(http, "joins", raised) == {"joins": 1}
    assert await ok(await http.get(f"{MAIL}/jobs", params={"state": "ready"})) == {"jobs": []}

    join = {"name": "g~>join", "of": 3, "then": [{"id": "g~>then", "body": "all"}], "life": "1h"}
    [last] = (await post(http, "finish", {"finishes": [{"lease": await lease(http, "g~>a"), "join": join}]}))["results"]
    assert (last["joined"], [moved["id"] for moved in last["then"]]) == (3, ["g~>then"])

    for name, life, code in (("g\n", "1h", "invalid_id"), ("g", "0s", "invalid_time"), ("g", "32d", "invalid_time")):
        answer = await http.post(f"{MAIL}/joins", json={"joins": [{"name": name, "count": 1, "life": life}]})
        problem(answer, 400, code)

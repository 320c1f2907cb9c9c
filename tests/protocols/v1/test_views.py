"""Looking at jobs and queues."""

import asyncio

import httpx
import pytest

from duetime.client import AsyncClient, Client
from duetime.journal.registration import begin_journaling, register
from duetime.model.clock import ManualClock
from duetime.model.job import STEP_BYTES, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Store
from tests.contract.vocabulary import ODD_IDS
from tests.protocols.v1.server import Served
from tests.protocols.v1.vocabulary import MAIL, NOW, Json, lease, ok, post, problem, push

NO_RULES = {
    "paused": False,
    "strict": False,
    "expired_to_dead": False,
    "max_jobs": 0,
    "max_body": 0,
    "kept": False,
    "offline": False,
}


async def test_get_answers_in_the_order_asked(http: httpx.AsyncClient) -> None:
    await push(http, "a")
    await push(http, "b")

    jobs = (await post(http, "get", {"ids": ["b", "absent", "a", "b"]}))["jobs"]

    assert [job and job["id"] for job in jobs] == ["b", None, "a"], "a repeated id is looked at once"


async def test_get_ends_at_its_bound_and_names_the_ids_that_it_left_out(http: httpx.AsyncClient) -> None:
    body = "x" * 100_000
    ids = [f"job-{number}" for number in range(60)]
    for job_id in ids:
        await push(http, job_id, body=body)

    reply = await http.post(f"{MAIL}/get", json={"ids": (ids * 17)[:1000]})

    answer = await ok(reply)
    assert len(reply.content) < STEP_BYTES + 100_000
    assert [job["id"] for job in answer["jobs"]] + answer["left_out"] == ids
    rest = await post(http, "get", {"ids": answer["left_out"]})
    assert [job["id"] for job in rest["jobs"]] == answer["left_out"]
    assert "left_out" not in rest


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_the_sdk_asks_for_what_was_left_out(served: Served, kind: type[Client] | type[AsyncClient]) -> None:
    ids = [f"job-{number}" for number in range(1, 11)]
    jobs = [NewJob(job_id, b"x" * (STEP_BYTES // 5)) for job_id in ids]
    for job in jobs:
        await served.engine.push(Queue("shop", "mail"), [job])
    wanted = [*ids, "absent", *ids]
    if kind is AsyncClient:
        async with AsyncClient(served.url, namespace="shop") as client:
            found = await client.queue("mail").get_many(wanted)
    else:
        with Client(served.url, namespace="shop") as sync_client:
            found = await asyncio.to_thread(sync_client.queue("mail").get_many, wanted)

    assert [job and (job.id, len(job.body)) for job in found] == [
        None if job_id == "absent" else (job_id, STEP_BYTES // 5) for job_id in wanted
    ]


async def test_a_list_is_walked_page_by_page(http: httpx.AsyncClient) -> None:
    for number in range(5):
        await push(http, f"job-{number}", delay=number + 1)

    ids: list[list[str]] = []
    cursor: Json = {}
    while True:
        page = await ok(await http.get(f"{MAIL}/jobs", params={"state": "delayed", "limit": 2, **cursor}))
        ids.append([job["id"] for job in page["jobs"]])
        if "cursor" not in page:
            break
        cursor = {"cursor": page["cursor"]}

    assert ids == [["job-0", "job-1"], ["job-2", "job-3"], ["job-4"]]
    assert await ok(await http.get(f"{MAIL}/jobs", params={"state": "dead"})) == {"jobs": []}


@pytest.mark.parametrize(
    "cursor", ["", "x", "1:2", "a:b:c", "\u0000", "9" * 30 + ":1:x", "1:-1:x", "1:1e3:x", "1:1:\n", "null"]
)
async def test_a_cursor_from_elsewhere_is_refused(http: httpx.AsyncClient, cursor: str) -> None:
    reply = await http.get(f"{MAIL}/jobs", params={"state": "ready", "cursor": cursor})

    assert problem(reply, 400, "invalid_request")["fields"] == {"path": "$.cursor"}


async def test_a_cursor_holds_any_id(http: httpx.AsyncClient) -> None:
    for job_id in ODD_IDS:
        await push(http, job_id)

    seen: list[str] = []
    query = {"state": "ready", "limit": "1"}
    while True:
        page = await ok(await http.get(f"{MAIL}/jobs", params=query))
        seen += [job["id"] for job in page["jobs"]]
        if "cursor" not in page:
            break
        query["cursor"] = page["cursor"]

    assert sorted(seen) == sorted(ODD_IDS)


async def test_a_queue_has_counts_and_rules(http: httpx.AsyncClient) -> None:
    held = await lease(http, "dead")
    await post(http, "kill", {"lease": held})
    await lease(http, "leased")
    await push(http, "ready")
    await push(http, "delayed", delay=5)
    await ok(await http.patch(f"{MAIL}/rules", json={"max_jobs": 10}))

    assert await ok(await http.get(MAIL)) == {
        "namespace": "shop",
        "queue": "mail",
        "counts": {"delayed": 1, "ready": 1, "leased": 1, "dead": 1, "expired": 0, "now": NOW},
        "rules": {**NO_RULES, "max_jobs": 10},
        "next_at": NOW,
    }


async def test_an_unknown_queue_is_empty(http: httpx.AsyncClient) -> None:
    answer = await ok(await http.get("/v1/queues/shop/nothing"))

    assert answer["counts"] == {"delayed": 0, "ready": 0, "leased": 0, "dead": 0, "expired": 0, "now": NOW}
    assert (await ok(await http.get("/v1/queues")))["queues"] == []


async def test_queues_and_namespaces_are_listed(http: httpx.AsyncClient) -> None:
    for namespace, queue in (("shop", "sms"), ("shop", "mail"), ("bank", "mail")):
        await push(http, "a", queue=f"/v1/queues/{namespace}/{queue}")

    async def listed(**query: str) -> list[str]:
        found = (await ok(await http.get("/v1/queues", params=query)))["queues"]
        assert all(queue["counts"]["ready"] == 1 and queue["rules"] == NO_RULES for queue in found)
        return [f"{queue['namespace']}/{queue['queue']}" for queue in found]

    assert await listed() == ["bank/mail", "shop/mail", "shop/sms"]
    assert await listed(namespace="shop") == ["shop/mail", "shop/sms"]
    assert await listed(namespace="nobody") == []
    assert await ok(await http.get("/v1/namespaces")) == {"namespaces": ["bank", "shop"]}


async def test_a_namespace_tells_the_epoch_of_its_store(http: httpx.AsyncClient) -> None:
    before = await ok(await http.get("/v1/namespaces/shop"))
    await push(http, "a")

    assert before == {"namespace": "shop", "epoch": before["epoch"], "now": NOW}
    assert before["epoch"]
    assert await ok(await http.get("/v1/namespaces/shop")) == before
    assert (await ok(await http.get("/v1/namespaces/bank")))["epoch"] == before["epoch"]


async def test_more_queues_than_are_asked_for_at_a_time(http: httpx.AsyncClient) -> None:
    for number in range(205):
        await push(http, "a", queue=f"/v1/queues/shop/q{number:03}")

    found = (await ok(await http.get("/v1/queues?namespace=shop")))["queues"]

    assert [queue["queue"] for queue in found] == [f"q{number:03}" for number in range(205)]


async def test_jobs_that_are_ready_or_due_soon_are_one_number(http: httpx.AsyncClient, clock: ManualClock) -> None:
    for minutes in (-3, 0, 5, 6):
        await push(http, str(minutes), due_at=NOW + minutes * 60_000)
    assert await ok(await http.get(f"{MAIL}/due", params={"within": "5m"})) == {
        "edges": [0, NOW + 300_001],
        "counts": [3],
    }
    for wrong in ({"within": "5m", "buckets": 2}, {"within": "5m", "edges": "0,1"}, {"within": "soon"}):
        assert (await http.get(f"{MAIL}/due", params=wrong)).status_code == 400


async def test_a_histogram_tells_when_jobs_fall_due(http: httpx.AsyncClient, clock: ManualClock) -> None:
    for minutes in (1, 2, 2, 59, 61):
        await push(http, f"{minutes} {clock.advance('1ms')}", due_at=NOW + minutes * 60_000)
    clock.set(NOW)

    hour = await ok(await http.get(f"{MAIL}/due"))
    assert hour["edges"] == [NOW + minute * 60_000 for minute in range(61)]
    assert {minute: count for minute, count in enumerate(hour["counts"]) if count} == {1: 1, 2: 2, 59: 1}

    halves = await ok(await http.get(f"{MAIL}/due", params={"from": NOW, "to": NOW + 7_200_000, "buckets": 2}))
    assert halves == {"edges": [NOW, NOW + 3_600_000, NOW + 7_200_000], "counts": [4, 1]}

    edges = [0, NOW + 60_001, 253_402_300_799_999]
    own = await ok(await http.get(f"{MAIL}/due", params={"edges": ",".join(map(str, edges))}))
    assert own == {"edges": edges, "counts": [1, 4]}


@pytest.mark.parametrize(
    "query",
    [
        "from=soon",
        "from=2026-01-01T00:00:00",
        "buckets=0",
        "buckets=1001",
        "from=100&to=50",
        "from=100&to=101&buckets=2",
        "edges=1",
        "edges=1,1",
        "edges=2,1",
        "edges=1,,2",
        "edges=1,-2",
        "edges=1,9999999999999999999999",
        "edges=" + ",".join(map(str, range(1002))),
        "edges=1,2&buckets=1",
    ],
)
async def test_histograms_that_cannot_be(http: httpx.AsyncClient, query: str) -> None:
    reply = await http.get(f"{MAIL}/due?{query}")

    assert reply.status_code == 400, reply.text
    assert reply.json()["code"] in ("invalid_request", "invalid_time")


async def test_a_pool_without_a_journal_has_no_nodes(http: httpx.AsyncClient) -> None:
    told = await ok(await http.get("/v1/namespaces/shop/journal-nodes"))
    assert told == {"nodes": [], "pool": "default", "since": 0}


async def test_a_pool_that_journals_tells_its_name_and_since_when(http: httpx.AsyncClient, store: Store) -> None:
    began = await begin_journaling(store, "named-by-another-server")
    await register(store, "web-1")
    told = await ok(await http.get("/v1/namespaces/shop/journal-nodes"))
    assert told == {"nodes": [{"node": "web-1", "at": began.since}], "pool": "default", "since": began.since}

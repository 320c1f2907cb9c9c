"""Every way to be refused, in the one shape that all refusals have."""

import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from duetime.model.errors import DuetimeError, StoreDamaged, StoreFull, StoreUnavailable
from duetime.stores.base import Store
from duetime.wire.messages import MAX_REQUEST
from tests.protocols.v1.server import serve
from tests.protocols.v1.vocabulary import MAIL, ok, problem

ULID = re.compile("[0-9A-HJKMNP-TV-Z]{26}")


class Broken:
    """A store whose pushes fail in a way of the test's choice."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.error: Exception = StoreUnavailable()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def push(self, queue: Any, requests: Any) -> Any:
        raise self.error


@pytest.fixture
def broken(store: Store) -> Broken:
    return Broken(store)


@pytest.fixture
async def broken_http(broken: Broken) -> AsyncIterator[httpx.AsyncClient]:
    async with serve(broken) as served, httpx.AsyncClient(base_url=served.url, verify=False) as client:  # type: ignore[arg-type]
        yield client


# --- addresses


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/nothing",
        "/v1/queues/",
        "/v1/queues/shop",
        "/v1/queues/shop/mail/",
        f"{MAIL}/nothing",
        f"{MAIL}/jobs/a/b",
    ],
)
async def test_nothing_is_there(http: httpx.AsyncClient, path: str) -> None:
    assert problem(await http.get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", f"{MAIL}/jobs", "GET, POST"),
        ("POST", f"{MAIL}/jobs/a", "DELETE, GET, PATCH"),
        ("GET", f"{MAIL}/reserve", "POST"),
        ("HEAD", f"{MAIL}/rules", "GET, PATCH"),
        ("OPTIONS", "/v1/queues", "GET"),
        ("POST", "/v1/openapi.json", "GET"),
    ],
)
async def test_a_method_that_an_address_does_not_take(
    http: httpx.AsyncClient, method: str, path: str, allowed: str
) -> None:
    reply = await http.request(method, path)

    assert reply.status_code == 405
    assert reply.headers["allow"] == allowed


@pytest.mark.parametrize("path", ["/v1/queues/sh%20op/mail", "/v1/queues/shop/m%2Fail", f"/v1/queues/{'x' * 256}/mail"])
async def test_names_that_are_none(http: httpx.AsyncClient, path: str) -> None:
    assert problem(await http.get(path), 400, "invalid_name")


async def test_a_path_that_is_not_text(http: httpx.AsyncClient) -> None:
    assert problem(await http.get("/v1/queues/shop/%ff"), 400, "invalid_request")


async def test_the_names_in_a_body_are_checked_too(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/namespaces/shop/reserve", json={"queues": ["mail", "a b"]})

    assert problem(reply, 400, "invalid_name")


@pytest.mark.parametrize("job_id", ["", "%00", "%0a", "x" * 129])
async def test_ids_that_are_none(http: httpx.AsyncClient, job_id: str) -> None:
    assert problem(await http.get(f"{MAIL}/jobs/{job_id}"), 400, "invalid_id")


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        ("jobs", {"id": ""}),
        ("batch", {"jobs": [{"id": "a"}, {"id": "\n"}]}),
        ("cancel", {"ids": ["x" * 129]}),
        ("reschedule", {"ids": ["\u200b"], "delay": 1}),
        ("get", {"ids": ["a", "\u0000"]}),
        ("respawn", {"ids": [""]}),
        ("ack", {"leases": [{"id": "", "born": 1, "attempt": 1}]}),
        ("kill", {"lease": {"id": "\t", "born": 1, "attempt": 1}}),
    ],
)
async def test_ids_in_bodies_that_are_none(http: httpx.AsyncClient, verb: str, message: dict[str, Any]) -> None:
    assert problem(await http.post(f"{MAIL}/{verb}", json=message), 400, "invalid_id")


# --- queries


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("", "$"),
        ("state=asleep", "$.state"),
        ("state=ready&limit=0", "$.limit"),
        ("state=ready&limit=501", "$.limit"),
        ("state=ready&limit=many", "$.limit"),
        ("state=ready&sort=up", "$"),
    ],
)
async def test_queries_that_are_not_valid(http: httpx.AsyncClient, query: str, path: str) -> None:
    told = problem(await http.get(f"{MAIL}/jobs?{query}"), 400, "invalid_request")

    assert told["fields"] == {"path": path}


@pytest.mark.parametrize("query", ["state=ready&state=dead", "state=%ff", "&".join(f"p{n}=1" for n in range(30))])
async def test_queries_that_cannot_be_read(http: httpx.AsyncClient, query: str) -> None:
    assert problem(await http.get(f"{MAIL}/jobs?{query}"), 400, "invalid_request")


async def test_a_query_where_none_is_taken(http: httpx.AsyncClient) -> None:
    told = problem(await http.get(f"{MAIL}?verbose=1"), 400, "invalid_request")

    assert "verbose" in told["detail"]


# --- bodies


@pytest.mark.parametrize(
    ("content", "path"),
    [
        (b'{"tries": "5"}', "$.tries"),
        (b'{"tries": -1}', "$.tries"),
        (b'{"tries": 65536}', "$.tries"),
        (b'{"priority": "urgent"}', "$.priority"),
        (b'{"attributes": {"a": 1}}', "$.attributes[...]"),
        (b'{"if_exists": null}', "$.if_exists"),
        (b'{"delay": [1]}', "$.delay"),
        (b'{"born": 99999999999999999999}', "$.born"),
        (b'{"attempt": 4294967296}', "$.attempt"),
        (b'{"dealy": 5}', "$"),
        (b"[]", "$"),
        (b"null", "$"),
    ],
)
async def test_messages_that_are_not_valid(http: httpx.AsyncClient, content: bytes, path: str) -> None:
    told = problem(await http.post(f"{MAIL}/jobs", content=content), 400, "invalid_request")

    assert told["fields"] == {"path": path}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"{}{}",
        b"hello",
        b"\xff\xfe",
        b'{"id": "\xff"}',
        b'{"body": "\xff"}',
        b'{"body": ["\xff"]}',
        b'{"body": "\\ud800"}',
        b'{"body": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}",
        b'{"body_b64": "not base64"}',
        b'{"body": "a", "body_b64": ""}',
        b'{"delay": 1, "due_at": 1}',
        b'{"attributes": {"": "x"}}',
    ],
)
async def test_bodies_that_are_not_messages(http: httpx.AsyncClient, content: bytes) -> None:
    assert problem(await http.post(f"{MAIL}/jobs", content=content), 400, "invalid_request")


@pytest.mark.parametrize(
    "job",
    [
        {"delay": -1},
        {"delay": "soon"},
        {"delay": "101w" * 100},
        {"delay": 1e300},
        {"due_at": -1},
        {"due_at": "2026-11-15T09:00:00"},
        {"due_at": "yesterday"},
        {"ttl": "-1s"},
    ],
)
async def test_times_that_are_none(http: httpx.AsyncClient, job: dict[str, Any]) -> None:
    assert problem(await http.post(f"{MAIL}/jobs", json=job), 400, "invalid_time")


async def test_a_detail_does_not_repeat_a_whole_request(http: httpx.AsyncClient) -> None:
    told = problem(await http.post(f"{MAIL}/jobs", json={"delay": "x" * 100_000}), 400, "invalid_time")

    assert len(told["detail"]) < 1100


async def test_a_job_that_would_expire_first(http: httpx.AsyncClient) -> None:
    reply = await http.post(f"{MAIL}/jobs", json={"id": "a", "delay": 10, "ttl": 9})

    assert problem(reply, 400, "expires_before_due")["fields"] == {"id": "a"}


async def test_a_body_that_is_larger_than_a_job_may_be(http: httpx.AsyncClient) -> None:
    reply = await http.post(f"{MAIL}/jobs", json={"id": "a", "body": "x" * 1_048_577})

    assert problem(reply, 413, "body_too_large")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_request_that_is_too_large_is_refused_while_it_comes(http: httpx.AsyncClient, chunked: bool) -> None:
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(MAX_REQUEST // 65_536 + 1):
            sent += 65_536
            yield b" " * 65_536

    content: Any = chunks() if chunked else b" " * (MAX_REQUEST + 1)

    reply = await http.post(f"{MAIL}/batch", content=content)

    assert problem(reply, 413, "body_too_large")["fields"] == {"limit": MAX_REQUEST}


async def test_the_largest_request_is_taken(http: httpx.AsyncClient) -> None:
    content = b'{"jobs": [{"id": "a"}]}'

    await ok(await http.post(f"{MAIL}/batch", content=content.ljust(MAX_REQUEST)), 201)


# --- from below


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (StoreUnavailable("down", unknown=True), 503, "store_unavailable"),
        (StoreFull(), 507, "store_full"),
        (StoreDamaged(), 500, "store_damaged"),
    ],
)
async def test_a_store_that_fails(
    broken: Broken, broken_http: httpx.AsyncClient, error: DuetimeError, status: int, code: str
) -> None:
    broken.error = error

    reply = await broken_http.post(f"{MAIL}/jobs", json={})

    told = problem(reply, status, code)
    assert told.get("fields", {}) == error.fields
    assert reply.headers.get("retry-after") == ("1" if status == 503 else None)


async def test_a_bug_is_told_to_the_log_and_not_to_the_client(
    broken: Broken, broken_http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    broken.error = RuntimeError("the secret of the inside")

    with caplog.at_level(logging.ERROR, "duetime.server"):
        reply = await broken_http.post(f"{MAIL}/jobs", json={})

    assert "secret" not in reply.text
    assert problem(reply, 500, "error")
    [record] = [record for record in caplog.records if record.name == "duetime.server"]
    assert record.exc_info is not None
    assert "secret" in str(record.exc_info[1])


async def test_unknown_outcomes_of_single_results(broken: Broken, broken_http: httpx.AsyncClient) -> None:
    message = {"jobs": [{"id": "a"}, {"id": "b"}], "atomic": False}

    answer = await ok(await broken_http.post(f"{MAIL}/batch", json=message), 201)
    assert [result["error"]["code"] for result in answer["results"]] == ["store_unavailable"] * 2

    # With a key nothing was marked: the whole request may be repeated, so it fails as a whole.
    keyed = await broken_http.post(f"{MAIL}/batch", json=message, headers={"Idempotency-Key": "k"})
    assert problem(keyed, 503, "store_unavailable")


# --- all of them


async def test_every_reply_has_a_request_id_of_its_own(http: httpx.AsyncClient) -> None:
    replies = [await http.get(path) for path in ("/v1/queues", "/v1/nothing", "/v1/docs", "/v1/queues?x=1")]

    ids = {reply.headers["x-request-id"] for reply in replies}
    assert len(ids) == len(replies)
    assert all(ULID.fullmatch(name) for name in ids)

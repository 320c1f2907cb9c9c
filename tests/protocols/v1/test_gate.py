"""Tokens, scopes, pools and limits, as the server puts them in front of the native API."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest

from duetime.client import connect_async
from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.errors import Unauthorized
from duetime.protocols.rate_limits import Limit, RateLimits
from duetime.protocols.tokens import Access, Tokens
from duetime.protocols.v1 import V1App, administration
from duetime.protocols.v1.app import TokenGate
from duetime.protocols.v1.routes import ROUTES, Route
from duetime.stores.open import open_store
from tests.protocols.v1.server import listen
from tests.protocols.v1.vocabulary import MAIL, ok, problem


@dataclass(frozen=True)
class Server:
    http: httpx.AsyncClient
    tokens: Tokens
    limits: RateLimits

    async def token(self, *scopes: Access, pool: str = "default", namespace: str = "shop") -> str:
        secret = await self.tokens.create(pool, namespace, "", scopes=frozenset(scopes or Access))
        return secret if pool == "default" else f"{pool}:{secret}"

    async def limit(self, token: str, limit: Limit) -> None:
        await self.limits.put(await self.tokens.find("shop", token), limit)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with (
        Pools({"default": "memory:", "spare": "memory:"}, open_store=open_store) as pools,
        RegistryCopy(lambda: pools.registry) as registry_copy,
    ):
        tokens = Tokens(registry_copy, lambda: pools.registry, pools)
        limits = RateLimits(registry_copy, lambda: pools.registry)
        async with (
            listen(V1App(pools, TokenGate(tokens, limits))) as at,
            httpx.AsyncClient(base_url=at.url, verify=False) as http,
        ):
            yield Server(http, tokens, limits)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def address(route: Route) -> str:
    return route.path.format(namespace="shop", queue="mail", topic="mail", schedule="daily", id="a")


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
async def test_no_route_is_open_to_everybody(server: Server, route: Route) -> None:
    reply = await server.http.request(route.method, address(route))

    assert problem(reply, 401, "unauthorized")
    assert reply.headers["www-authenticate"] == 'Bearer realm="duetime"'


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
async def test_a_token_needs_the_scopes_of_the_route(server: Server, route: Route) -> None:
    query = "?namespace=shop" if route.name == "list_queues" else ""
    for missing in route.needs:
        token = await server.token(*(set(Access) - {missing}))
        reply = await server.http.request(route.method, address(route) + query, headers=bearer(token))
        assert problem(reply, 403, "forbidden")

    enough = await server.token(*route.needs)
    reply = await server.http.request(route.method, address(route) + query, headers=bearer(enough))
    if route.name == "list_namespaces":
        # It is about all namespaces, and a token is for one.
        assert problem(reply, 403, "forbidden")
    else:
        assert reply.status_code not in (401, 403), reply.text


async def test_a_token_of_another_namespace_is_refused_with_the_namespace(server: Server) -> None:
    elsewhere = await server.token(namespace="shop")
    reply = await server.http.get("/v1/queues/default/mail", headers=bearer(elsewhere))
    assert problem(reply, 401, "unauthorized")
    assert reply.json()["detail"] == "the token is not valid for the namespace 'default'"


async def test_the_document_and_the_page_need_no_token(server: Server) -> None:
    assert (await server.http.get("/v1/openapi.json")).status_code == 200
    assert (await server.http.get("/v1/docs")).status_code == 200


@pytest.mark.parametrize(
    ("header", "text"),
    [("Authorization", "Bearer {}"), ("Authorization", "bearer  {}"), ("X-Token", "{}"), ("x-token", "default:{}")],
)
async def test_a_token_comes_in_either_header(server: Server, header: str, text: str) -> None:
    headers = {header: text.format(await server.token())}

    await ok(await server.http.get(MAIL, headers=headers))


async def test_a_bearer_goes_before_another_token(server: Server) -> None:
    headers = {**bearer("wrong"), "X-Token": await server.token()}
    assert problem(await server.http.get(MAIL, headers=headers), 401, "unauthorized")

    headers = {"Authorization": "Basic c2VjcmV0", "X-Token": await server.token()}
    await ok(await server.http.get(MAIL, headers=headers))


async def test_a_token_is_for_one_namespace(server: Server) -> None:
    headers = bearer(await server.token(namespace="bank"))

    assert problem(await server.http.get(MAIL, headers=headers), 401, "unauthorized")
    assert problem(await server.http.get("/v1/queues", headers=headers), 403, "forbidden")
    await ok(await server.http.get("/v1/queues?namespace=bank", headers=headers))


async def test_the_token_says_which_pool(server: Server) -> None:
    here, there = bearer(await server.token()), bearer(await server.token(pool="spare"))
    await ok(await server.http.post(f"{MAIL}/jobs", json={"id": "a"}, headers=there), 201)

    await ok(await server.http.get(f"{MAIL}/jobs/a", headers=there))
    assert problem(await server.http.get(f"{MAIL}/jobs/a", headers=here), 404, "job_not_found")
    assert problem(await server.http.get(MAIL, headers=bearer("nowhere:secret")), 404, "pool_not_found")


async def test_a_limit_counts_every_request(server: Server) -> None:
    token = await server.token()
    await server.limit(token, Limit(interval=100, read=1, write=2))
    headers = bearer(token)

    for _ in range(2):
        await ok(await server.http.post(f"{MAIL}/jobs", json={}, headers=headers), 201)
    refused = await server.http.post(f"{MAIL}/batch", json={"jobs": [{}]}, headers=headers)
    assert problem(refused, 429, "too_many_requests")
    assert 1 <= int(refused.headers["retry-after"]) <= 100

    await ok(await server.http.post(f"{MAIL}/reserve", headers=headers))
    body = {"queues": ["mail"]}
    assert problem(
        await server.http.post("/v1/namespaces/shop/reserve", json=body, headers=headers), 429, "too_many_requests"
    )
    assert problem(await server.http.get(MAIL, headers=headers), 429, "too_many_requests")


async def test_the_end_of_a_delivery_is_never_limited(server: Server) -> None:
    token = await server.token()
    await ok(await server.http.post(f"{MAIL}/jobs", json={}, headers=bearer(token)), 201)
    await server.limit(token, Limit(interval=100, read=1))
    [delivery] = (await ok(await server.http.post(f"{MAIL}/reserve", headers=bearer(token))))["deliveries"]
    lease = {"lease": delivery["lease"]}
    for verb in ("extend", "ack"):
        await ok(await server.http.post(f"{MAIL}/{verb}", json=lease, headers=bearer(token)))


async def test_a_batch_counts_by_its_jobs(server: Server) -> None:
    token = await server.token()
    await server.limit(token, Limit(interval=100, write=5))
    headers = bearer(token)

    async def batch(jobs: int) -> httpx.Response:
        return await server.http.post(f"{MAIL}/batch", json={"jobs": [{}] * jobs}, headers=headers)

    assert "at a time" in problem(await batch(6), 429, "too_many_requests")["detail"]
    await ok(await batch(3), 201)
    problem(await batch(3), 429, "too_many_requests")
    await ok(await batch(2), 201)
    problem(await batch(1), 429, "too_many_requests")


async def test_a_refused_request_does_not_count(server: Server) -> None:
    token = await server.token()
    await server.limit(token, Limit(interval=100, write=1))
    headers = bearer(token)

    for _ in range(3):
        assert problem(await server.http.post(f"{MAIL}/jobs", json={"id": ""}, headers=headers), 400, "invalid_id")
    await ok(await server.http.post(f"{MAIL}/jobs", json={}, headers=headers), 201)
    assert problem(await server.http.post(f"{MAIL}/jobs", json={}, headers=headers), 429, "too_many_requests")


COUNTERS = "/v1/namespaces/shop/counters"


async def test_a_reader_adds_only_to_counters_that_pass(server: Server) -> None:
    reader, admin = bearer(await server.token(Access.READ)), bearer(await server.token(*Access))
    passing = {"name": "progress/mail/1", "by": 40, "life": "1d"}

    async def count(headers: dict[str, str], **fields: object) -> httpx.Response:
        return await server.http.post(COUNTERS, json=fields, headers=headers)

    kept = await ok(await count(reader, **passing))
    assert kept["value"] == (await ok(await count(reader, name="progress/mail/1")))["value"] == 40
    assert 0 < kept["left_ms"] <= 86_400_000
    problem(await count(reader, name="x", by=1), 403, "forbidden")
    problem(await count(reader, name="x", by=1, life="25h"), 403, "forbidden")
    problem(await count(reader, name="restarts", by=1, life="1d"), 403, "forbidden")
    assert await ok(await count(reader, name="x")) == {"value": 0}
    assert await ok(await count(admin, name="restarts", by=1)) == {"value": 1}


async def test_tokens_start_a_bounded_number_of_counters(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "MAX_STARTED", 3)
    monkeypatch.setattr(administration, "MAX_LONG_STARTED", 2)
    reader, admin = bearer(await server.token(Access.READ)), bearer(await server.token(*Access))
    replies = [
        await server.http.post(COUNTERS, json={"name": f"{number}", "by": 1, "life": "1h"}, headers=reader)
        for number in (1, 1, 2, 2, 3, 3)
    ]

    refused = await server.http.post(COUNTERS, json={"name": "4", "by": 1, "life": "1h"}, headers=reader)

    assert [reply.status_code for reply in replies] == [200] * 6
    problem(refused, 429, "too_many_requests")
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    brief = {"name": "5", "by": 1, "life": "1s"}  # a window of a rate limit: bounded by the minute
    assert (await server.http.post(COUNTERS, json=brief, headers=reader)).status_code == 200
    assert (await server.http.post(COUNTERS, json=brief | {"name": "6"}, headers=admin)).status_code == 200
    for life in ("1h", "1d"):
        another = {"name": "4", "by": 1, "life": life}
        problem(await server.http.post(COUNTERS, json=another, headers=admin), 429, "too_many_requests")
    for number, status in enumerate((200, 200, 429)):  # the counters that never end have a smaller bound
        endless = {"name": f"endless {number}", "by": 1}
        assert (await server.http.post(COUNTERS, json=endless, headers=admin)).status_code == status
    again = await server.http.post(COUNTERS, json={"name": "endless 0", "by": 1}, headers=admin)
    assert await ok(again) == {"value": 2}


async def test_a_counter_never_leaves_the_numbers_that_json_keeps(server: Server) -> None:
    headers = bearer(await server.token())
    for sign in (1, -1):
        most = {"name": f"n{sign}", "by": sign * (2**53 - 1)}
        await ok(await server.http.post(COUNTERS, json=most, headers=headers))
        problem(await server.http.post(COUNTERS, json=most, headers=headers), 400, "invalid_request")


async def test_a_finish_that_adds_jobs_needs_write_as_well(server: Server) -> None:
    reader, both = bearer(await server.token(Access.READ)), bearer(await server.token(Access.READ, Access.WRITE))
    held = {"id": "a", "born": 1, "attempt": 1}

    async def finish(headers: dict[str, str], **fields: object) -> httpx.Response:
        message = {"finishes": [{"lease": held, **fields}]}
        return await server.http.post("/v1/queues/shop/mail/finish", json=message, headers=headers)

    problem(await finish(reader, then=[{"body": ""}]), 403, "forbidden")
    assert await ok(await finish(reader, result="x", result_ttl=1)) == {"results": [{}]}
    assert await ok(await finish(both, then=[{"body": ""}])) == {"results": [{}]}


async def test_the_sdk_reads_its_token_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connect_async(str(server.http.base_url), namespace="shop") as client:
        with pytest.raises(Unauthorized):
            await client.queue("mail").push("x")
    monkeypatch.setenv("DUETIME_TOKEN", await server.token())
    async with connect_async(str(server.http.base_url), namespace="shop") as client:
        await client.queue("mail").push("x")

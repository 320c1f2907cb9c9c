"""The native API where the server has it: next to lmstfy's, behind the same tokens."""

from collections.abc import AsyncIterator

import httpx
import pytest

from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.settings import Settings
from duetime.server.apps import Runtime, api_app
from duetime.stores.open import open_store
from tests.protocols.v1.server import listen
from tests.protocols.v1.vocabulary import MAIL, ok, problem


@pytest.fixture(params=[True, False], ids=["dev", "with tokens"])
def dev(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
async def runtime(dev: bool) -> AsyncIterator[Runtime]:
    async with (
        Pools({"default": "memory:"}, open_store=open_store) as pools,
        RegistryCopy(lambda: pools.registry) as registry_copy,
    ):
        yield Runtime(Settings(dev=dev), pools, registry_copy)


@pytest.fixture
async def http(runtime: Runtime) -> AsyncIterator[httpx.AsyncClient]:
    async with listen(api_app(runtime)) as at, httpx.AsyncClient(base_url=at.url, verify=False) as client:
        yield client


async def test_one_token_is_valid_in_both_protocols(http: httpx.AsyncClient, runtime: Runtime) -> None:
    secret = await runtime.lmstfy.tokens.create("default", "shop", "")
    published = await http.put("/api/shop/mail?delay=0", content=b"hello", headers={"X-Token": secret})
    job_id = published.json()["job_id"]

    job = await ok(await http.get(f"{MAIL}/jobs/{job_id}", headers={"Authorization": f"Bearer {secret}"}))

    assert job["body"] == "hello"


async def test_without_a_token(http: httpx.AsyncClient, dev: bool) -> None:
    for path in (MAIL, "/v1/queues", "/v1/namespaces"):
        reply = await http.get(path)
        if dev:
            await ok(reply)
        else:
            problem(reply, 401, "unauthorized")


async def test_what_is_not_there_is_told_in_the_words_of_the_protocol(http: httpx.AsyncClient) -> None:
    assert problem(await http.get("/v1"), 404, "not_found")
    assert problem(await http.get("/v1/nothing"), 404, "not_found")
    assert (await http.get("/v10/nothing")).json() == {"error": "api not found"}

"""How the applications of the listeners are put together, and what health says of them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.errors import InvalidSettings, StoreUnavailable
from duetime.model.settings import load
from duetime.server.apps import MountedApp, Runtime, admin_app, api_app, compose, mail_domains
from duetime.stores.base import Store
from duetime.stores.open import open_store


async def get(app: ASGIApp, path: str, method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        return await client.request(method, path)


async def test_a_request_goes_to_the_first_app_with_its_prefix() -> None:
    app = compose(
        [MountedApp("/v1", PlainTextResponse("v1")), MountedApp("/api", PlainTextResponse("api"))],
        PlainTextResponse("else"),
    )
    for path, name in [("/v1", "v1"), ("/v1/x", "v1"), ("/v10", "else"), ("/api/a/b", "api"), ("/", "else")]:
        assert (await get(app, path)).text == name


def test_the_domains_of_alert_mail_are_checked() -> None:
    assert mail_domains(load(flags={}, environment={}, file={})) == []
    given = load(flags={}, environment={"DUETIME_ALERT_MAIL_DOMAINS": "Example.com, mail.example.org"}, file={})
    assert mail_domains(given) == ["example.com", "mail.example.org"]
    for wrong in ("@example.com", "*.example.com", "ops@example.com"):
        with pytest.raises(InvalidSettings, match="alert_mail_domains"):
            mail_domains(load(flags={}, environment={}, file={"alert_mail_domains": wrong}))


class Outage:
    """A way to open stores that fails for some URLs and can make others hang."""

    def __init__(self) -> None:
        self.opened: list[Store] = []

    async def open(self, url: str) -> Store:
        if url == "memory:down":
            raise StoreUnavailable("cannot reach db.internal")
        store = await open_store(url)
        self.opened.append(store)
        return store


@pytest.fixture
async def runtime(outage: Outage) -> AsyncIterator[Runtime]:
    settings = load(flags={"store": "memory:"}, environment={}, file={})
    async with (
        Pools(settings.pools, open_store=outage.open) as pools,
        RegistryCopy(lambda: pools.registry) as registry_copy,
    ):
        yield Runtime(settings, pools, registry_copy)


@pytest.fixture
def outage() -> Outage:
    return Outage()


async def test_all_is_well(runtime: Runtime) -> None:
    for app in (api_app(runtime), admin_app(runtime)):
        health = await get(app, "/healthz")
        assert (health.status_code, health.json()["status"]) == (200, "ok")
        ready = await get(app, "/readyz")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready"})


async def test_a_drain_ends_readiness_and_not_health(runtime: Runtime) -> None:
    runtime.draining.set()
    ready = await get(api_app(runtime), "/readyz")
    assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
    assert (await get(api_app(runtime), "/healthz")).status_code == 200


async def test_a_store_that_hangs_is_not_ready(
    runtime: Runtime, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang() -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(outage.opened[0], "ping", hang)
    monkeypatch.setattr("duetime.protocols.health.PING_S", 0.01)
    assert (await get(api_app(runtime), "/readyz")).status_code == 503
    report = (await get(admin_app(runtime), "/healthz")).json()
    assert (report["status"], report["pools"]["default"]["status"]) == ("degraded", "no_answer")


async def test_a_pool_that_is_down_is_named_to_the_admin_alone(outage: Outage) -> None:
    settings = load(flags={"store": "memory:"}, environment={}, file={"pool": {"far": {"store": "memory:down"}}})
    async with (
        Pools(settings.pools, open_store=outage.open) as pools,
        RegistryCopy(lambda: pools.registry) as registry_copy,
    ):
        runtime = Runtime(settings, pools, registry_copy)
        public = await get(api_app(runtime), "/readyz")
        assert (public.status_code, public.json()) == (503, {"status": "not ready"})
        assert (await get(admin_app(runtime), "/readyz")).json() == {"status": "not ready", "down": ["far"]}
        health = await get(admin_app(runtime), "/healthz")
        assert health.json()["pools"]["far"] == {"status": "store_unavailable"}
        assert "db.internal" not in health.text


async def test_unknown_paths_have_the_form_of_their_listener(runtime: Runtime) -> None:
    api = await get(api_app(runtime), "/nowhere")
    assert (api.status_code, api.text) == (404, '{"error":"api not found"}')
    assert api.headers["content-type"] == "application/json; charset=utf-8"
    assert (await get(api_app(runtime), "/healthz", "POST")).text == api.text
    admin = await get(admin_app(runtime), "/nowhere", "DELETE")
    assert (admin.status_code, admin.text) == (404, "404 page not found")


async def test_the_root_of_each_listener_leads_a_browser_to_a_page(runtime: Runtime) -> None:
    for app, page in [(admin_app(runtime), "/console/"), (api_app(runtime), "/v1/docs")]:
        answer = await get(app, "/")
        assert (answer.status_code, answer.headers["location"]) == (307, page)
        assert (await get(app, "/", "POST")).status_code == 404


async def test_an_app_for_everything_leaves_health_alone(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime.server.apps.admin_apps", lambda runtime: [MountedApp("", PlainTextResponse("app"))])
    app = admin_app(runtime)
    assert (await get(app, "/anything")).text == "app"
    assert (await get(app, "/healthz")).json()["status"] == "ok"

"""How the applications of the listeners are put together, and what health says of them."""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.http.listener import Listener
from duetime.model.errors import InvalidSettings, StoreUnavailable
from duetime.model.settings import load
from duetime.server.apps import MountedApp, Runtime, admin_app, api_app, compose, mail_domains
from duetime.server.listeners import ListenerSpec, leave_all
from duetime.server.process import LISTENERS
from duetime.stores.base import Store
from duetime.stores.open import open_store
from tests.plugins.http_peer import echo, serving
from tests.plugins.until import until


async def get(app: ASGIApp, path: str, method: str = "GET") -> httpx.Response:
    async with serving(app) as server, httpx.AsyncClient() as client:
        return await client.request(method, f"http://localhost:{server.port}{path}")


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


# --- a server that ends, and a client that connects after the last accept and before the close of the socket


GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class LateClientSocket(socket.socket):
    """Listens; somebody connects at the last moment before it is closed."""

    late: socket.socket | None = None

    def close(self) -> None:
        if self.fileno() >= 0 and self.late is None:
            self.late = socket.socket(self.family)
            self.late.setblocking(False)
            assert self.late.connect_ex(self.getsockname()) in (0, errno.EINPROGRESS)
        super().close()


def spec(*, last: bool) -> ListenerSpec:
    return next(one for one in LISTENERS if one.last is last)


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
async def test_a_late_connection_is_refused_and_never_reset(family: socket.AddressFamily, host: str) -> None:
    sock = LateClientSocket(family)
    sock.bind((host, 0))
    sock.listen(16)
    listener = Listener(echo, [sock])
    one = spec(last=False)
    with socket.create_connection(sock.getsockname()[:2]) as in_time:
        await listener.start()
        leave_all([one], {one.name: socket.socket(fileno=os.dup(sock.fileno()))})
        stopping = asyncio.create_task(listener.stop(10))
        in_time.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(in_time, GET)
        answer = await asyncio.get_running_loop().sock_recv(in_time, 1000)
        await stopping
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert sock.late is not None
    with sock.late as late:
        outcome = list[int]()
        asyncio.get_running_loop().add_writer(
            late, lambda: outcome.append(late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        )
        await until(lambda: outcome)
        asyncio.get_running_loop().remove_writer(late)
    assert outcome[0] == errno.ECONNREFUSED


async def test_a_listener_that_answers_to_the_end_still_takes_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        one = spec(last=True)
        leave_all([one], {one.name: sock.dup()})
        with socket.create_connection(sock.getsockname(), timeout=20):
            sock.accept()[0].close()

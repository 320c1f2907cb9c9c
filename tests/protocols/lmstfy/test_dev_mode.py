"""--dev: any or no token, on every namespace."""

import asyncio
import base64

import pytest

from duetime.protocols.logins import PER_ADDRESS
from tests.plugins.passwords import hashed
from tests.protocols.lmstfy.server import Server


@pytest.mark.store_kind("memory")
async def test_everybody_is_let_in() -> None:
    with Server({"default": "memory:", "second": "memory:"}, dev=True) as server:
        for namespace, headers, query in [
            ("any", {}, {}),
            ("other", {"X-Token": "anything"}, {}),
            ("third", {}, {"token": "second:whatever"}),
        ]:
            path = f"/api/{namespace}/q"
            published = await server.api.request("PUT", path, headers=headers, query=query)
            assert published.status == 201
            job = await server.api.request("GET", path, headers=headers, query=query)
            assert job.json()["job_id"] == published.json()["job_id"]
        unknown = await server.api.request("PUT", "/api/any/q", headers={"X-Token": "nowhere:x"})
        assert (unknown.status, unknown.json()) == (404, {"error": "pool not found"})
        assert (await server.api.request("PUT", "/api/a.b/q")).status == 400


@pytest.mark.store_kind("memory")
async def test_tokens_can_still_be_made_and_limited() -> None:
    with Server({"default": "memory:"}, dev=True) as server:
        made = await server.admin.request("POST", "/token/ns", query={"description": "d"})
        token = made.json()["token"]
        limit = b'{"write":1,"interval":60}'
        assert (await server.admin.request("POST", f"/token/ns/{token}/limit", body=limit)).status == 201
        statuses = [
            (await server.api.request("PUT", "/api/ns/q", headers={"X-Token": given})).status
            for given in (token, token, "another", "")
        ]
        assert statuses == [201, 429, 201, 201]


@pytest.mark.store_kind("memory")
async def test_switches_for_sizes_and_the_admin_listener() -> None:
    closed = {"lmstfy_public_sizes": False, "admin_protect_all": True, "accounts": {"ann": hashed("pa:ss")}}
    with Server({"default": "memory:"}, **closed) as server:
        size = await server.api.request("GET", "/api/ns/q/size")
        assert (size.status, size.json()) == (401, {"error": "token not found"})
        for path in ("/info", "/version", "/metrics", "/pools", "/limits", "/accesslog", "/token/ns"):
            refused = await server.admin.request("GET", path)
            assert (refused.status, refused.body) == (401, b"")
            assert refused.headers["www-authenticate"] == 'Basic realm="Authorization Required"'


@pytest.mark.store_kind("memory")
async def test_basic_authentication_is_asked_where_lmstfy_asks() -> None:
    protected = {
        ("GET", "/limits"): 200,
        ("GET", "/token/ns"): 200,
        ("POST", "/token/ns"): 400,
        ("DELETE", "/token/ns/x"): 204,
        ("GET", "/token/ns/x/limit"): 404,
        ("POST", "/token/ns/x/limit"): 400,
        ("PUT", "/token/ns/x/limit"): 400,
        ("DELETE", "/token/ns/x/limit"): 200,
        ("POST", "/accesslog"): 400,
    }
    with Server({"default": "memory:"}, accounts={"ann": hashed("pa:ss"), "bob": hashed("?")}) as server:
        for path in ("/info", "/version", "/metrics", "/pools", "/accesslog"):
            assert (await server.admin.request("GET", path)).status == 200
        for (method, path), status in protected.items():
            for authorization in ("", "Basic", "Basic !", "Bearer YW5uOnBhOnNz", "Basic Ym9iOng="):
                refused = await server.admin.request(method, path, headers={"Authorization": authorization})
                assert (refused.status, refused.body) == (401, b""), authorization
                assert refused.headers["www-authenticate"] == 'Basic realm="Authorization Required"'
            allowed = await server.admin.request(method, path, headers={"Authorization": "Basic YW5uOnBhOnNz"})
            assert allowed.status == status


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.store_kind("memory")
async def test_guesses_of_a_password_are_limited_also_when_many_come_at_a_time() -> None:
    with Server({"default": "memory:"}, accounts={"ann": hashed("pa:ss"), "bob": hashed("right")}) as server:

        async def status(user: str, password: str) -> int:
            return (await server.admin.request("GET", "/token/ns", headers=basic(user, password))).status

        assert (
            await asyncio.gather(*(status("ann", "pa:ss") for _ in range(4 * PER_ADDRESS))) == [200] * 4 * PER_ADDRESS
        )
        guesses = await asyncio.gather(*(status("ann", f"guess {number}") for number in range(4 * PER_ADDRESS)))
        assert sorted(guesses) == [401] * PER_ADDRESS + [429] * 3 * PER_ADDRESS
        limited = await server.admin.request("GET", "/token/ns", headers=basic("bob", "right"))
        assert limited.status == 429
        assert int(limited.headers["retry-after"]) > 0
        assert await status("ann", "pa:ss") == 200  # this process has seen it be right

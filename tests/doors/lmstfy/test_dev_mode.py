"""--dev: any or no token, on every namespace."""

import pytest

from tests.doors.lmstfy.server import Server


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
    closed = {"lmstfy_public_sizes": False, "admin_protect_all": True, "accounts": {"ann": "pa:ss"}}
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
    with Server({"default": "memory:"}, accounts={"ann": "pa:ss", "bob": "?"}) as server:
        for path in ("/info", "/version", "/metrics", "/pools", "/accesslog"):
            assert (await server.admin.request("GET", path)).status == 200
        for (method, path), status in protected.items():
            for authorization in ("", "Basic", "Basic !", "Basic YW5uOnBh", "Bearer YW5uOnBhOnNz", "Basic Ym9iOng="):
                refused = await server.admin.request(method, path, headers={"Authorization": authorization})
                assert (refused.status, refused.body) == (401, b""), authorization
                assert refused.headers["www-authenticate"] == 'Basic realm="Authorization Required"'
            allowed = await server.admin.request(method, path, headers={"Authorization": "Basic YW5uOnBhOnNz"})
            assert allowed.status == status

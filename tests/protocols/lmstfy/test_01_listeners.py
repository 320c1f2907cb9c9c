"""1. Two listeners, every path and method; X-Request-ID on every response; the 404 forms; never a 405."""

import re

import pytest

from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server
from tests.protocols.lmstfy.wire import Response

ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
METHODS = ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"]

API_ROUTES = {
    "q": {"PUT": 201, "GET": 404, "DELETE": 204},
    "q/bulk": {"PUT": 400},
    "q/peek": {"GET": 404},
    "q/job/some-id": {"PUT": 201, "GET": 404, "DELETE": 204},
    "q/size": {"GET": 200},
    "q/deadletter": {"GET": 200, "PUT": 200, "DELETE": 204},
    "q/deadletter/size": {"GET": 200},
}
ADMIN_ROUTES = {
    "/info": {"GET": 200},
    "/version": {"GET": 200},
    "/metrics": {"GET": 200},
    "/pools": {"GET": 200},
    "/limits": {"GET": 200},
    "/accesslog": {"GET": 200, "POST": 400},
    "/token/nobody": {"GET": 200, "POST": 400},
    "/token/nobody/01F4CKPFY8XYVH6WVEQB3747CW": {"DELETE": 204},
    "/token/nobody/01F4CKPFY8XYVH6WVEQB3747CW/limit": {"GET": 404, "POST": 400, "PUT": 400, "DELETE": 200},
}


def has_request_id(response: Response) -> bool:
    return bool(ULID.fullmatch(response.headers["x-request-id"]))


def is_unknown_on_api(response: Response) -> bool:
    return (
        response.status == 404
        and response.body == b'{"error":"api not found"}'
        and response.headers["content-type"] == "application/json; charset=utf-8"
        and has_request_id(response)
    )


def is_unknown_on_admin(response: Response) -> bool:
    return (
        response.status == 404
        and response.body == b"404 page not found"
        and response.headers["content-type"].startswith("text/plain")
        and has_request_id(response)
    )


@pytest.mark.parametrize("path", API_ROUTES)
async def test_every_api_route_has_its_methods_and_no_other(lmstfy: Lmstfy, path: str) -> None:
    for method in sorted(METHODS, key=lambda method: (method == "DELETE", method != "GET")):
        response = await lmstfy.call(method, path)
        expected = API_ROUTES[path].get(method)
        if expected is None:
            assert is_unknown_on_api(response), (method, response)
        else:
            assert response.status == expected, (method, response)
            assert has_request_id(response)


@pytest.mark.parametrize("path", ADMIN_ROUTES)
async def test_every_admin_route_has_its_methods_and_no_other(server: Server, path: str) -> None:
    for method in METHODS:
        response = await server.admin.request(method, path)
        expected = ADMIN_ROUTES[path].get(method)
        if expected is None:
            assert is_unknown_on_admin(response), (method, response)
        else:
            assert response.status == expected, (method, response)
            assert has_request_id(response)


@pytest.mark.parametrize(
    "path",
    [
        "/api",
        "/api/",
        "/api/ns",
        "/api/ns/",
        "/api//q",
        "/api/ns//size",
        "/api/ns/q/job",
        "/api/ns/q/job/",
        "/api/ns/q/job/a/b",
        "/api/ns/q/unknown",
        "/api/ns/q/deadletter/peek",
        "/v2/api/ns/q",
        "/metrics",
        "//api/ns/q",
        "/%2fevil.example/api/ns/q/",
    ],
)
async def test_unknown_paths_of_the_api(server: Server, path: str) -> None:
    assert is_unknown_on_api(await server.api.request("GET", path))


@pytest.mark.parametrize("path", ["/api/ns/q", "/token", "/token/", "/token/ns/t/limits", "/debug/pprof/", "/x"])
async def test_unknown_paths_of_the_admin_listener(server: Server, path: str) -> None:
    assert is_unknown_on_admin(await server.admin.request("GET", path))


async def test_no_head(server: Server) -> None:
    assert (await server.api.request("HEAD", "/api/ns/q/size")).status == 404
    assert (await server.admin.request("HEAD", "/version")).status == 404


async def test_every_error_carries_a_request_id_of_its_own(lmstfy: Lmstfy) -> None:
    errors = [
        await lmstfy.call("PUT", "q", delay="x"),
        await lmstfy.call("GET", "q", headers={"X-Token": "wrong-wrong-wrong-wrong"}),
        await lmstfy.call("GET", "q", headers={"X-Token": "nowhere:x"}),
        await lmstfy.call("GET", "q"),
    ]
    assert [response.status for response in errors] == [400, 401, 404, 404]
    assert all(has_request_id(response) for response in errors)
    assert len({response.headers["x-request-id"] for response in errors}) == len(errors)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "q/", 301),
        ("PUT", "q/", 307),
        ("DELETE", "q/", 307),
        ("GET", "q/peek/", 301),
        ("GET", "q/size/", 301),
        ("PUT", "q/bulk/", 307),
        ("DELETE", "q/job/some-id/", 307),
        ("GET", "q/deadletter/size/", 301),
    ],
)
async def test_a_slash_at_the_end_is_redirected(lmstfy: Lmstfy, method: str, path: str, status: int) -> None:
    response = await lmstfy.call(method, path, a="1 2")
    assert response.status == status
    assert response.headers["location"] == f"/api/{lmstfy.namespace}/{path[:-1]}?a=1+2"
    assert is_unknown_on_api(await lmstfy.call("PATCH", path)), "only where the method has a route"


async def test_an_escaped_slash_is_a_slash_and_redirects_do_not_loop(lmstfy: Lmstfy) -> None:
    assert (await lmstfy.call("GET", "q%2Fsize")).json()["queue"] == "q"
    response = await lmstfy.call("GET", "q%2F")
    assert (response.status, response.headers["location"]) == (301, f"/api/{lmstfy.namespace}/q")


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/pools/", 301), ("POST", "/token/ns/", 307)])
async def test_the_admin_listener_redirects_too(server: Server, method: str, path: str, status: int) -> None:
    response = await server.admin.request(method, path)
    assert (response.status, response.headers["location"]) == (status, path[:-1])


async def test_json_looks_as_lmstfy_writes_it(lmstfy: Lmstfy) -> None:
    size = await lmstfy.call("GET", "q/size")
    assert size.body == b'{"namespace":"%b","queue":"q","size":0}' % lmstfy.namespace.encode()
    assert size.headers["content-type"] == "application/json; charset=utf-8"
    await lmstfy.call(
        "PUT", "q", body=b"<&>", headers={"Enable-Job-Version": "YES", "Job-Attr-B": "<&>", "Job-Attr-A": 'ä"\\'}
    )
    peeked = (await lmstfy.call("GET", "q/peek")).body
    assert peeked.startswith(
        rb'{"attributes":{"a":"\xc3\xa4\"\\","b":"\u003c\u0026\u003e"},"data":"PCY+","elapsed_ms":'.replace(
            rb"\xc3\xa4", "ä".encode()
        )
    )
    assert [*map(str, (await lmstfy.call("GET", "q/peek")).json())] == [
        "attributes",
        "data",
        "elapsed_ms",
        "job_id",
        "namespace",
        "queue",
        "remain_tries",
        "ttl",
    ]
    assert [*map(str, await lmstfy.consume("q"))] == [
        "attributes",
        "data",
        "elapsed_ms",
        "job_id",
        "msg",
        "namespace",
        "queue",
        "remain_tries",
        "ttl",
    ]


async def test_what_the_admin_listener_says_about_itself(server: Server, lmstfy: Lmstfy) -> None:
    version = await server.admin.request("GET", "/version")
    assert list(version.json()) == ["build_commit", "build_date", "version"]
    assert version.body.startswith(b'{\n    "build_commit": ')
    pools = await server.admin.request("GET", "/pools")
    assert pools.body == b'[\n    "default",\n    "second"\n]'
    await lmstfy.publish("b")
    await lmstfy.publish("a")
    info = await server.admin.request("GET", "/info")
    assert info.headers["content-type"].startswith("text/plain")
    assert info.body.endswith(b"}\n")
    assert b'\n    "%b": [\n        "a",\n        "b"\n    ]' % lmstfy.namespace.encode() in info.body
    assert lmstfy.namespace not in (await server.admin.request("GET", "/info", query={"pool": "second"})).json()
    unknown = await server.admin.request("GET", "/info", query={"pool": "nowhere"})
    assert (unknown.status, unknown.body) == (200, b"")

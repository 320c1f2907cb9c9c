"""16. The token routes of the admin listener; limits, their validation, the 429, and slots given back."""

import hashlib
import itertools
import json
import re
from typing import Any

import pytest

from tests.plugins.until import until
from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server
from tests.protocols.lmstfy.wire import Response

FORM = {"Content-Type": "application/x-www-form-urlencoded"}

_numbers = itertools.count(1)


@pytest.fixture
def namespace() -> str:
    return f"admin-{next(_numbers)}"


def label(token: str) -> str:
    return hashlib.sha256(token.rpartition(":")[2].encode()).hexdigest()[:8]


async def create(server: Server, namespace: str, *, body: bytes = b"", **query: object) -> Response:
    return await server.admin.request("POST", f"/token/{namespace}", query=query, body=body, headers=FORM)


async def listed(server: Server, namespace: str, **query: object) -> Any:
    return (await server.admin.request("GET", f"/token/{namespace}", query=query)).json()["tokens"]


# --- creating


async def test_a_token_is_made_and_shown_once(server: Server, namespace: str) -> None:
    made = await create(server, namespace, description="mine <&>")
    token = made.json()["token"]
    assert made.status == 201
    assert re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{26}", token)
    assert made.body == b'{\n    "token": "%b"\n}' % token.encode()
    assert made.headers["content-type"] == "application/json; charset=utf-8"
    shown = await server.admin.request("GET", f"/token/{namespace}")
    assert (
        shown.body
        == b'{\n    "tokens": {\n        "%b": "mine \\u003c\\u0026\\u003e"\n    }\n}' % label(token).encode()
    )


@pytest.mark.parametrize(
    ("query", "body", "headers"),
    [
        ({"description": "one", "token": "own-token-of-20-chars"}, b"", {}),
        ({}, b"description=one&token=own-token-of-20-chars", FORM),
        ({"description": "two", "token": "x"}, b"description=one&token=own-token-of-20-chars", FORM),
        ({"description": "one"}, b"token=own-token-of-20-chars", FORM),
        (
            {},
            b'--b\r\nContent-Disposition: form-data; name="description"\r\n\r\none\r\n'
            b'--b\r\nContent-Disposition: form-data; name="token"\r\n\r\nown-token-of-20-chars\r\n--b--\r\n',
            {"Content-Type": "multipart/form-data; boundary=b"},
        ),
    ],
)
async def test_description_and_token_from_query_or_form(
    server: Server, namespace: str, query: dict[str, str], body: bytes, headers: dict[str, str]
) -> None:
    made = await server.admin.request("POST", f"/token/{namespace}", query=query, body=body, headers=headers)
    assert (made.status, made.json()) == (201, {"token": "own-token-of-20-chars"})
    assert await listed(server, namespace) == {label("own-token-of-20-chars"): "one"}


async def test_order_of_checks(server: Server, namespace: str) -> None:
    short, own, far = "x" * 19, "x" * 20, "nowhere:" + "x" * 20
    too_long, forbidden = "n" * 256, "n.s"
    for name, query, error in [
        (too_long, {"token": short}, "invalid description"),
        (too_long, {"description": "", "token": short}, "invalid description"),
        (too_long, {"description": "d", "token": short}, "the user token was too short"),
        (too_long, {"description": "d", "token": far}, "the namespace name was too long"),
        (forbidden, {"description": "d", "token": far}, "namespace name contains forbidden characters"),
        (namespace, {"description": "d", "token": far}, "the pool was not exists"),
        (namespace, {"description": "d", "pool": "nowhere"}, "the pool was not exists"),
        (namespace, {"description": "d", "scopes": "everything"}, "invalid scopes"),
    ]:
        response = await create(server, name, **query)
        assert (response.status, response.json()) == (400, {"error": error})
    assert (await create(server, namespace, description="d", token=own)).status == 201
    again = await create(server, namespace, description="other", token=own)
    assert (again.status, again.json()) == (400, {"error": "the token has already existed"})
    assert (await create(server, f"{namespace}-2", description="d", token=own)).status == 201


async def test_tokens_of_other_pools_carry_their_prefix(server: Server, namespace: str) -> None:
    by_query = (await create(server, namespace, description="a", pool="second")).json()["token"]
    by_prefix = (await create(server, namespace, description="b", pool="default", token="second:own-token-123")).json()
    assert by_query.startswith("second:")
    assert by_prefix == {"token": "second:own-token-123"}, "20 characters with the prefix, which wins over the query"
    assert await listed(server, namespace) == {}
    expected = {f"second:{label(by_query)}": "a", f"second:{label('own-token-123')}": "b"}
    assert await listed(server, namespace, pool="second") == expected
    default = (await create(server, namespace, description="c", pool="default")).json()["token"]
    assert await listed(server, namespace) == {label(default): "c"}
    assert await listed(server, namespace, pool="default") == {f"default:{label(default)}": "c"}
    assert (await server.admin.request("GET", f"/token/{namespace}", query={"pool": "nowhere"})).status == 400


# --- deleting


@pytest.mark.parametrize("by", ["token", "label"])
async def test_a_deleted_token_is_refused_and_its_limit_goes_with_it(server: Server, lmstfy: Lmstfy, by: str) -> None:
    name = lmstfy.token if by == "token" else label(lmstfy.token)
    path = f"/token/{lmstfy.namespace}/{name}"
    await set_limit(lmstfy, read=5, write=5, interval=60)
    assert (await lmstfy.call("GET", "q/peek")).status == 404
    for _ in range(2):
        assert (await server.admin.request("DELETE", path, query={"pool": "nowhere"})).status == 204
    assert (await lmstfy.call("GET", "q/peek")).json() == {"error": "invalid token"}
    assert (await server.admin.request("GET", f"/token/{lmstfy.namespace}/{lmstfy.token}/limit")).status == 404
    assert await listed(server, lmstfy.namespace) == {}
    assert (await server.admin.request("DELETE", f"/token/{lmstfy.namespace}/nowhere:x")).status == 400


async def test_scopes(server: Server, lmstfy: Lmstfy) -> None:
    routes = {
        "write": [("PUT", "q"), ("PUT", "q/bulk"), ("PUT", "q/job/x"), ("DELETE", "q/job/x")],
        "read": [("GET", "q"), ("GET", "q/peek"), ("GET", "q/job/x"), ("GET", "q/deadletter"), ("DELETE", "q/job/x")],
        "admin": [("DELETE", "q"), ("PUT", "q/deadletter"), ("DELETE", "q/deadletter")],
    }
    every = {route for group in routes.values() for route in group}
    for scope, allowed in routes.items():
        made = await create(server, lmstfy.namespace, description=scope, scopes=scope)
        token = made.json()["token"]
        for method, path in sorted(every):
            response = await lmstfy.call(method, path, headers={"X-Token": token})
            if (method, path) in allowed:
                assert response.status not in (401, 403), (scope, method, path)
            else:
                assert (response.status, response.json()) == (403, {"error": "the token does not allow this"})


# --- limits


async def set_limit(lmstfy: Lmstfy, *, method: str = "POST", token: str = "", **limit: int) -> Response:
    path = f"/token/{lmstfy.namespace}/{token or lmstfy.token}/limit"
    return await lmstfy.admin.request(method, path, body=json.dumps(limit).encode())


async def test_limits_can_be_added_replaced_shown_and_deleted(lmstfy: Lmstfy) -> None:
    path = f"/token/{lmstfy.namespace}/{lmstfy.token}/limit"
    missing = await lmstfy.admin.request("GET", path)
    assert (missing.status, missing.body) == (404, b"null")
    first, second = {"interval": 60, "read": 1, "write": 2}, {"interval": 30, "read": 3, "write": -1}
    added = await set_limit(lmstfy, **first)
    assert (added.status, added.json()) == (201, {"limiter": first})
    again = await set_limit(lmstfy, **second)
    error = f"throttler token({label(lmstfy.token)}) has already exists"
    assert (again.status, again.json()) == (500, {"error": error})
    assert (await lmstfy.admin.request("GET", path)).body == b'{"interval":60,"read":1,"write":2}'
    put = await set_limit(lmstfy, method="PUT", token=label(lmstfy.token), **second)
    assert (put.status, put.json()) == (200, {"limiter": second})
    assert (await lmstfy.admin.request("GET", path)).json() == second
    every = (await lmstfy.admin.request("GET", "/limits", query={"force_update": "true"})).json()
    mine = [one for one in every if one["namespace"] == lmstfy.namespace]
    assert mine == [{"namespace": lmstfy.namespace, "token": label(lmstfy.token), "limiter": second}]
    for _ in range(2):
        deleted = await lmstfy.admin.request("DELETE", path)
        assert (deleted.status, deleted.body) == (200, b'{"msg":"success"}')
    assert (await lmstfy.admin.request("GET", path)).status == 404


async def test_a_limit_of_another_pool_carries_the_prefix(server: Server, lmstfy: Lmstfy) -> None:
    token = (await create(server, lmstfy.namespace, description="d", pool="second")).json()["token"]
    assert (await set_limit(lmstfy, token=token, read=1, interval=9)).status == 201
    every = (await lmstfy.admin.request("GET", "/limits")).json()
    assert [one["token"] for one in every if one["namespace"] == lmstfy.namespace] == [f"second:{label(token)}"]


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_validation(lmstfy: Lmstfy, method: str) -> None:
    path = f"/token/{lmstfy.namespace}/{lmstfy.token}/limit"
    for broken in (b"", b"{", b"[]", b'{"read":"x"}', b'{"read":9223372036854775808}', b"x", b"[" * 10_000):
        response = await lmstfy.admin.request(method, path, body=broken)
        assert (response.status, response.json()) == (400, {"error": {}})
        assert response.headers["content-type"].startswith("text/plain")
    empty = await set_limit(lmstfy, method=method, interval=-1)
    assert (empty.status, empty.json()) == (400, {"limiter": {"interval": -1, "read": 0, "write": 0}})
    no_interval = await set_limit(lmstfy, method=method, read=1)
    assert (no_interval.status, no_interval.json()) == (400, {"error": "interval should be > 0"})
    negative = await set_limit(lmstfy, method=method, read=1, interval=-1)
    assert (negative.status, negative.json()) == (500, {"error": "limiter interval should be >= 0"})
    unlimited = await set_limit(lmstfy, method=method, read=-1, write=-1, interval=1)
    assert unlimited.status in (200, 201)


async def test_the_limit_of_publishing(lmstfy: Lmstfy) -> None:
    await set_limit(lmstfy, read=0, write=4, interval=60)
    old = await lmstfy.publish("q")
    assert (await lmstfy.call("PUT", "q/bulk", body=b"[1,2,3]")).status == 201, "one request, whatever its size"
    assert (await lmstfy.call("PUT", f"q/job/{old}", body=b"x")).status == 201, "a republish counts as one"
    assert (await lmstfy.call("PUT", "q")).status == 201
    for path in ("q", "q/bulk", "q/job/x"):
        refused = await lmstfy.call("PUT", path, body=b"[1]")
        text = f"token({label(lmstfy.token)}) produce reach the limit rate, please retry later"
        assert (refused.status, refused.json()) == (429, {"msg": text})
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert lmstfy.token.encode() not in refused.body
    assert len(await lmstfy.consume("q", count=100)) == 5, "read is unlimited, and what was refused is not there"


async def test_the_limit_of_consuming(lmstfy: Lmstfy) -> None:
    for _ in range(5):
        await lmstfy.publish("q")
    await set_limit(lmstfy, read=2, write=-1, interval=60)
    assert [(await lmstfy.call("GET", "q", count=2)).status for _ in range(4)] == [200, 200, 429, 429]
    refused = await lmstfy.call("GET", "q")
    text = f"token({label(lmstfy.token)}) consume reach the limit rate, please retry later"
    assert refused.json() == {"msg": text}
    assert (await lmstfy.call("GET", "q/peek")).status == 200, "peeks are free"


async def test_a_request_that_came_to_nothing_gives_its_slot_back(lmstfy: Lmstfy) -> None:
    await set_limit(lmstfy, read=2, write=2, interval=60)
    for _ in range(5):
        assert (await lmstfy.call("GET", "empty")).status == 404
        assert (await lmstfy.call("GET", "empty", ttr="x")).status == 400
        assert (await lmstfy.call("PUT", "q", delay="x")).status == 400
        assert (await lmstfy.call("PUT", "q/bulk", body=b"[]")).status == 400
    assert [(await lmstfy.call("PUT", "q")).status for _ in range(3)] == [201, 201, 429]
    assert [(await lmstfy.call("GET", "q")).status for _ in range(3)] == [200, 200, 429]


async def is_answered(lmstfy: Lmstfy, status: int) -> bool:
    answer = await lmstfy.call("PUT", "q")
    assert answer.status != 429 or answer.headers["retry-after"] == "1"
    return answer.status == status


async def test_a_window_ends_and_a_limit_can_be_lifted(lmstfy: Lmstfy) -> None:
    await set_limit(lmstfy, write=1, interval=1)
    for status in (201, 429, 201, 429):  # a slow machine may find itself in a later window; all of them end
        await until(lambda status=status: is_answered(lmstfy, status), every_s=0.05)
    await lmstfy.admin.request("DELETE", f"/token/{lmstfy.namespace}/{lmstfy.token}/limit")
    assert [(await lmstfy.call("PUT", "q")).status for _ in range(3)] == [201] * 3


async def test_each_token_keeps_its_own_limit(server: Server, lmstfy: Lmstfy) -> None:
    other = await Lmstfy.enter(server.api, server.admin, lmstfy.namespace)
    await set_limit(lmstfy, write=1, interval=60)
    await set_limit(other, write=3, interval=60)
    assert [(await other.call("PUT", "q")).status for _ in range(4)] == [201] * 3 + [429]
    assert [(await lmstfy.call("PUT", "q")).status for _ in range(2)] == [201, 429]


# --- the access log's switch


async def test_the_access_log_can_be_switched(server: Server) -> None:
    async def status() -> object:
        return (await server.admin.request("GET", "/accesslog")).json()["status"]

    assert await status() == "disabled"
    for word, expected in (("enable", "enabled"), ("disable", "disabled")):
        switched = await server.admin.request("POST", "/accesslog", query={"status": word})
        assert (switched.status, switched.json()) == (200, {"status": expected})
        assert await status() == expected
    refused = await server.admin.request("POST", "/accesslog", query={"status": "on"})
    assert (refused.status, refused.json()) == (400, {"error": "invalid status"})

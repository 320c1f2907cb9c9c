"""3. Names, the laxer rule of consume, and the order name -> pool -> token -> throttle -> handler."""

import pytest

from tests.protocols.lmstfy.client import Lmstfy

TOO_LONG = "namespace or queue name too long"
BAD_NAMESPACE = "namespace name contains forbidden characters"
BAD_QUEUE = "queue name contains forbidden characters"
NO_POOL = {"X-Token": "nowhere:x"}

NAMED_ROUTES = [
    ("PUT", ""),
    ("PUT", "/bulk"),
    ("PUT", "/job/x"),
    ("GET", "/peek"),
    ("GET", "/job/x"),
    ("DELETE", "/job/x"),
    ("DELETE", ""),
    ("GET", "/size"),
    ("GET", "/deadletter"),
    ("PUT", "/deadletter"),
    ("DELETE", "/deadletter"),
    ("GET", "/deadletter/size"),
]


@pytest.mark.parametrize(("method", "tail"), NAMED_ROUTES)
async def test_names_are_checked_before_the_pool(lmstfy: Lmstfy, method: str, tail: str) -> None:
    long = "x" * 256
    for namespace, queue, error in [
        ("ns", long, TOO_LONG),
        (long, "q", TOO_LONG),
        (long, "q.q", TOO_LONG),
        ("n.s", "q.q", BAD_NAMESPACE),
        ("n,s", "q", BAD_NAMESPACE),
        ("n%20s", "q", BAD_NAMESPACE),
        ("ns%0A", "q", BAD_NAMESPACE),
        ("n%C3%A4", "q", BAD_NAMESPACE),
        ("ns", "q.q", BAD_QUEUE),
        ("ns", "a,b", BAD_QUEUE),
        ("ns", "_q", BAD_QUEUE),
        ("ns", "q%0A", BAD_QUEUE),
        ("ns", "q%FF", BAD_QUEUE),
        ("ns", "q%00", BAD_QUEUE),
        ("ns", "%C3%A4" * 128, TOO_LONG),
    ]:
        response = await lmstfy.api.request(method, f"/api/{namespace}/{queue}{tail}", headers=NO_POOL)
        assert (response.status, response.json()) == (400, {"error": error}), (namespace, queue)
    for namespace, queue in [("x" * 255, "x" * 255), ("_-9aZ", "9aZ_-"), ("_", "-_")]:
        response = await lmstfy.api.request(method, f"/api/{namespace}/{queue}{tail}", headers=NO_POOL)
        assert (response.status, response.json()) == (404, {"error": "pool not found"})


async def test_consume_has_the_laxer_rule(lmstfy: Lmstfy) -> None:
    for namespace, queues, error in [
        ("n.s", "q", BAD_NAMESPACE),
        ("ns", "q.q", BAD_QUEUE),
        ("ns", "a,b.c", BAD_QUEUE),
        ("ns", "q%0A", BAD_QUEUE),
        ("ns", "q%20", BAD_QUEUE),
    ]:
        response = await lmstfy.api.request("GET", f"/api/{namespace}/{queues}", headers=NO_POOL)
        assert (response.status, response.json()) == (400, {"error": error}), queues
    for queues in ("_q", "a,b", "_a,,_b,", ",,", "x" * 300, ",".join(["x" * 300, "q"])):
        response = await lmstfy.api.request("GET", f"/api/ns/{queues}", headers=NO_POOL)
        assert (response.status, response.json()) == (404, {"error": "pool not found"}), queues
    await lmstfy.publish("q", b"found")
    assert await lmstfy.take(f"{'x' * 300},,_nothing,q,q") == b"found"
    assert await lmstfy.consume("x" * 300) is None
    many = await lmstfy.api.request("GET", f"/api/ns/{'q,' * 1001}", headers=NO_POOL)
    assert (many.status, many.json()) == (400, {"error": "too many queues, cannot exceed 1000"})


async def test_the_order_is_name_pool_token_throttle_handler(lmstfy: Lmstfy) -> None:
    limit = {"read": 1, "write": 1, "interval": 60}
    path = f"/token/{lmstfy.namespace}/{lmstfy.token}/limit"
    assert (await lmstfy.admin.request("POST", path, body=str(limit).replace("'", '"').encode())).status == 201
    assert (await lmstfy.call("PUT", "q")).status == 201
    bad = {"delay": "x"}
    responses = [
        await lmstfy.call("PUT", "q.q", headers={"X-Token": "nowhere:wrong"}, **bad),
        await lmstfy.call("PUT", "q", headers={"X-Token": "nowhere:wrong"}, **bad),
        await lmstfy.call("PUT", "q", headers={"X-Token": "wrong"}, **bad),
        await lmstfy.call("PUT", "q", **bad),
    ]
    assert [response.status for response in responses] == [400, 404, 401, 429]


async def test_names_are_decoded_before_they_are_matched(lmstfy: Lmstfy) -> None:
    assert (await lmstfy.call("PUT", "%71", body=b"decoded")).status == 201
    assert await lmstfy.take("q") == b"decoded"

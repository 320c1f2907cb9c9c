"""2. The token: header, then query; pool:token; 404 for the pool before 401 for the token; public sizes."""

import pytest

from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server

WRONG = "wrong-wrong-wrong-wrong"
TOKEN_ROUTES = [
    ("PUT", "q"),
    ("PUT", "q/bulk"),
    ("PUT", "q/job/x"),
    ("GET", "q"),
    ("GET", "q/peek"),
    ("GET", "q/job/x"),
    ("DELETE", "q/job/x"),
    ("DELETE", "q"),
    ("GET", "q/deadletter"),
    ("PUT", "q/deadletter"),
    ("DELETE", "q/deadletter"),
]
PUBLIC_ROUTES = [("GET", "q/size"), ("GET", "q/deadletter/size")]


async def test_the_header_wins_over_the_query(lmstfy: Lmstfy) -> None:
    path = f"/api/{lmstfy.namespace}/q/peek"
    answers = {
        (header, query): (
            await lmstfy.api.request("GET", path, headers={"X-Token": header}, query={"token": query})
        ).json()["error"]
        for header in ("", WRONG, lmstfy.token)
        for query in ("", WRONG, lmstfy.token)
    }
    assert answers == {
        ("", ""): "token not found",
        ("", WRONG): "invalid token",
        ("", lmstfy.token): "the queue is empty",
        (WRONG, ""): "invalid token",
        (WRONG, WRONG): "invalid token",
        (WRONG, lmstfy.token): "invalid token",
        (lmstfy.token, ""): "the queue is empty",
        (lmstfy.token, WRONG): "the queue is empty",
        (lmstfy.token, lmstfy.token): "the queue is empty",
    }


@pytest.mark.parametrize(("method", "path"), TOKEN_ROUTES)
async def test_every_route_but_the_sizes_asks_for_a_token(lmstfy: Lmstfy, method: str, path: str) -> None:
    for token, status, error in [
        ("", 401, "token not found"),
        ("default:", 401, "token not found"),
        (WRONG, 401, "invalid token"),
        (f"default:{WRONG}", 401, "invalid token"),
        (f"second:{lmstfy.token}", 401, "invalid token"),
        (f"nowhere:{lmstfy.token}", 404, "pool not found"),
        (f":{lmstfy.token}", 404, "pool not found"),
        (f"nowhere:default:{lmstfy.token}", 404, "pool not found"),
    ]:
        response = await lmstfy.call(method, path, headers={"X-Token": token})
        assert (response.status, response.body) == (status, b'{"error":"%b"}' % error.encode()), token


@pytest.mark.parametrize(("method", "path"), PUBLIC_ROUTES)
async def test_sizes_need_no_token_but_an_existing_pool(lmstfy: Lmstfy, method: str, path: str) -> None:
    for token, status in [("", 200), (WRONG, 200), (f"second:{WRONG}", 200), ("nowhere:x", 404)]:
        assert (await lmstfy.call(method, path, headers={"X-Token": token})).status == status


async def test_a_token_is_for_one_namespace_and_all_its_queues(lmstfy: Lmstfy, server: Server) -> None:
    other = await Lmstfy.enter(server.api, server.admin, f"{lmstfy.namespace}-other")
    for queue in ("a", "b"):
        await lmstfy.publish(queue)
    assert (await other.call("PUT", "a", headers={"X-Token": lmstfy.token})).status == 401
    assert (await lmstfy.call("PUT", "a", headers={"X-Token": other.token})).status == 401


async def test_the_prefix_routes_to_the_pool(lmstfy: Lmstfy) -> None:
    made = await lmstfy.admin.request(
        "POST", f"/token/{lmstfy.namespace}", query={"description": "d", "pool": "second"}
    )
    second = made.json()["token"]
    assert second.startswith("second:")
    await lmstfy.call("PUT", "q", body=b"second", headers={"X-Token": second})
    assert await lmstfy.size("q") == 0
    assert (await lmstfy.call("GET", "q/size", headers={"X-Token": "second:"})).json()["size"] == 1
    assert await lmstfy.consume("q") is None
    assert (await lmstfy.call("GET", "q", headers={"X-Token": second})).status == 200


async def test_default_may_be_spelt_out(lmstfy: Lmstfy) -> None:
    await lmstfy.publish("q")
    assert (await lmstfy.call("GET", "q", headers={"X-Token": f"default:{lmstfy.token}"})).status == 200

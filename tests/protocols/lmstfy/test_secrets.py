"""A token never appears in logs, metrics or errors."""

import logging

import pytest

from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server
from tests.protocols.lmstfy.test_16_tokens_and_limits import set_limit


async def test_nowhere(lmstfy: Lmstfy, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await server.admin.request("POST", "/accesslog", query={"status": "enable"})
    bodies: list[bytes] = []
    try:
        await set_limit(lmstfy, write=1, interval=60)
        bodies.append((await set_limit(lmstfy, write=1, interval=60)).body)
        for token in (lmstfy.token, f"second:{lmstfy.token}", f"nowhere:{lmstfy.token}", f"{lmstfy.token}x"):
            path = f"/api/{lmstfy.namespace}/q"
            for _ in range(2):
                response = await server.api.request("PUT", path, query={"a": 1, "token": token})
                bodies.append(response.body + repr(response.headers).encode())
                response = await server.api.request("PUT", path, headers={"X-Token": token})
                bodies.append(response.body + repr(response.headers).encode())
        bodies.append((await server.admin.request("GET", "/limits")).body)
        bodies.append((await server.admin.request("GET", f"/token/{lmstfy.namespace}")).body)
        bodies.append((await server.admin.request("GET", "/metrics")).body)
        await server.admin.request("DELETE", f"/token/{lmstfy.namespace}/{lmstfy.token}")
    finally:
        await server.admin.request("POST", "/accesslog", query={"status": "disable"})
    lines = [record for record in caplog.records if record.name == "duetime.access"]
    assert any(vars(record)["query"] == "a=1&token=***" for record in lines)
    assert any(vars(record)["path"] == f"/token/{lmstfy.namespace}/***" for record in lines)
    assert {vars(record)["code"] for record in lines} >= {201, 401, 404, 429}
    assert all(vars(record)["req_id"] and vars(record)["ip"] == "127.0.0.1" for record in lines)
    assert all(lmstfy.token.encode() not in body for body in bodies)
    assert all(lmstfy.token not in repr(vars(record)) for record in caplog.records)

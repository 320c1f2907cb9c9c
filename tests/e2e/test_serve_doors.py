"""`duetime serve` with the doors of php-delayqueue and ouqiang: a message from its TCP add to its callback."""

import asyncio
import json
import socket

import httpx
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tests.doors.v1.server import listen
from tests.plugins.served import ServedProcess, StartServer

DOORS = {
    "DUETIME_TCP_DOOR": "true",
    "DUETIME_TCP_PORT": "0",
    "DUETIME_OUQIANG_DOOR": "true",
    "DUETIME_OUQIANG_PORT": "0",
    "DUETIME_CALLBACK_ALLOW": "127.0.0.0/8",
}


def port(server: ServedProcess, label: str) -> int:
    return int(server.address(label).rpartition(":")[2])


def say(connection: socket.socket, **request: object) -> dict[str, object]:
    text = json.dumps(request).encode()
    connection.sendall(b"%04d" % len(text) + text)
    stream = connection.makefile("rb")
    return json.loads(stream.read(int(stream.read(4))))


async def test_from_a_tcp_add_to_the_callback(start_server: StartServer) -> None:
    called: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def receiver(scope: Scope, receive: Receive, send: Send) -> None:
        called.put_nowait(dict(Request(scope).query_params))
        await PlainTextResponse("ok")(scope, receive, send)

    server = start_server(**DOORS)
    async with listen(receiver) as at:
        topic = {"topic": "order", "callback": f"{at.url}/paid"}
        made = await asyncio.to_thread(httpx.post, f"{server.api}/v1/namespaces/default/topics", json=topic)
        assert made.status_code == 201, made.text
        with socket.create_connection(("127.0.0.1", port(server, "TCP"))) as connection:
            answer = await asyncio.to_thread(say, connection, cmd="add", topic="order", id="1", body={"order": 7})
        assert answer == {"code": 1, "msg": "succ", "data": []}
        async with asyncio.timeout(20):
            got = await called.get()
    assert got["order"] == "7"
    assert set(got) == {"order", "notify_time", "dq_set_time"}
    assert server.stop()[0] == 0


def test_ouqiangs_paths_are_on_a_port_of_their_own(start_server: StartServer) -> None:
    server = start_server(**DOORS)
    url = f"http://127.0.0.1:{port(server, 'ouqiang')}"
    job = {"topic": "order", "id": "1", "delay": 1, "ttr": 10, "body": "hello"}
    assert httpx.post(f"{url}/push", json=job).json()["code"] == 0
    popped = httpx.post(f"{url}/pop", json={"topic": "order"}, timeout=30).json()
    assert popped["data"] == {"id": "1", "body": "hello"}
    assert httpx.post(f"{url}/finish", json={"id": "1"}).json()["code"] == 0
    assert server.stop()[0] == 0


def test_both_are_off_by_default(start_server: StartServer) -> None:
    server = start_server()
    assert not [line for line in server.message if "TCP" in line or "ouqiang" in line]

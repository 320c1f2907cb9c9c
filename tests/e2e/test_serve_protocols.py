"""`duetime serve` with the protocols of php-delayqueue and ouqiang: a message from its TCP add to its callback."""

import asyncio
import json
import signal
import socket
import struct
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from duetime.model.names import Queue
from duetime.stores.open import open_store
from tests.courier.receiver import Receiver, Says
from tests.plugins.passwords import hashed
from tests.plugins.served import ServedProcess, StartServer
from tests.plugins.until import until
from tests.protocols.v1.server import listen

PROTOCOLS = {
    "DUETIME_TCP_ENABLED": "true",
    "DUETIME_TCP_PORT": "0",
    "DUETIME_OUQIANG_ENABLED": "true",
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

    server = start_server(**PROTOCOLS)
    async with listen(receiver) as at:
        topic = {"topic": "order", "callback": f"{at.url}/paid", "method": "GET", "php_fields": True}
        made = await asyncio.to_thread(httpx.post, f"{server.api}/v1/namespaces/default/topics", json=topic)
        assert made.status_code == 201, made.text
        with socket.create_connection(("127.0.0.1", port(server, "TCP"))) as connection:
            answer = await asyncio.to_thread(say, connection, cmd="add", topic="order", id="1", body={"order": 7})
        assert answer == {"code": 1, "msg": "succ", "data": []}
        async with asyncio.timeout(60):
            got = await called.get()
    assert got["order"] == "7"
    assert set(got) == {"order", "notify_time", "dq_set_time"}
    counters: dict[str, int] = {}

    async def counted() -> bool:
        reply = await asyncio.to_thread(httpx.get, f"{server.api}/v1/namespaces/default/topic-counters")
        counters.update(reply.json()["counters"])
        return counters.get("1:total_notfiy") == 1

    await until(counted)
    assert counters["1:total_write"] == counters["redis:default:dq_notify_total_nums"] == 1
    assert {key.split(":")[1] for key in counters if key.startswith("1:")} == {
        "total_write",
        "total_notfiy",
        "total_del",
        "tw",
        "tn",
    }
    assert server.stop()[0] == 0


def test_clients_that_go_away_during_an_add_leave_no_error_in_the_log(start_server: StartServer) -> None:
    server = start_server(**PROTOCOLS)
    topic = {"topic": "order", "callback": "http://127.0.0.1:9/", "delay": "1h"}
    httpx.post(f"{server.api}/v1/namespaces/default/topics", json=topic).raise_for_status()
    text = json.dumps({"cmd": "add", "topic": "order", "id": "1", "body": {}}).encode()
    clients = [socket.create_connection(("127.0.0.1", port(server, "TCP"))) for _ in range(50)]
    for client in clients:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close sends a reset
        client.sendall((b"%04d" % len(text) + text) * 5)
    for client in clients:
        client.close()
    with socket.create_connection(("127.0.0.1", port(server, "TCP"))) as last:
        assert say(last, cmd="add", topic="order", id="2", body={})["code"] == 1
    code, errors = server.stop()
    assert code == 0
    assert "Traceback" not in errors, errors


def test_the_client_in_the_documentation_works(start_server: StartServer) -> None:
    page = (Path(__file__).parents[2] / "docs" / "delayqueue.md").read_text()
    code = page.partition("<!-- tcp client: begin -->")[2].partition("<!-- tcp client: end -->")[0]
    scope: dict[str, Any] = {}
    exec(code.strip().removeprefix("```py").removesuffix("```"), scope)
    server = start_server(**PROTOCOLS)
    topic = {"topic": "order", "callback": "http://127.0.0.1:9/", "delay": "1h"}
    httpx.post(f"{server.api}/v1/namespaces/default/topics", json=topic).raise_for_status()
    client = scope["DelayQueueClient"](port=port(server, "TCP"))
    assert client.call("add", "order", "1001", body={"sum": 5}) == {"code": 1, "msg": "succ", "data": []}
    assert client.call("get", "order", "1001")["data"]["sum"] == 5
    assert client.call("del", "order", "1001")["code"] == 1
    with pytest.raises(ValueError, match="9,999"):
        client.call("add", "order", "1", body="x" * 10_000)
    client.close()


async def test_usr2_finishes_the_call_that_runs_and_starts_no_other(start_server: StartServer, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    go = asyncio.Event()
    async with Receiver() as receiver:
        receiver.answer = lambda call: Says(hold=go)
        server = await asyncio.to_thread(start_server, "--store", url, **PROTOCOLS)
        topic = {"topic": "order", "callback": receiver.url, "method": "GET", "in_flight": 1, "timeout": "60s"}
        await asyncio.to_thread(httpx.post, f"{server.api}/v1/namespaces/default/topics", json=topic)
        with socket.create_connection(("127.0.0.1", port(server, "TCP"))) as connection:
            for number in ("1", "2"):
                await asyncio.to_thread(say, connection, cmd="add", topic="order", id=number, body={"n": number})
            await receiver.got(1)
            server.send(signal.SIGUSR2)
            assert await asyncio.to_thread(connection.recv, 1) == b""  # it was idle
        go.set()
        code, _ = await asyncio.to_thread(server.wait)
        assert code == 0
        assert [call.fields["n"] for call in receiver.calls] == ["1"]
    store = await open_store(url)
    done, waits = await store.get(Queue("default", "order"), ["1", "2"])
    await store.close()
    assert done is None
    assert waits is not None
    assert (waits.state, waits.used) == ("ready", 0)


def test_ouqiangs_paths_are_on_a_port_of_their_own(start_server: StartServer) -> None:
    server = start_server(**PROTOCOLS)
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


FOREIGN: list[dict[str, str]] = [
    {"Host": "evil.example"},
    {"Host": "evil.example:7777"},
    {"Host": "192.168.1.5"},
    {"Host": "localhost.evil.example"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"X-Forwarded-For": "127.0.0.1"},
    {"X-Forwarded-Proto": "https"},
    {"Forwarded": "for=127.0.0.1"},
    {"Via": "1.1 proxy"},
]
LOCAL: list[dict[str, str]] = [
    {},
    {"Host": "localhost"},
    {"Host": "[::1]:7777"},
    {"Origin": "http://127.0.0.1:7777"},
    {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "none"},
]


def test_ports_without_a_password_refuse_web_pages(start_server: StartServer) -> None:
    server = start_server(DUETIME_OUQIANG_ENABLED="true", DUETIME_OUQIANG_PORT="0")
    asks: list[tuple[str, str, str]] = [
        ("GET", server.api + "/api/ns/q/size", ""),
        ("POST", server.api + "/v1/queues/ns/q/jobs", '{"body": "x"}'),
        ("POST", server.admin + "/token/ns?description=x", ""),
        ("POST", server.address("ouqiang") + "/push", '{"topic": "t", "id": "1", "delay": 1, "ttr": 1, "body": "x"}'),
    ]
    for method, url, body in asks:
        for headers in FOREIGN:
            refused = httpx.request(method, url, content=body, headers=headers)
            assert refused.status_code == 403, (url, headers, refused.text)
        for headers in LOCAL:
            assert httpx.request(method, url, content=body, headers=headers).status_code in (200, 201), (url, headers)
    assert refused_type(server.api + "/v1/queues/ns/q") == "application/problem+json"


def refused_type(url: str) -> str:
    return httpx.get(url, headers=FOREIGN[0]).headers["content-type"]


def test_ports_with_a_password_serve_any_host_that_knows_it(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "duetime.toml").write_text(f'[accounts]\nadmin = "{hashed("secret")}"\n')
    server = start_server(DUETIME_OUQIANG_ENABLED="true", DUETIME_OUQIANG_PORT="0", DUETIME_OUQIANG_TOKEN="t0ken")
    for headers in FOREIGN:
        assert httpx.get(server.address("ouqiang") + "/get?token=t0ken", headers=headers).status_code == 200
        for path in ("/info", "/metrics"):
            assert httpx.get(server.admin + path, headers=headers).status_code == 401, (path, headers)
            assert httpx.get(server.admin + path, headers=headers, auth=("admin", "secret")).status_code == 200
    for headers in LOCAL:
        assert httpx.get(server.admin + "/info", headers=headers).status_code == 200


def test_no_other_site_writes_with_the_password_that_a_browser_remembers(
    start_server: StartServer, tmp_path: Path
) -> None:
    (tmp_path / "duetime.toml").write_text(f'[accounts]\nadmin = "{hashed("secret")}"\n')
    server = start_server(DUETIME_PHP_ADMIN_TOKEN="t0ken")
    port = server.admin.rpartition(":")[2]
    other_sites: list[dict[str, str]] = [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": server.admin, "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ]
    own_pages: list[dict[str, str]] = [
        {},
        {"Origin": server.admin},
        {"Origin": f"http://admin.example:{port}", "Host": f"admin.example:{port}"},
        {"Origin": f"https://admin.example:{port}", "Sec-Fetch-Site": "same-origin"},
    ]
    writes = [
        ("POST", "/token/ns?description=x"),
        ("PUT", "/token/ns/x/limit"),
        ("DELETE", "/token/ns/x"),
        ("POST", "/add.php?token=t0ken&op=none"),
    ]
    for method, path in writes:
        url, body = server.admin + path, '{"read": 1, "interval": 1}'
        for headers in other_sites:
            refused = httpx.request(method, url, content=body, headers=headers, auth=("admin", "secret"))
            assert refused.status_code == 403, (method, path, headers)
        for headers in own_pages:
            done = httpx.request(method, url, content=body, headers=headers, auth=("admin", "secret"))
            assert done.status_code in (200, 201, 204), (method, path, headers)

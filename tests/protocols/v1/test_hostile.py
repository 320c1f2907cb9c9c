"""Names and values that an enemy chose, on every route and over a real socket: refused as a problem, never a failure.

The bodies go out as bytes, because no honest client would encode them.
"""

import asyncio
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from duetime.protocols.v1.routes import ROUTES, Route
from tests.protocols.v1.server import Served

DEEP = 100_000
NUMBERS = [
    b"9" * 5_000, b"-" + b"9" * 5_000, b"1e999", b"-1e999", b"1e-999", b"NaN", b"Infinity", b"-1",
    b"9223372036854775808", b"18446744073709551616", b"0.1e1", b"true", b"null", b'"' + b"9" * 5_000 + b's"',
    b'"9' + b"." * 10 + b'9"', b'"1e999"', b'"nan"', b'"inf"', b'"2999-99-99T99:99:99Z"',
    b'"0000-01-01T00:00:00+99:99"', b'"99999999-01-01T00:00:00Z"', '"٣"'.encode(), b'["a"]', b'{"a": 1}',
]  # fmt: skip
TEXTS = [b'"\\ud800"', b'"\\udfff\\ud800"', b'"\xff"', b'"a\\r\\nX-Evil: 1"', b'"\\u0000"', b'"' + b"x" * 70_000 + b'"']
FIELDS = [
    b"body", b"body_b64", b"id", b"ids", b"delay", b"due_at", b"ttl", b"tries", b"priority", b"attributes", b"born",
    b"attempt", b"if_exists", b"jobs", b"atomic", b"mark", b"limit", b"ttr", b"wait", b"queues", b"lease", b"leases",
    b"error", b"states", b"paused", b"max_jobs", b"name", b"by", b"life", b"topic", b"callback", b"fix_time",
    b"retry_if",
]  # fmt: skip
WHOLE = [
    b"[" * DEEP,
    b'{"body": ' * DEEP,
    b'{"body": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    b'{"jobs": [' + b'{"body": ' * 2_000 + b"1" + b"}" * 2_000 + b"]}",
    b'{"attributes": {"\\ud800": "x"}}',
    b'{"attributes": {"a": "\\ud800"}, "jobs": [{"attributes": {"a": "\xff"}}]}',
    b'{"id": "a", "id": "b", "id": 1}',
    b'{"lease": {"id": "a", "born": 1e999, "attempt": -1}}',
    b'{"leases": [{"id": "\\ud800", "born": 0, "attempt": 0}]}',
    b'{"mark": {"name": "\\u0000", "digest": "zz", "life": 1}, "jobs": [{}]}',
    b"\xff\xfe{}",
    b"\xef\xbb\xbf{}",
    b"",
    b"nul",
]


@pytest.fixture(autouse=True)
def _no_tracebacks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [record.getMessage() for record in caplog.get_records("call") if record.exc_info]


def address(route: Route, name: str = "mail") -> str:
    return route.path.format(namespace="shop", queue=name, topic=name, schedule=name, id=name)


def is_sound(reply: httpx.Response) -> bool:
    """Done, or refused as a problem of the caller's own; a full or failing server is neither."""
    if reply.status_code < 400:
        return True
    return reply.status_code < 500 and reply.headers["content-type"] == "application/problem+json"


async def odd_replies(http: httpx.AsyncClient, route: Route, bodies: list[bytes]) -> list[tuple[int, bytes, str]]:
    odd: list[tuple[int, bytes, str]] = []
    for body in bodies:
        reply = await http.request(route.method, address(route), content=body)
        if not is_sound(reply):
            odd.append((reply.status_code, body[:60], reply.text[:200]))
    return odd


TAKING = [route for route in ROUTES if route.takes and route.name not in ("call", "test_topic")]


@pytest.mark.parametrize("route", TAKING, ids=lambda route: route.name)
async def test_whole_bodies(http: httpx.AsyncClient, route: Route) -> None:
    assert await odd_replies(http, route, WHOLE) == []


@pytest.mark.parametrize("route", TAKING, ids=lambda route: route.name)
async def test_single_fields(http: httpx.AsyncClient, route: Route) -> None:
    needed = {
        "lease": b'"lease": {"id": "a", "born": 1, "attempt": 1}',
        "ids": b'"ids": ["a"]',
        "jobs": b'"jobs": [{}]',
        "queues": b'"queues": ["mail"]',
        "name": b'"name": "n"',
        "topic": b'"topic": "t"',
        "callback": b'"callback": "http://example.com/"',
        "states": b'"states": ["dead"]',
        "leases": b'"leases": []',
    }
    assert route.takes is not None
    fields = route.takes.__struct_fields__
    known = [field for field in FIELDS if field.decode() in fields]
    bodies: list[bytes] = []
    for field in known:
        others = [
            text for name, text in needed.items() if name != field.decode() and name in route.takes.__struct_fields__
        ]
        for value in NUMBERS + TEXTS:
            bodies.append(b"{" + b", ".join([b'"%b": %b' % (field, value), *others]) + b"}")
    assert await odd_replies(http, route, bodies) == []


async def test_fields_of_jobs_in_a_batch_and_of_leases(http: httpx.AsyncClient) -> None:
    batch = next(route for route in ROUTES if route.name == "push_batch")
    for atomic in (b"true", b"false"):
        bodies = [
            b'{"atomic": %b, "jobs": [{"%b": %b}, {"id": "fine"}]}' % (atomic, field, value)
            for field in FIELDS[:12]
            for value in NUMBERS + TEXTS
        ]
        assert await odd_replies(http, batch, bodies) == []


@pytest.mark.parametrize(
    "name",
    [
        "%00", "%0d%0aX-Evil:%201", "a%0d%0ab", "%ff", "%ed%a0%80", "..", "%2e%2e", "%2f", "%", "%zz", "x" * 5_000,
        "%f0%9f%98%80", "a%20b", "%5cud800", "*", "{id}",
    ],
)  # fmt: skip
async def test_names_in_paths(served: Served, name: str) -> None:
    where = urlsplit(served.url)
    for route in (route for route in ROUTES if route.name != "call"):
        path = address(route, name).encode()
        with socket.create_connection((where.hostname, where.port)) as plain:
            plain.setblocking(False)
            raw = await ask(
                plain, b"%b %b HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}" % (route.method.encode(), path)
            )
        head, _, body = raw.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        assert status < 500, (route.name, raw[:500])
        assert b"\r\nX-Evil" not in head
        assert b"\r\nx-evil" not in head.lower()
        assert body, route.name


@pytest.mark.parametrize(
    "query",
    [
        "state=ready&cursor=%ff", "state=ready&cursor=0:1:%ed%a0%80", "state=ready&limit=" + "9" * 5_000,
        "state=ready&limit=-1", "state=ready&limit=NaN", "state=ready&state=dead", "state=%00", "&" * 50,
        "state=ready&cursor=9:999999999999999:" + "x" * 128, "state=ready&cursor=0:" + "9" * 15 + ":a%00",
        "from=" + "9" * 5_000, "from=-1&to=1", "buckets=1e9", "edges=" + ",".join(["1"] * 5_000), "edges=" + "9" * 16,
        "from=2999-01-01T00:00:00Z&to=1", "from=9999-12-31T23:59:59Z&to=9999-12-31T23:59:59.9999Z",
    ],
)  # fmt: skip
@pytest.mark.parametrize("page", ["jobs", "due"])
async def test_queries(http: httpx.AsyncClient, page: str, query: str) -> None:
    reply = await http.get(f"/v1/queues/shop/mail/{page}?{query}")
    assert is_sound(reply), (reply.status_code, reply.text[:300])


@pytest.mark.parametrize("key", [b"\xff", b"a\xc3\xbc", b"x" * 300, b"a b", b""])
async def test_idempotency_keys(http: httpx.AsyncClient, key: bytes) -> None:
    for path in ("jobs", "batch"):
        body = {} if path == "jobs" else {"jobs": [{}]}
        reply = await http.post(f"/v1/queues/shop/mail/{path}", json=body, headers={b"idempotency-key": key})
        assert is_sound(reply), (reply.status_code, reply.text[:300])


async def ask(plain: socket.socket, data: bytes) -> bytes:
    """Everything that comes until the whole answer is there or the server closes."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(plain, data)
    raw = b""
    async with asyncio.timeout(60):
        while chunk := await loop.sock_recv(plain, 65_536):
            raw += chunk
            head, found, body = raw.partition(b"\r\n\r\n")
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            if found and lengths and len(body) >= int(lengths[0].partition(b":")[2]):
                break
    return raw

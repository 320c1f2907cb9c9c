"""Names and values that an enemy chose, on every route of both listeners and over real sockets.

Each is done or refused as the caller's own mistake: no 5xx, no traceback in the log, and nothing of it ends in a
header. `test_garbage.py` draws such requests at random; here each route meets each value.
"""

import asyncio
from collections.abc import Iterable, Iterator

import pytest

from duetime.protocols.lmstfy.admin import ROUTES as ADMIN_ROUTES
from duetime.protocols.lmstfy.app import ROUTES
from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server
from tests.protocols.lmstfy.wire import Response, read_response

DEADLINE_S = 60
NAMES = [
    "%00", "%0d%0aX-Evil:%201", "a%0d%0ab", "%ff", "%ed%a0%80", "..", "%2e%2e", "%2f", "%", "%zz", "x" * 5_000,
    "%f0%9f%98%80", "a%20b", "%5cud800", "*", ":queue", ",", "a,,b", ",".join(["q"] * 2_000), "%3a", "a:b", "[]", "{}",
]  # fmt: skip
NUMBERS = [
    "9" * 5_000, "-" + "9" * 5_000, "1e999", "NaN", "Infinity", "-1", "-0", "4294967296", "9223372036854775808",
    "18446744073709551616", "0.1", "true", "null", "%d9%a3", "%c2%b2", "%ff", "%00", "%0d%0aX-Evil:%201", "0x10", "1_0",
    "%20", "1;2", "",
]  # fmt: skip
PARAMETERS = {
    ("PUT", ""): ["delay", "ttl", "tries"],
    ("PUT", "/bulk"): ["delay", "ttl", "tries"],
    ("PUT", "/job/:job_id"): ["delay", "ttl", "tries"],
    ("GET", ""): ["timeout", "ttr", "count", "freeze_tries"],
    ("PUT", "/deadletter"): ["limit", "ttl"],
    ("DELETE", "/deadletter"): ["limit"],
}
BODIES = [
    b"", b"[" * 100_000, b"[" * 50_000 + b"]" * 50_000, b'{"a": ' * 20_000, b'["\\ud800"]', b'["\xff"]', b"[1e999]",
    b"[" + b"9" * 5_000 + b"]", b"[null, true, {}, []]", b"\xff\xfe[]", b"\xef\xbb\xbf[1]", b"nul",
    b"[" + b"1," * 70_000 + b"1]",
    b"{}", b'"text"', b"\x00" * 1_000, b'{"read": {"rps": -1}}', b'{"read": {"rps": 1e999, "interval": "x"}}',
    b'{"read": {"rps": 99999999999999999999, "interval": 0}}', b'{"read": [[]], "write": 7}',
]  # fmt: skip
HEADERS = [
    b"Job-Attr-\xff: 1", b"Job-Attr-A: \xff\xfe", b"Job-Attr-: x", b"Job-Attr-A: " + b"x" * 7_000,
    b"\r\n".join(b"Job-Attr-%d: x" % number for number in range(90)), b"Job-Attr-A: 1\r\njob-attr-a: 2",
    b"Enable-Job-Version: \xff", b"Content-Type: \xff", b"Accept-Encoding: \x80",
]  # fmt: skip
TOKENS = [
    b"", b"\xff", b"\xed\xa0\x80", b":", b"::", b"nowhere:x", b"second:", b"x" * 6_000, b"a b", b"default:\xff", b"*",
    "tökén".encode(), "tökén".encode("latin-1"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_tracebacks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [record.getMessage() for record in caplog.get_records("call") if record.exc_info]


class Attack:
    """Sends requests, a connection for each, and keeps what may not be."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self.odd: list[tuple[int, bytes, bytes]] = []

    async def send(self, requests: Iterable[bytes]) -> list[tuple[int, bytes, bytes]]:
        for request in requests:
            reply = await self._ask(request)
            if reply.status >= 500 or "x-evil" in reply.headers or b"Traceback" in reply.body:
                self.odd.append((reply.status, request[:160], reply.body[:200]))
        return self.odd

    async def _ask(self, request: bytes) -> Response:
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await asyncio.open_connection(self._host, self._port)
            try:
                writer.write(request)
                return await read_response(reader, request.partition(b" ")[0].decode())
            finally:
                writer.close()


def request(method: str, path: str, token: bytes, *, body: bytes = b"x", more: bytes = b"") -> bytes:
    head = b"%b %b HTTP/1.1\r\nHost: localhost\r\nX-Token: %b\r\n" % (method.encode(), path.encode(), token)
    return head + (more + b"\r\n" if more else b"") + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def path_of(lmstfy: Lmstfy, tail: str, *, queue: str = "q", job_id: str = "a") -> str:
    return f"/api/{lmstfy.namespace}/{queue}{tail.replace(':job_id', job_id)}"


@pytest.fixture
def attack(server: Server) -> Attack:
    return Attack(*server.api)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:20])
async def test_names_in_every_path(lmstfy: Lmstfy, attack: Attack, name: str) -> None:
    token = lmstfy.token.encode()
    paths = [
        (method, path)
        for method, tail in ROUTES
        for path in (
            path_of(lmstfy, tail, queue=name),
            path_of(lmstfy, tail, job_id=name),
            f"/api/{name}/q{tail}",
            path_of(lmstfy, f"{tail}/{name}"),
        )
    ]
    assert await attack.send(request(method, path, token) for method, path in paths) == []


@pytest.mark.parametrize("route", PARAMETERS, ids=" ".join)
async def test_values_of_every_parameter(lmstfy: Lmstfy, attack: Attack, route: tuple[str, str]) -> None:
    method, tail = route
    requests = [
        request(method, path_of(lmstfy, tail) + f"?{name}={value}", lmstfy.token.encode(), body=b"[1]")
        for name in PARAMETERS[route]
        for value in NUMBERS
    ]
    assert await attack.send(requests) == []


async def test_bodies_and_headers_on_every_route(lmstfy: Lmstfy, attack: Attack) -> None:
    token = lmstfy.token.encode()
    routes = [(method, path_of(lmstfy, tail)) for method, tail in ROUTES]
    with_body = [(method, path) for method, path in routes if method != "GET"]
    assert await attack.send(request(*route, token, body=body) for route in with_body for body in BODIES) == []
    assert await attack.send(request(*route, token, more=header) for route in routes for header in HEADERS) == []


async def test_tokens_on_every_route(lmstfy: Lmstfy, attack: Attack) -> None:
    routes = [(method, path_of(lmstfy, tail)) for method, tail in ROUTES]
    assert await attack.send(request(*route, token) for route in routes for token in TOKENS) == []
    in_queries = ["%ff", "%ed%a0%80", "%00", "%0d%0aX-Evil:%201", "", "a%3ab", "x" * 6_000]
    paths = [(method, f"{path}?token={token}") for method, path in routes for token in in_queries]
    assert await attack.send(request(*route, b"") for route in paths) == []


async def test_every_route_of_the_admin_port(lmstfy: Lmstfy, server: Server) -> None:
    attack = Attack(*server.admin)

    def paths(name: str) -> Iterator[tuple[str, str]]:
        for method, pattern in ADMIN_ROUTES:
            if ":namespace" in pattern:
                yield method, pattern.replace(":namespace", name).replace(":token", "t")
                yield method, pattern.replace(":namespace", lmstfy.namespace).replace(":token", name)

    assert await attack.send(request(*path, b"", body=b"") for name in NAMES for path in paths(name)) == []
    posts = [route for route in paths("t") if route[0] in ("POST", "PUT")]
    assert await attack.send(request(*path, b"", body=body) for path in posts for body in BODIES) == []
    keys = ["description", "token", "pool", "read_only"]
    values = [
        (method, f"{path}?{key}={value}") for method, path in posts for key in keys for value in [*NUMBERS, *NAMES]
    ]
    assert await attack.send(request(*path, b"", body=b"") for path in values) == []

"""The HTTP/1.1 server over real sockets: framing, limits, clients that go, and the end."""

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from duetime.api.exchange import ClientGone, Exchange
from duetime.api.listener import Listener
from duetime.api.service import Limits, RequestIds

QUICK = Limits(head_s=0.2, body_s=0.2, idle_s=0.2, write_s=0.2, linger_s=0.2)
Reply = tuple[int, dict[str, str], bytes]


class Peer:
    """A client that says exactly the bytes it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), headers

    async def reply(self, *, to_head: bool = False) -> Reply:
        status, headers = await self.head()
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while size := int((await self.reader.readline()).strip(), 16):
                body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readexactly(2)
        elif "content-length" in headers and not to_head:
            body = await self.reader.readexactly(int(headers["content-length"]))
        return status, headers, body

    async def closed(self) -> bool:
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True

    async def ask(self, data: bytes) -> Reply:
        self.say(data)
        return await self.reply()


class Server:
    def __init__(self, listener: Listener, port: int) -> None:
        self.listener = listener
        self.port = port
        self.peers: list[Peer] = []

    async def connect(self) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port))
        self.peers.append(peer)
        return peer


App = Callable[[Scope, Receive, Send], Awaitable[None]]


@asynccontextmanager
async def serving(app: App, limits: Limits | None = None) -> AsyncIterator[Server]:
    sock = socket.create_server(("127.0.0.1", 0))
    listener = Listener(app, [sock], limits=limits)
    await listener.start()
    server = Server(listener, sock.getsockname()[1])
    try:
        async with asyncio.timeout(20):
            yield server
    finally:
        for peer in server.peers:
            peer.writer.transport.abort()
        await listener.stop(1)


async def answer(send: Send, status: int = 200, body: bytes = b"", *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def read_all(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message["body"]
        if not message["more_body"]:
            return body


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = await read_all(receive)
    text = f"{scope['method']} {scope['path']} {scope['query_string'].decode()} ".encode()
    await answer(send, 200, text + body)


# --- framing


async def test_keeps_a_connection_for_requests_with_and_without_bodies() -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        assert (await peer.ask(b"GET /a?x=1 HTTP/1.1\r\nHost: h\r\n\r\n"))[2] == b"GET /a x=1 "
        assert (await peer.ask(b"PUT /b HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"))[2] == b"PUT /b  abc"
        chunked = b"PUT /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n"
        assert (await peer.ask(chunked))[2] == b"PUT /c  abcde"
        assert (await peer.ask(b"GET /d HTTP/1.1\r\n\r\n"))[2] == b"GET /d  "


async def test_reads_a_request_that_comes_byte_by_byte() -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        for byte in b"PUT /slow HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello":
            peer.say(bytes([byte]))
            await peer.writer.drain()
            await asyncio.sleep(0)
        assert (await peer.reply())[2] == b"PUT /slow  hello"


async def test_decodes_the_path_and_accepts_absolute_targets() -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        assert (await peer.ask(b"GET /a%20b/%C3%A9 HTTP/1.1\r\n\r\n"))[2] == "GET /a b/é  ".encode()
        assert (await peer.ask(b"GET http://h:80/x?y=z HTTP/1.1\r\n\r\n"))[2] == b"GET /x y=z "
        assert (await peer.ask(b"OPTIONS * HTTP/1.1\r\n\r\n"))[2] == b"OPTIONS *  "


async def test_answers_pipelined_requests_in_order() -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        count = 3_000
        peer.say(b"".join(b"PUT /%d HTTP/1.1\r\nContent-Length: 2\r\n\r\nok" % n for n in range(count)))
        for n in range(count):
            assert (await peer.reply())[2] == b"PUT /%d  ok" % n


async def test_pipelined_requests_are_not_parsed_ahead_without_bound() -> None:
    started = 0
    release = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal started
        started += 1
        await release.wait()
        await answer(send)

    async with serving(app) as server:
        peer = await server.connect()
        peer.say(b"GET / HTTP/1.1\r\n\r\n" * 10_000)
        await asyncio.sleep(0.05)
        [connection] = server.listener._service.connections
        assert started == 1
        assert len(connection._queued) < 1_000  # pyright: ignore
        release.set()
        for _ in range(10_000):
            assert (await peer.reply())[0] == 200


async def test_large_bodies_arrive_whole() -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        body = bytes(range(256)) * 12_000
        reply = await peer.ask(b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert reply[2] == b"PUT /  " + body


async def test_every_answer_has_a_request_id_of_its_own() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["state"]["request_id"].lower())
        await answer(send)

    async with serving(app) as server:
        peer = await server.connect()
        told = [(await peer.ask(b"GET / HTTP/1.1\r\n\r\n"))[1]["x-request-id"] for _ in range(5)]
        assert told == seen
        assert len(set(told)) == 5
        bad = await peer.ask(b"garbage\r\n\r\n")
        assert re.fullmatch(r"[0-9a-z]{26}", bad[1]["x-request-id"])


def test_request_ids_differ_and_look_like_job_ids() -> None:
    ids = RequestIds()
    made = {ids.make() for _ in range(50_000)}
    assert len(made) == 50_000
    assert {len(one) for one in made} == {26}


async def test_head_and_204_have_no_body() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 204 if scope["path"] == "/204" else 200, b"" if scope["path"] == "/204" else b"hello")

    async with serving(app) as server:
        peer = await server.connect()
        peer.say(b"HEAD / HTTP/1.1\r\n\r\n")
        status, headers, _ = await peer.reply(to_head=True)
        assert (status, headers["content-length"]) == (200, "5")
        status, headers, _ = await peer.ask(b"DELETE /204 HTTP/1.1\r\n\r\n")
        assert status == 204
        assert "content-length" not in headers
        assert (await peer.ask(b"GET / HTTP/1.1\r\n\r\n"))[2] == b"hello"


@pytest.mark.parametrize(
    "request_head",
    [b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"],
)
async def test_closes_when_asked_to_and_after_http_1_0(request_head: bytes) -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        assert (await peer.ask(request_head))[1]["connection"] == "close"
        assert await peer.closed()


async def test_data_after_connection_close_does_not_spoil_the_answer() -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        reply = await peer.ask(b"GET /1 HTTP/1.1\r\nConnection: close\r\n\r\nGET /2 HTTP/1.1\r\n\r\n")
        assert reply[2] == b"GET /1  "
        assert await peer.closed()


async def test_an_upgrade_is_answered_as_http_and_the_connection_stays() -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
        assert (await peer.ask(b"GET /1 HTTP/1.1\r\n" + upgrade + b"\r\n"))[2] == b"GET /1  "
        peer.say(b"PUT /2 HTTP/1.1\r\nContent-Length: 2\r\n" + upgrade + b"\r\nokGET /3 HTTP/1.1\r\n\r\n")
        assert (await peer.reply())[2] == b"PUT /2  ok"
        assert (await peer.reply())[2] == b"GET /3  "
        assert (await peer.ask(b"CONNECT h:1 HTTP/1.1\r\n\r\n"))[2] == b"CONNECT h:1  "
        count = 1_000
        peer.say((b"PUT / HTTP/1.1\r\nContent-Length: 18\r\n" + upgrade + b"\r\nGET / HTTP/1.1\r\n\r\n") * count)
        for _ in range(count):
            assert (await peer.reply())[2] == b"PUT /  GET / HTTP/1.1\r\n\r\n"


async def test_expect_100_continue_is_answered_when_the_body_is_wanted() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/refuse":
            await answer(send, 401)
        else:
            await echo(scope, receive, send)

    async with serving(app) as server:
        peer = await server.connect()
        peer.say(b"PUT /want HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert (await peer.head())[0] == 100
        assert (await peer.ask(b"ok"))[2] == b"PUT /want  ok"
        peer.say(b"PUT /refuse HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert (await peer.reply())[0] == 401


async def test_streams_in_chunks_or_with_the_length_that_was_declared() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"6")] if scope["path"] == "/length" else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in (b"abc", b"", b"def"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    async with serving(app) as server:
        peer = await server.connect()
        status, headers, body = await peer.ask(b"GET / HTTP/1.1\r\n\r\n")
        assert (status, headers["transfer-encoding"], body) == (200, "chunked", b"abcdef")
        _, headers, body = await peer.ask(b"GET /length HTTP/1.1\r\n\r\n")
        assert (headers["content-length"], body) == ("6", b"abcdef")
        peer.say(b"GET / HTTP/1.0\r\n\r\n")
        await peer.head()
        assert await peer.reader.read() == b"abcdef"


# --- applications that fail


async def test_a_crash_is_an_empty_500(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("boom")

    async with serving(app) as server:
        status, headers, body = await (await server.connect()).ask(b"GET / HTTP/1.1\r\n\r\n")
    assert (status, body) == (500, b"")
    assert "x-request-id" in headers
    assert "boom" in caplog.text


@pytest.mark.parametrize("sent", [(b"x-evil", b"a\r\nset-cookie: b"), (b"x\nevil", b"a"), (b"x-evil", b"a\rb")])
async def test_a_line_break_in_a_header_is_never_sent(sent: tuple[bytes, bytes]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, b"", sent)

    async with serving(app) as server:
        status, headers, _ = await (await server.connect()).ask(b"GET / HTTP/1.1\r\n\r\n")
    assert status == 500
    assert "set-cookie" not in headers


async def test_an_answer_of_another_length_than_declared_is_cut() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
        await send({"type": "http.response.body", "body": b"abc", "more_body": True})
        await send({"type": "http.response.body"})

    async with serving(app) as server:
        peer = await server.connect()
        peer.say(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await peer.reply()


# --- limits


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"garbage\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", 400),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: a\r\n" % n for n in range(101)) + b"\r\n", 431),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", 431),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"a" * 100_000 + b"\r\nx\r\n0\r\n\r\n", 431),
    ],
)
async def test_refuses_what_is_wrong_or_too_much(said: bytes, status: int) -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        reply = await peer.ask(said)
        assert reply[0] == status
        assert reply[1]["connection"] == "close"
        assert await peer.closed()


async def test_accepts_what_is_just_within_the_limits() -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        assert (await peer.ask(b"GET / HTTP/1.1\r\nX: " + b"a" * 32_000 + b"\r\n\r\n"))[0] == 200
        headers = b"".join(b"X%d: a\r\n" % n for n in range(100))
        assert (await peer.ask(b"GET / HTTP/1.1\r\n" + headers + b"\r\n"))[0] == 200
        one_by_one = b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"
        reply = await peer.ask(b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + one_by_one)
        assert len(reply[2]) == 20_007


async def test_slow_heads_silence_and_idleness_end() -> None:
    async with serving(echo, QUICK) as server:
        slow, silent, idle = [await server.connect() for _ in range(3)]
        slow.say(b"GET / HTTP/1.1\r\nX: ")
        await idle.ask(b"GET / HTTP/1.1\r\n\r\n")
        assert (await slow.reply())[0] == 408
        assert await slow.closed()
        assert await silent.closed()
        assert await idle.closed()


async def test_a_slow_body_ends_and_the_application_sees_a_disconnect() -> None:
    seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] == "http.request":
            pass
        seen.set_result(message["type"])

    async with serving(app, QUICK) as server:
        peer = await server.connect()
        reply = await peer.ask(b"PUT / HTTP/1.1\r\nContent-Length: 100\r\n\r\nabc")
        assert reply[0] == 408
        assert await seen == "http.disconnect"


async def test_a_body_that_keeps_coming_may_take_its_time() -> None:
    limits = Limits(head_s=0.2, body_s=0.2, body_rate=10, idle_s=0.2, write_s=0.2, linger_s=0.2)
    async with serving(echo, limits) as server:
        peer = await server.connect()
        peer.say(b"PUT / HTTP/1.1\r\nContent-Length: 50\r\n\r\n")
        for _ in range(5):
            peer.say(b"x" * 10)
            await asyncio.sleep(0.12)
        assert (await peer.reply())[0] == 200


async def test_an_early_refusal_reaches_a_client_that_is_still_sending() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await answer(send, 413, b"too large")

    async with serving(app) as server:
        peer = await server.connect()
        peer.say(b"PUT / HTTP/1.1\r\nContent-Length: 8000000\r\n\r\n" + b"x" * 4_000_000)
        status, headers, body = await peer.reply()
        assert (status, headers["connection"], body) == (413, "close", b"too large")


async def test_reading_pauses_while_the_application_does_not_take_the_body() -> None:
    release = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await release.wait()
        await echo(scope, receive, send)

    async with serving(app) as server:
        peer = await server.connect()
        body = b"x" * 20_000_000
        peer.say(b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await asyncio.sleep(0.1)
        [connection] = server.listener._service.connections
        assert connection._exchange.buffered < 1_000_000  # pyright: ignore
        release.set()
        assert len((await peer.reply())[2]) == len(body) + 7


async def test_a_client_that_does_not_read_is_cut() -> None:
    ended = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": True})
        finally:
            ended.set()

    async with serving(app, QUICK) as server:
        peer = await server.connect()
        peer.writer.transport.pause_reading()  # pyright: ignore
        peer.say(b"GET / HTTP/1.1\r\n\r\n")
        await ended.wait()


# --- clients that go


class Parked:
    """Parks every request; tells what became of it."""

    def __init__(self) -> None:
        self.parked = asyncio.Event()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope["extensions"]["duetime.exchange"]
        self.parked.set()
        try:
            result = await exchange.park(asyncio.sleep(60, "slept"), "drained")
        except asyncio.CancelledError:
            self.ended.set_result("cancelled")
            raise
        self.ended.set_result(result)
        await answer(send, 404, result.encode())


@pytest.mark.parametrize("how", ["fin", "rst", "half close", "fin behind a pipelined request"])
async def test_a_parked_request_is_cancelled_when_its_client_goes(how: str) -> None:
    app = Parked()
    async with serving(app) as server:
        peer = await server.connect()
        peer.say(b"GET / HTTP/1.1\r\n\r\n" * (2 if "pipelined" in how else 1))
        await app.parked.wait()
        if how == "rst":
            peer.writer.transport.abort()
        elif how == "half close":
            peer.writer.write_eof()
        else:
            peer.writer.close()
        assert await app.ended == "cancelled"


async def test_a_request_that_is_not_parked_runs_to_its_end_and_cannot_answer() -> None:
    gone = asyncio.Event()
    ended: asyncio.Future[type] = asyncio.get_running_loop().create_future()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        gone.set()
        assert (await receive())["type"] == "http.disconnect"
        try:
            await answer(send)
        except OSError as error:
            ended.set_result(type(error))
            raise

    async with serving(app) as server:
        peer = await server.connect()
        peer.say(b"GET / HTTP/1.1\r\n\r\n")
        await gone.wait()
        peer.writer.close()
        assert await ended is ClientGone


async def test_an_errors_of_the_wait_itself_passes_through_park() -> None:
    async def fail() -> str:
        raise TimeoutError("its own")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope["extensions"]["duetime.exchange"]
        with pytest.raises(TimeoutError, match="its own"):
            await exchange.park(fail(), "drained")
        await answer(send, 200, b"passed")

    async with serving(app) as server:
        assert (await (await server.connect()).ask(b"GET / HTTP/1.1\r\n\r\n"))[2] == b"passed"


# --- the end


async def test_a_drain_answers_parked_requests_and_accepts_nobody() -> None:
    app = Parked()
    async with serving(app) as server:
        peer = await server.connect()
        peer.say(b"GET / HTTP/1.1\r\n\r\n")
        await app.parked.wait()
        stop = asyncio.create_task(server.listener.stop(10))
        status, headers, body = await peer.reply()
        assert (status, headers["connection"], body) == (404, "close", b"drained")
        await stop
        with pytest.raises(ConnectionRefusedError):
            await server.connect()


async def test_a_drain_finishes_what_is_under_way_and_serves_kept_connections_once_more() -> None:
    release = asyncio.Event()
    begun = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            begun.set()
            await release.wait()
        await answer(send, 200, b"done")

    async with serving(app) as server:
        slow, kept = [await server.connect() for _ in range(2)]
        await kept.ask(b"GET / HTTP/1.1\r\n\r\n")
        slow.say(b"GET /slow HTTP/1.1\r\n\r\n")
        await begun.wait()
        stop = asyncio.create_task(server.listener.stop(10))
        await asyncio.sleep(0)
        status, headers, _ = await kept.ask(b"GET / HTTP/1.1\r\n\r\n")
        assert (status, headers["connection"]) == (200, "close")
        assert not stop.done()
        release.set()
        assert (await slow.reply())[2] == b"done"
        await stop


async def test_a_drain_is_bounded() -> None:
    cancelled = asyncio.Event()
    begun = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    async with serving(app) as server:
        peer = await server.connect()
        peer.say(b"GET / HTTP/1.1\r\n\r\n")
        await begun.wait()
        await server.listener.stop(0.1)
        assert cancelled.is_set()
        assert await peer.closed()


# --- anything at all

PIECES = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [
            b"GET / HTTP/1.1\r\n\r\n",
            b"PUT /a HTTP/1.1\r\nContent-Length: 4\r\n\r\n",
            b"PUT /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"4\r\nabcd\r\n",
            b"0\r\n\r\n",
            b"Upgrade: x\r\nConnection: upgrade\r\n\r\n",
            b"CONNECT h:1 HTTP/1.1\r\n\r\n",
            b"GET http://[ HTTP/1.1\r\n\r\n",
            b"GET //%ff%00 HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\r\n",
        ]
    ),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(PIECES, max_size=8))
def test_any_bytes_are_answered_or_refused(pieces: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    async def talk() -> bytes:
        async with serving(echo, QUICK) as server:
            peer = await server.connect()
            for piece in pieces:
                peer.say(piece)
                await asyncio.sleep(0)
            try:
                return await peer.reader.read()
            except ConnectionResetError:
                return b""

    caplog.set_level(logging.WARNING)
    said = asyncio.run(talk())
    assert not caplog.records
    assert b"HTTP/1.1 5" not in said.replace(b"HTTP/1.1 505", b"")
    assert said == b"" or said.startswith(b"HTTP/1.1 ")

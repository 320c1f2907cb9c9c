"""The HTTP/1.1 server over real sockets: what a client may cost, clients that go, and the server's end."""

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from duetime.http.exchange import ClientGone, Exchange
from duetime.http.service import HttpLimits
from tests.plugins.http_peer import QUICK, answer, echo, serving

# --- limits


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"garbage\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", 400),
        (b"PUT / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", 501),
        (b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", 400),
        (
            b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"1\r\nx\r\n0\r\n\r\n",
            501,
        ),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X%d: a\r\n" % n for n in range(101)) + b"\r\n", 431),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (
            b"PUT / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "
            + b"a" * 100_000
            + b"\r\n\r\n",
            431,
        ),
        (
            b"PUT / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;"
            + b"a" * 100_000
            + b"\r\nx\r\n0\r\n\r\n",
            431,
        ),
    ],
)
async def test_refuses_wrong_or_too_large_requests(said: bytes, status: int) -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        reply = await peer.ask(said)
        assert reply[0] == status
        assert reply[1]["connection"] == "close"
        assert await peer.closed()


async def test_accepts_requests_just_within_the_limits() -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        for host in (b"", b"[::1]:80", b"a_b.example:1", b"127.0.0.1"):
            assert (await peer.ask(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host))[0] == 200
        chunked = b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
        assert (await peer.ask(chunked))[2] == b"PUT /  x"
        assert (await peer.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 32_000 + b"\r\n\r\n"))[0] == 200
        headers = b"".join(b"X%d: a\r\n" % n for n in range(99))
        assert (await peer.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n"))[0] == 200
        one_by_one = b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"
        reply = await peer.ask(b"PUT / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + one_by_one)
        assert len(reply[2]) == 20_007


async def test_slow_heads_silence_and_idleness_end() -> None:
    limits = HttpLimits(head_s=1, idle_s=1)  # long enough for a busy machine to ask in time
    async with serving(echo, limits) as server:
        slow, silent, idle = [await server.connect() for _ in range(3)]
        slow.say(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        await idle.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
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
        reply = await peer.ask(b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc")
        assert reply[0] == 408
        assert await seen == "http.disconnect"


async def test_a_body_that_keeps_coming_may_take_its_time() -> None:
    limits = HttpLimits(head_s=0.2, body_s=0.2, body_rate=10, idle_s=0.2, write_s=0.2, linger_s=0.2)
    async with serving(echo, limits) as server:
        peer = await server.connect()
        peer.say(b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n")
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
        peer.say(b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n" + b"x" * 4_000_000)
        status, headers, body = await peer.reply()
        assert (status, headers["connection"], body) == (413, "close", b"too large")


async def test_reading_pauses_while_the_application_does_not_take_the_body() -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await release.wait()
        await echo(scope, receive, send)

    async with serving(app) as server:
        peer = await server.connect()
        body = b"x" * 20_000_000
        peer.say(b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await begun.wait()
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
        peer.say(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
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
        peer.say(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * (2 if "pipelined" in how else 1))
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
        peer.say(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await gone.wait()
        peer.writer.close()
        assert await ended is ClientGone


async def test_an_error_of_the_wait_itself_passes_through_park() -> None:
    async def fail() -> str:
        raise TimeoutError("its own")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope["extensions"]["duetime.exchange"]
        with pytest.raises(TimeoutError, match="its own"):
            await exchange.park(fail(), "drained")
        await answer(send, 200, b"passed")

    async with serving(app) as server:
        assert (await (await server.connect()).ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))[2] == b"passed"


# --- the end


async def test_a_drain_answers_parked_requests_and_accepts_nobody() -> None:
    app = Parked()
    async with serving(app) as server:
        peer = await server.connect()
        peer.say(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
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
        await kept.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        slow.say(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await begun.wait()
        stop = asyncio.create_task(server.listener.stop(10))
        await asyncio.sleep(0)
        status, headers, _ = await kept.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
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
        peer.say(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await begun.wait()
        await server.listener.stop(0.1)
        assert cancelled.is_set()
        assert await peer.closed()

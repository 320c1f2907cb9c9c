"""The HTTP/1.1 server over real sockets: framing, applications that fail, and any bytes at all."""

import asyncio
import logging
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from duetime.http.exchange import Exchange
from duetime.http.proxies import read_proxies
from duetime.model.errors import InvalidSettings
from tests.plugins.http_peer import QUICK, answer, echo, serving
from tests.plugins.until import until

# --- framing


async def test_keeps_a_connection_for_requests_with_and_without_bodies() -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        assert (await peer.ask(b"GET /a?x=1 HTTP/1.1\r\nHost: h\r\n\r\n"))[2] == b"GET /a x=1 "
        assert (await peer.ask(b"PUT /b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"))[
            2
        ] == b"PUT /b  abc"
        chunked = b"PUT /c HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunked += b"3\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n"
        assert (await peer.ask(chunked))[2] == b"PUT /c  abcde"
        assert (await peer.ask(b"GET /d HTTP/1.1\r\nHost: localhost\r\n\r\n"))[2] == b"GET /d  "


async def test_reads_a_request_that_comes_byte_by_byte() -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        for byte in b"PUT /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello":
            peer.say(bytes([byte]))
            await peer.writer.drain()
            await asyncio.sleep(0)
        assert (await peer.reply())[2] == b"PUT /slow  hello"


async def test_decodes_the_path_and_accepts_absolute_targets() -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        assert (await peer.ask(b"GET /a%20b/%C3%A9 HTTP/1.1\r\nHost: localhost\r\n\r\n"))[2] == "GET /a b/é  ".encode()
        assert (await peer.ask(b"GET http://h:80/x?y=z HTTP/1.1\r\nHost: localhost\r\n\r\n"))[2] == b"GET /x y=z "
        assert (await peer.ask(b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n"))[2] == b"OPTIONS *  "


async def test_answers_pipelined_requests_in_order() -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        count = 3_000
        peer.say(
            b"".join(b"PUT /%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nok" % n for n in range(count))
        )
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
        peer.say(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10_000)
        await until(lambda: started)
        await asyncio.sleep(0.05)
        [connection] = server.listener._service.connections
        assert started == 1
        assert len(connection._queued) < 1_000  # pyright: ignore
        release.set()
        for _ in range(10_000):
            assert (await peer.reply())[0] == 200


async def test_large_bodies_arrive_complete() -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        body = bytes(range(256)) * 12_000
        reply = await peer.ask(b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert reply[2] == b"PUT /  " + body


async def test_every_answer_has_a_request_id_of_its_own() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["state"]["request_id"].lower())
        await answer(send)

    async with serving(app) as server:
        peer = await server.connect()
        told = [(await peer.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))[1]["x-request-id"] for _ in range(5)]
        assert told == seen
        assert len(set(told)) == 5
        bad = await peer.ask(b"garbage\r\n\r\n")
        assert re.fullmatch(r"[0-9a-z]{26}", bad[1]["x-request-id"])


async def test_head_and_204_have_no_body() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 204 if scope["path"] == "/204" else 200, b"" if scope["path"] == "/204" else b"hello")

    async with serving(app) as server:
        peer = await server.connect()
        peer.say(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        status, headers, _ = await peer.reply(to_head=True)
        assert (status, headers["content-length"]) == (200, "5")
        status, headers, _ = await peer.ask(b"DELETE /204 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status == 204
        assert "content-length" not in headers
        assert (await peer.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))[2] == b"hello"


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    ],
)
async def test_closes_when_asked_to_and_after_http_1_0(request_head: bytes) -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        assert (await peer.ask(request_head))[1]["connection"] == "close"
        assert await peer.closed()


async def test_data_after_connection_close_does_not_spoil_the_answer() -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        reply = await peer.ask(
            b"GET /1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\nGET /2 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        assert reply[2] == b"GET /1  "
        assert await peer.closed()


async def test_an_upgrade_is_answered_as_http_and_the_connection_stays() -> None:
    async with serving(echo) as server:
        peer = await server.connect()
        upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
        assert (await peer.ask(b"GET /1 HTTP/1.1\r\nHost: localhost\r\n" + upgrade + b"\r\n"))[2] == b"GET /1  "
        peer.say(
            b"PUT /2 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
            + upgrade
            + b"\r\nokGET /3 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        assert (await peer.reply())[2] == b"PUT /2  ok"
        assert (await peer.reply())[2] == b"GET /3  "
        assert (await peer.ask(b"CONNECT h:1 HTTP/1.1\r\nHost: localhost\r\n\r\n"))[2] == b"CONNECT h:1  "
        count = 1_000
        peer.say(
            (
                b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 35\r\n"
                + upgrade
                + b"\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
            )
            * count
        )
        for _ in range(count):
            assert (await peer.reply())[2] == b"PUT /  GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("word", [b"100-continue", b"100-Continue", b"100-CONTINUE"])
async def test_expect_100_continue_is_answered_when_the_body_is_wanted(word: bytes) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/refuse":
            await answer(send, 401)
        else:
            await echo(scope, receive, send)

    async with serving(app) as server:
        peer = await server.connect()
        peer.say(b"PUT /want HTTP/1.1\r\nHost: localhost\r\nExpect: %b\r\nContent-Length: 2\r\n\r\n" % word)
        assert (await peer.head())[0] == 100
        assert (await peer.ask(b"ok"))[2] == b"PUT /want  ok"
        peer.say(b"PUT /refuse HTTP/1.1\r\nHost: localhost\r\nExpect: %b\r\nContent-Length: 2\r\n\r\n" % word)
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
        status, headers, body = await peer.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (status, headers["transfer-encoding"], body) == (200, "chunked", b"abcdef")
        _, headers, body = await peer.ask(b"GET /length HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (headers["content-length"], body) == ("6", b"abcdef")
        peer.say(b"GET / HTTP/1.0\r\n\r\n")
        await peer.head()
        assert await peer.reader.read() == b"abcdef"


# --- applications that fail


async def test_a_crash_is_an_empty_500(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("boom")

    async with serving(app) as server:
        status, headers, body = await (await server.connect()).ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (status, body) == (500, b"")
    assert "x-request-id" in headers
    assert "boom" in caplog.text


@pytest.mark.parametrize("sent", [(b"x-evil", b"a\r\nset-cookie: b"), (b"x\nevil", b"a"), (b"x-evil", b"a\rb")])
async def test_a_line_break_in_a_header_is_never_sent(sent: tuple[bytes, bytes]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, b"", sent)

    async with serving(app) as server:
        status, headers, _ = await (await server.connect()).ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status == 500
    assert "set-cookie" not in headers


async def test_an_answer_of_another_length_than_declared_is_cut() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
        await send({"type": "http.response.body", "body": b"abc", "more_body": True})
        await send({"type": "http.response.body"})

    async with serving(app) as server:
        peer = await server.connect()
        peer.say(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await peer.reply()


async def test_answers_are_counted_by_status_on_both_paths() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        status = int(scope["path"][2:])
        if scope["path"].startswith("/f"):
            exchange: Exchange = scope["extensions"]["duetime.exchange"]
            exchange.finish(status, (), b"fast")
        else:
            await answer(send, status, b"slow")

    async with serving(app) as server:
        peer = await server.connect()
        for path in (b"/f200", b"/f200", b"/f503", b"/f204", b"/s200", b"/s503"):
            await peer.ask(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
        assert dict(server.listener.service.answers) == {200: 3, 503: 2, 204: 1}


# --- anything at all

PIECES = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"PUT /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n",
            b"PUT /a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"4\r\nabcd\r\n",
            b"0\r\n\r\n",
            b"Upgrade: x\r\nConnection: upgrade\r\n\r\n",
            b"CONNECT h:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET //%ff%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
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


# --- whom a trusted proxy speaks for


PEER = ("10.0.0.1", 5)


@pytest.mark.parametrize(
    ("values", "client"),
    [
        ([], "10.0.0.1"),
        ([b"203.0.113.9"], "203.0.113.9"),
        ([b"203.0.113.9:4711"], "203.0.113.9"),
        ([b"[2001:db8::1]:80"], "2001:db8::1"),
        ([b"::ffff:203.0.113.9"], "203.0.113.9"),
        ([b"6.6.6.6, 203.0.113.9, 10.9.9.9"], "203.0.113.9"),
        ([b"6.6.6.6, 203.0.113.9", b"10.9.9.9"], "203.0.113.9"),
        ([b"10.1.1.1, 10.2.2.2"], "10.1.1.1"),
        ([b"203.0.113.9, unknown, 10.2.2.2"], "10.2.2.2"),
        ([b"unknown"], "10.0.0.1"),
        ([b"6.6.6.6," * 1000 + b"203.0.113.9"], "203.0.113.9"),
    ],
)
def test_the_first_address_from_the_end_that_is_no_proxy(values: list[bytes], client: str) -> None:
    proxies = read_proxies("10.0.0.0/8")
    assert proxies is not None
    assert proxies.trusts(PEER)
    found = proxies.client_of([(b"host", b"x"), *((b"x-forwarded-for", value) for value in values)], PEER)
    assert found is not None
    assert found[0] == client


def test_the_scheme_that_the_client_used() -> None:
    proxies = read_proxies("10.0.0.0/8")
    assert proxies is not None
    assert proxies.scheme_of([(b"host", b"x")]) == "http"
    assert proxies.scheme_of([(b"x-forwarded-proto", b"https")]) == "https"
    assert proxies.scheme_of([(b"x-forwarded-proto", b"gopher")]) == "http"


def test_trusted_proxies() -> None:
    assert read_proxies(" ") is None
    proxies = read_proxies("127.0.0.1, ::1 unix")
    assert proxies is not None
    assert [proxies.trusts(peer) for peer in (("127.0.0.1", 1), ("::1", 1), None)] == [True] * 3
    assert not proxies.trusts(("127.0.0.2", 1))
    with pytest.raises(InvalidSettings, match="trusted_proxies"):
        read_proxies("proxy.example")

"""The HTTP/1.1 server when clients are too many or too greedy: what is refused, what is closed, what goes on."""

import asyncio
import json
import socket

import pytest
from starlette.types import Receive, Scope, Send

from duetime.http.balance import MOST_WORKERS, ConnectionBalance
from duetime.http.exchange import ClientGone, Exchange
from duetime.http.listener import YIELDS, Listener
from duetime.http.service import SMALL, SPARE, Budget, HttpLimits
from duetime.model.errors import Overloaded
from tests.plugins.http_peer import Peer, answer, echo, read_all, serving
from tests.plugins.until import until

MIB = 1_048_576
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Gate:
    """An application that reads a body and answers when it is told to."""

    def __init__(self) -> None:
        self.read = 0
        self.open = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "PUT":
            await read_all(receive)
            self.read += 1
            await self.open.wait()
        await answer(send)


def put(size: int) -> bytes:
    return b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size


async def test_large_bodies_stop_at_three_quarters_and_small_ones_pass() -> None:
    gate, budget = Gate(), Budget(4 * MIB)
    async with serving(gate, budget=budget) as server:
        large = [await server.connect() for _ in range(3)]
        for peer in large:
            peer.say(put(MIB))
        await until(lambda: gate.read == 3)
        assert budget.held == 3 * MIB
        refused = await server.connect()
        refused.say(put(MIB))
        status, headers, _ = await refused.reply()
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        small = await server.connect()
        small.say(put(1000))
        await until(lambda: gate.read == 4)
        gate.open.set()
        for peer in (*large, small):
            assert (await peer.reply())[0] == 200
        assert budget.held == 0
        assert (await large[0].ask(put(MIB)))[0] == 200


async def test_a_large_body_is_refused_before_it_is_complete() -> None:
    budget = Budget(4 * MIB)
    async with serving(Gate(), budget=budget) as server:
        peer = await server.connect()
        peer.say(b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (100 * MIB))
        peer.say(b"x" * (2 * SMALL))
        assert (await peer.reply())[0] == 503


async def test_a_chunked_body_pays_as_it_comes() -> None:
    budget = Budget(MIB)
    async with serving(Gate(), budget=budget) as server:
        peer = await server.connect()
        peer.say(
            b"PUT / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"10000\r\n%b\r\n" % (b"x" * 65_536) * 20
        )
        assert (await peer.reply())[0] == 503


async def test_requests_sent_ahead_are_bounded_for_all_clients_together() -> None:
    parked = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await parked.wait()
        await answer(send)

    budget = Budget(MIB)
    async with serving(app, budget=budget) as server:
        for _ in range(20):
            (await server.connect()).say(GET * 1000)
        await until(lambda: budget.refused)
        assert budget.held <= budget.limit
        parked.set()
        assert (await server.peers[0].reply())[0] == 200


async def test_unfinished_headers_are_bounded_for_all_clients_together() -> None:
    budget = Budget(MIB)
    async with serving(echo, budget=budget) as server:
        for _ in range(40):
            (await server.connect()).say(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 30_000)
        await until(lambda: budget.refused)
        assert budget.held <= budget.limit


async def test_a_large_answer_is_refused_while_others_are_not_read_and_its_job_goes_back() -> None:
    given_back = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal given_back
        try:
            await answer(send, 200, b"x" * (8 * MIB) if scope["path"] == "/job" else b"")
        except ClientGone:
            given_back += 1

    budget = Budget(20 * MIB)
    async with serving(app, budget=budget) as server:
        deaf = [await server.connect() for _ in range(8)]
        for peer in deaf:
            peer.writer.transport.pause_reading()  # pyright: ignore
            peer.say(b"GET /job HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: given_back)
        assert budget.held <= budget.limit
        healthy = await server.connect()
        assert (await healthy.ask(GET))[0] == 200


async def test_a_client_that_does_not_read_gets_no_further_answers() -> None:
    started = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal started
        started += 1
        await answer(send, 200, b"x" * MIB)

    budget = Budget(64 * MIB)
    async with serving(app, budget=budget) as server:
        peer = await server.connect()
        peer.writer.transport.pause_reading()  # pyright: ignore
        peer.say(GET * 100)
        await until(lambda: budget.held)
        assert started < 20
        peer.writer.transport.resume_reading()  # pyright: ignore
        for _ in range(100):
            assert len((await peer.reply())[2]) == MIB


async def test_a_full_listener_closes_the_connection_that_was_idle_longest() -> None:
    budget = Budget(MIB)
    async with serving(echo, HttpLimits(connections=4), budget=budget) as server:
        oldest, *others = [await server.connect() for _ in range(4)]
        for peer in (oldest, *others):
            assert (await peer.ask(GET))[0] == 200
        silent = [await server.connect() for _ in range(SPARE)]
        newcomer = await server.connect()
        assert (await newcomer.ask(GET))[0] == 200
        assert await oldest.closed()
        for peer in (*others, silent[-1]):
            assert (await peer.ask(GET))[0] == 200


async def test_beyond_the_limit_a_client_gets_its_answer_and_is_closed() -> None:
    gate, budget = Gate(), Budget(MIB)
    async with serving(gate, HttpLimits(connections=2, linger_s=0.1), budget=budget) as server:
        busy = [await server.connect() for _ in range(2)]
        for peer in busy:
            peer.say(put(1))
        await until(lambda: gate.read == 2)
        for _ in range(3):
            status, headers, _ = await (await server.connect()).ask(GET)
            assert (status, headers["connection"]) == (200, "close")
        early = await server.connect()
        gate.open.set()
        for peer in busy:
            assert (await peer.reply())[0] == 200
            peer.writer.transport.abort()
        await until(lambda: len(server.listener.service.connections) == 1)
        status, headers, _ = await early.ask(GET)
        assert (status, "connection" in headers) == (200, False)


async def test_a_fresh_connection_is_not_closed_for_the_next_one() -> None:
    gate, budget = Gate(), Budget(MIB)
    async with serving(gate, HttpLimits(connections=2), budget=budget) as server:
        busy = [await server.connect() for _ in range(2)]
        for peer in busy:
            peer.say(put(1))
        await until(lambda: gate.read == 2)
        fresh = [await server.connect() for _ in range(8)]
        for peer in fresh:
            assert (await peer.ask(GET))[0] == 200
        gate.open.set()


async def test_polls_leave_room_for_requests_that_end() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/poll":
            exchange: Exchange = scope["extensions"]["duetime.exchange"]
            try:
                await exchange.park(asyncio.Event().wait(), False)
            except Overloaded:
                await answer(send, 503)
        else:
            await answer(send, 201)

    poll = GET.replace(b" / ", b" /poll ")
    async with serving(app, HttpLimits(connections=8), budget=Budget(MIB)) as server:
        producer = await server.connect()
        assert (await producer.ask(GET))[0] == 201
        polls = [await server.connect() for _ in range(7)]
        for peer in polls:
            peer.say(poll)
        await until(lambda: server.listener.service.parked == 7)
        for _ in range(2 * SPARE):
            late = await server.connect()
            assert (await late.ask(poll))[0] == 503
            assert (await producer.ask(GET))[0] == 201
        assert (await (await server.connect()).ask(GET))[0] == 201
        polls[0].writer.transport.abort()
        await until(lambda: server.listener.service.parked == 6)
        producer.say(poll)
        await until(lambda: server.listener.service.parked == 7)


async def test_clients_wait_in_the_queue_when_all_spare_connections_are_busy() -> None:
    gate, budget = Gate(), Budget(MIB)
    async with serving(gate, HttpLimits(connections=1), budget=budget) as server:
        busy = [await server.connect() for _ in range(SPARE + 1)]
        for peer in busy:
            peer.say(put(1))
        await until(lambda: gate.read == SPARE + 1)
        waiting = await server.connect()
        waiting.say(GET)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiting.reply(), 0.05)
        gate.open.set()
        for peer in busy:
            assert (await peer.reply())[0] == 200
        assert (await waiting.reply())[0] == 200


async def test_an_overload_has_the_form_of_its_protocol() -> None:
    async with serving(echo, budget=Budget(MIB)) as server:
        for path, kind in ((b"/v1/queues/a/b/jobs", "application/problem+json"), (b"/api/a/b", "application/json")):
            status, headers, body = await (await server.connect()).ask(put(2 * MIB).replace(b" / ", b" %b " % path, 1))
            assert (status, headers["content-type"], headers["retry-after"]) == (503, kind, "1")
            told = json.loads(body)
            assert told.get("code", "overloaded") == "overloaded"
            assert ("error" in told) is (kind == "application/json")


async def test_requests_in_the_backlog_of_a_closing_socket_are_answered() -> None:
    sock = socket.create_server(("127.0.0.1", 0), backlog=512)
    listener = Listener(echo, [sock])
    clients = [socket.create_connection(sock.getsockname()) for _ in range(50)]
    for client in clients:
        client.sendall(GET)
    await listener.start()
    await listener.stop(10)
    for client in clients:
        with client:
            assert client.recv(100).startswith(b"HTTP/1.1 200 OK")


# --- sharing a rush of clients between processes that accept from one socket


def two() -> tuple[ConnectionBalance, ConnectionBalance]:
    shared = ConnectionBalance.create()
    assert shared is not None
    return ConnectionBalance(shared.file, 0), ConnectionBalance(shared.file, 2 * MOST_WORKERS - 1)


def test_a_process_with_clearly_more_connections_is_ahead() -> None:
    one, other = two()
    one.publish(100)
    assert not one.is_ahead()  # nobody else is there
    for theirs, ahead in [(0, True), (50, True), (84, True), (85, False), (100, False), (200, False)]:
        other.publish(theirs)
        assert one.is_ahead() is ahead
    assert other.is_ahead()
    one.vacate()
    assert not other.is_ahead()


def test_a_few_connections_more_are_nothing() -> None:
    one, other = two()
    one.publish(3)
    other.publish(0)
    assert not one.is_ahead()


class Ahead(ConnectionBalance):
    """Always has more than the others."""

    asked = 0

    def is_ahead(self) -> bool:
        self.asked += 1
        return True


async def test_a_process_that_is_ahead_leaves_clients_to_others_for_a_while() -> None:
    shared = ConnectionBalance.create()
    assert shared is not None
    one, other = Ahead(shared.file, 0), ConnectionBalance(shared.file, 1)
    sock = socket.create_server(("127.0.0.1", 0))
    listener = Listener(echo, [sock], balance=one)
    await listener.start()
    peer = Peer(*await asyncio.open_connection(*sock.getsockname()))
    assert (await peer.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))[0] == 200
    assert one.asked == YIELDS
    other.publish(1000)
    assert other.is_ahead()
    peer.writer.close()
    await listener.stop(5)
    assert not other.is_ahead()  # who has stopped accepting does not count

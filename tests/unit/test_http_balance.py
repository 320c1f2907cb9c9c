"""Sharing a rush of clients between processes that accept from one socket."""

import asyncio
import socket

from duetime.http.balance import MOST_WORKERS, ConnectionBalance
from duetime.http.listener import YIELDS, Listener
from tests.plugins.http_peer import Peer, echo


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

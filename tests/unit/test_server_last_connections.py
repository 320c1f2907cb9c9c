"""A server that ends, and a client that connects after the last accept and before the close of the socket."""

import asyncio
import errno
import os
import socket

import pytest

from duetime.http.listener import Listener
from duetime.server.listeners import ListenerSpec, leave_all
from duetime.server.process import LISTENERS
from tests.plugins.http_peer import echo
from tests.plugins.until import until

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class LateClientSocket(socket.socket):
    """Listens; somebody connects at the last moment before it is closed."""

    late: socket.socket | None = None

    def close(self) -> None:
        if self.fileno() >= 0 and self.late is None:
            self.late = socket.socket(self.family)
            self.late.setblocking(False)
            assert self.late.connect_ex(self.getsockname()) in (0, errno.EINPROGRESS)
        super().close()


def spec(*, last: bool) -> ListenerSpec:
    return next(one for one in LISTENERS if one.last is last)


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
async def test_a_late_connection_is_refused_and_never_reset(family: socket.AddressFamily, host: str) -> None:
    sock = LateClientSocket(family)
    sock.bind((host, 0))
    sock.listen(16)
    listener = Listener(echo, [sock])
    one = spec(last=False)
    with socket.create_connection(sock.getsockname()[:2]) as in_time:
        await listener.start()
        leave_all([one], {one.name: socket.socket(fileno=os.dup(sock.fileno()))})
        stopping = asyncio.create_task(listener.stop(10))
        in_time.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(in_time, GET)
        answer = await asyncio.get_running_loop().sock_recv(in_time, 1000)
        await stopping
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert sock.late is not None
    with sock.late as late:
        outcome = list[int]()
        asyncio.get_running_loop().add_writer(
            late, lambda: outcome.append(late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        )
        await until(lambda: outcome)
        asyncio.get_running_loop().remove_writer(late)
    assert outcome[0] == errno.ECONNREFUSED


async def test_a_listener_that_answers_to_the_end_still_takes_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        one = spec(last=True)
        leave_all([one], {one.name: sock.dup()})
        with socket.create_connection(sock.getsockname(), timeout=20):
            sock.accept()[0].close()

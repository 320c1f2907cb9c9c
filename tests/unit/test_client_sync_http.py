"""The blocking HTTP client's connections that wait for their next call."""

import fcntl
import resource
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from duetime.client.sync_http import IDLE_S, IdleConnection

BEYOND_SELECT = 1100


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection whose number is beyond what select() takes, and its other end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * BEYOND_SELECT)), hard))
    low, other = socket.socketpair()
    with low, other, socket.socket(fileno=fcntl.fcntl(low.fileno(), fcntl.F_DUPFD, BEYOND_SELECT)) as high:
        low.close()
        yield high, other
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def idle(sock: socket.socket, *, for_s: float = 0) -> IdleConnection:
    connection = HTTPConnection("localhost")
    connection.sock = sock
    return IdleConnection(connection, time.monotonic() - for_s)


def test_a_connection_is_used_again_whatever_its_number(ends: tuple[socket.socket, socket.socket]) -> None:
    assert idle(ends[0]).is_usable()


def test_a_connection_that_the_server_closed_is_not_used_again(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[1].close()
    assert not idle(ends[0]).is_usable()


def test_an_old_connection_is_not_used_again(ends: tuple[socket.socket, socket.socket]) -> None:
    assert not idle(ends[0], for_s=IDLE_S).is_usable()

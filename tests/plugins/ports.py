"""Free TCP ports on the loopback interface.

`free_port` is a port for one test; `find_free_port()` is for helpers that start servers. No test process of this
machine gets it a second time while this one lives, and the kernel gives no such port to a connection or to a server on
port 0: it is still free when the server binds it, and when a server that was killed comes back.
"""

import fcntl
import functools
import os
import random
import socket
import tempfile
from pathlib import Path

import pytest

CHANCE = random.SystemRandom()
"""Not the generator that has the same seed in every process of a run of tests."""


def find_free_port() -> int:
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("127.0.0.1", CHANCE.choice(ports_of_nobody())))
            except OSError:
                continue
            port = int(probe.getsockname()[1])
        if claim(port):
            return port


def claim(port: int) -> bool:
    """Returns whether this process has just become the one that may use the port, which lasts until it ends."""
    if port in _claimed:
        return False
    try:
        fcntl.lockf(claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    _claimed.add(port)
    return True


_claimed = set[int]()


@functools.cache
def claims() -> int:
    """An empty file that all test processes of this user have open: the one that locks byte N has port N."""
    path = Path(tempfile.gettempdir()) / f"duetime-test-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def kernels_ports() -> range:
    """What the kernel chooses from for connections and for port 0."""
    lowest, highest = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return range(int(lowest), int(highest) + 1)


@functools.cache
def ports_of_nobody() -> list[int]:
    taken = kernels_ports()
    return [port for port in range(10_000, 65_536) if port not in taken] or [0]


@pytest.fixture
def free_port() -> int:
    return find_free_port()

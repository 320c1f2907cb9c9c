"""Free TCP ports on the loopback interface.

`free_port` is a port for one test; `find_free_port()` is for helpers that start servers. The port is free when it is
handed out, not reserved: a server that can take port 0 and say which one it got is better still. The kernel gives no
such port to a connection or to a server on port 0, so it is still free when a server that was killed comes back.
"""

import functools
import random
import socket
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
            return int(probe.getsockname()[1])


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

"""Free TCP ports on the loopback interface.

`free_port` is a port for one test; `find_free_port()` is for helpers that start servers. The port is free when it is
handed out, not reserved: a server that can take port 0 and say which one it got is better still.
"""

import socket

import pytest


def find_free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def free_port() -> int:
    return find_free_port()

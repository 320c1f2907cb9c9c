"""The proxy of the tests closes every connection, also one that is being accepted when the test ends."""

import asyncio
import gc
import socket
from contextlib import suppress

import pytest

from tests.faults.losing_proxy import STEPS_TO_ACCEPT, LosingProxy


@pytest.mark.parametrize("steps", range(STEPS_TO_ACCEPT))
async def test_a_connection_that_is_being_accepted_is_closed(steps: int) -> None:
    """A transport that stays open would be reported by whichever test runs when it is collected."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with socket.socket() as client:
        async with LosingProxy(port) as proxy:
            client.setblocking(False)
            assert client.connect_ex(("127.0.0.1", proxy.port)) != 0
            for _ in range(steps):
                await asyncio.sleep(0)
        client.setblocking(True)
        client.settimeout(5)
        with suppress(ConnectionResetError):  # it was never accepted
            assert client.recv(1) == b""
    server.close()
    gc.collect()

"""A proxy in front of Redis, or of any server, that loses answers: what was asked takes effect, and nobody is told.

async with LosingProxy(server.port) as proxy:
    store = await RedisStore.open(proxy.url)
    proxy.loses_next = True               # the next answer is lost, and its connection ends
    proxy.on_loss = proxy.refuse          # ... and after that nobody gets through any more
    proxy.accept()
    proxy.go_silent()                     # connections stay open, and nothing comes through them any more
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

STEPS_TO_ACCEPT = 8
"""More turns of the loop than there are between a connection that is accepted and the first step of `_serve`."""


class LosingProxy:
    """Passes everything on until it is told to lose something. `lost` counts the answers that it lost."""

    def __init__(self, port: int) -> None:
        self.target = port
        """The server that new connections lead to; those that exist stay where they are."""
        self.second_target: int | None = None
        """Another server, to which every second new connection leads."""
        self._connections = 0
        self._silent_before = 0
        self._serving: set[asyncio.Task[None]] = set()
        self._server_sides: set[asyncio.StreamWriter] = set()
        self.loses_next = False
        self.loses_every = 0
        """How many answers get through between two that are lost; 0: all."""
        self.delay_s = 0.0
        """How long everything takes on its way to Redis."""
        self._flows = asyncio.Event()
        self._flows.set()
        self._answers = 0
        self.on_loss: Callable[[], Awaitable[None] | None] | None = None
        """Called once, with the next answer that is lost, and waited for before its connection ends."""
        self.lost = 0
        self._is_refusing = False
        self._passes = 0

    async def __aenter__(self) -> "LosingProxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_refusing = True
        for listening in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        for _ in range(STEPS_TO_ACCEPT):
            await asyncio.sleep(0)  # a connection that was accepted leaks if the server is closed before it is served
        self._server.close()
        self.cut()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def refuse(self, *, after: int = 0) -> None:
        """Nobody gets through, once so many more answers were passed on: connections are closed at once."""
        self._is_refusing, self._passes = not after, after

    def cut(self) -> None:
        """End all connections; new ones get through."""
        for task in self._serving:
            task.cancel()

    def stall(self) -> None:
        """Keep all connections open and pass nothing on, until flow() is called."""
        self._flows.clear()

    def flow(self) -> None:
        self._flows.set()

    def go_silent(self, *, half_open: bool = False) -> None:
        """Pass nothing on through the connections that exist, which stay open; new ones get through.

        `half_open`: the server's side of them is closed, and the clients are not told.
        """
        self._silent_before = self._connections + 1
        if half_open:
            for connection in self._server_sides:
                connection.close()

    def leave(self) -> None:
        """Nobody can connect any more."""
        self._server.close()

    def accept(self) -> None:
        self._is_refusing = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        if self._is_refusing:
            writer.close()
            return
        self._connections += 1
        number = self._connections
        target = self.second_target if self.second_target and number % 2 else self.target
        try:
            from_redis, to_redis = await asyncio.open_connection("127.0.0.1", target)
        except (OSError, asyncio.CancelledError):  # the server is down, or cut() was called
            writer.close()
            return
        self._server_sides.add(to_redis)
        asking = asyncio.create_task(self._pass_on(reader, to_redis, number, answers=False))
        answering = asyncio.create_task(self._pass_on(from_redis, writer, number, answers=True))
        try:
            with suppress(asyncio.CancelledError):  # the test is over
                await asyncio.wait([asking, answering], return_when=asyncio.FIRST_COMPLETED)
                if number < self._silent_before:
                    await asyncio.wait([asking])  # until the client gives up
        finally:
            self._server_sides.discard(to_redis)
            for way in (asking, answering):
                way.cancel()
            writer.close()
            to_redis.close()
            with suppress(asyncio.CancelledError):  # cut() came while the connection ended by itself
                await asyncio.gather(asking, answering, return_exceptions=True)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int, *, answers: bool
    ) -> None:
        while data := await reader.read(65536):
            if number < self._silent_before:
                continue
            self._answers += answers
            if answers and self.loses_every and self._answers % self.loses_every == 0:
                self.loses_next = True
            if answers and self.loses_next:
                self.loses_next, self.lost = False, self.lost + 1
                on_loss, self.on_loss = self.on_loss, None
                if on_loss is not None and (waiting := on_loss()) is not None:
                    await waiting
                break
            if self.delay_s and not answers:
                await asyncio.sleep(self.delay_s)
            await self._flows.wait()
            writer.write(data)
            await writer.drain()
            if answers and self._passes:
                self.refuse(after=self._passes - 1)
                if self._is_refusing:
                    break

"""A client that says exactly the bytes it is told to, and a server for one ASGI application; both on real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.types import Receive, Scope, Send

from duetime.http.exchange import ClientGone
from duetime.http.listener import Listener
from duetime.http.service import Budget, HttpLimits
from duetime.protocols.asgi import refusal_body

QUICK = HttpLimits(head_s=0.2, body_s=0.2, idle_s=0.2, write_s=0.2, linger_s=0.2)
Reply = tuple[int, dict[str, str], bytes]


class Peer:
    """A client that says exactly the bytes it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), headers

    async def reply(self, *, to_head: bool = False) -> Reply:
        status, headers = await self.head()
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while size := int((await self.reader.readline()).strip(), 16):
                body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readexactly(2)
        elif "content-length" in headers and not to_head:
            body = await self.reader.readexactly(int(headers["content-length"]))
        return status, headers, body

    async def closed(self) -> bool:
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True

    async def ask(self, data: bytes) -> Reply:
        self.say(data)
        return await self.reply()


class Server:
    def __init__(self, listener: Listener, port: int) -> None:
        self.listener = listener
        self.port = port
        self.peers: list[Peer] = []

    async def connect(self) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port))
        self.peers.append(peer)
        return peer


App = Callable[[Scope, Receive, Send], Awaitable[None]]


@asynccontextmanager
async def serving(app: App, limits: HttpLimits | None = None, *, budget: Budget | None = None) -> AsyncIterator[Server]:
    sock = socket.create_server(("127.0.0.1", 0), backlog=512)
    listener = Listener(app, [sock], limits=limits, budget=budget)
    if budget:
        listener.service.refusal_body = refusal_body
    await listener.start()
    server = Server(listener, sock.getsockname()[1])
    try:
        async with asyncio.timeout(60):
            yield server
    finally:
        for peer in server.peers:
            peer.writer.transport.abort()
        await listener.stop(1)
        assert not (budget and budget.held)


async def answer(send: Send, status: int = 200, body: bytes = b"", *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def read_all(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message["body"]
        if not message["more_body"]:
            return body


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = await read_all(receive)
    text = f"{scope['method']} {scope['path']} {scope['query_string'].decode()} ".encode()
    await answer(send, 200, text + body)

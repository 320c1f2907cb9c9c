"""A real HTTP receiver that counts what it gets, and answers as it is told: at once, late, badly or not at all.

async with Receiver() as receiver:
    receiver.answer = lambda call: Says(b'{"code":200}')
    ...
    receiver.calls[0].fields["to"] == "ann"
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from time import time
from urllib.parse import parse_qsl, urlsplit

from tests.plugins.until import until


@dataclass(frozen=True)
class Call:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    at_ms: int

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def fields(self) -> dict[str, str]:
        text = urlsplit(self.target).query if self.method == "GET" else self.body.decode()
        return dict(parse_qsl(text, keep_blank_values=True))


@dataclass(frozen=True)
class Says:
    """An answer. `hold` is waited for first; `raw` is sent instead of HTTP; `drop` closes without a word."""

    body: bytes = b"ok"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hold: asyncio.Event | None = None
    raw: bytes | None = None
    drop: bool = False


OK = Says()
EMPTY = Says(b"")


class Receiver:
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answer: Callable[[Call], Says] = lambda call: OK
        self.open = 0
        self.most_at_once = 0
        self._at_once = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> "Receiver":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    def hold(self) -> asyncio.Event:
        """Leave all calls without an answer until the event is set."""
        event = asyncio.Event()
        self.answer = lambda call: Says(hold=event)
        return event

    async def got(self, count: int) -> list[Call]:
        """Return once it was called that often."""
        await until(lambda: len(self.calls) >= count)
        return self.calls

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.open += 1
        try:
            while (call := await self._read(reader)) is not None:
                self.calls.append(call)
                self._at_once += 1
                self.most_at_once = max(self.most_at_once, self._at_once)
                try:
                    said = self.answer(call)
                    if said.hold:
                        await said.hold.wait()
                finally:
                    self._at_once -= 1
                if said.drop or not self._write(writer, said):
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Call | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        except asyncio.IncompleteReadError:
            return None
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Call(method, target, headers, body, int(time() * 1000))

    def _write(self, writer: asyncio.StreamWriter, said: Says) -> bool:
        if said.raw is not None:
            writer.write(said.raw)
            return False
        headers = {"content-length": str(len(said.body)), **said.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {said.status} Said\r\n{lines}\r\n".encode() + said.body)
        return True

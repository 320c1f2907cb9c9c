"""A bare HTTP client: every byte of a request is the test's own, and so is every byte of the answer."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

DEADLINE_S = 90

Headers = Iterable[tuple[str, str]] | Mapping[str, str]


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Address(NamedTuple):
    host: str
    port: int

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Headers = (),
        query: Mapping[str, object] | str = "",
    ) -> Response:
        """One request on a connection of its own."""
        async with self.connect() as (reader, writer):
            writer.write(request_bytes(method, path, body=body, headers=headers, query=query))
            async with asyncio.timeout(DEADLINE_S):
                return await read_response(reader, method)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            yield reader, writer
        finally:
            writer.close()


def request_bytes(
    method: str,
    path: str,
    *,
    body: bytes = b"",
    headers: Headers = (),
    query: Mapping[str, object] | str = "",
) -> bytes:
    text = query if isinstance(query, str) else urlencode(query)
    target = f"{path}?{text}" if text else path
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in pairs)]
    if body or method in ("PUT", "POST"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def read_response(reader: asyncio.StreamReader, method: str = "GET") -> Response:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    start, *lines = head.rstrip("\r\n").split("\r\n")
    status = int(start.split(" ")[1])
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if status == 100:
        return await read_response(reader, method)
    if method == "HEAD" or status == 204:
        return Response(status, headers, b"")
    return Response(status, headers, await reader.readexactly(int(headers["content-length"])))

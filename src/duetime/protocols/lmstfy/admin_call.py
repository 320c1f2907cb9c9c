"""What a handler of the admin listener gets: the path's parts, the query, and a body on demand."""

from collections.abc import AsyncGenerator
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.types import Receive, Scope

from duetime.protocols.asgi import header
from duetime.protocols.lmstfy.wire import parse_query, read_all

MAX_BODY = 65_536


class AdminCall:
    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._scope = scope
        self._receive = receive
        self.query = parse_query(scope["query_string"])
        self.namespace = self.token = ""

    async def body(self) -> bytes:
        return await read_all(self._scope, self._receive, MAX_BODY, "body too large")

    async def form(self) -> dict[str, str]:
        """The values of the query and of a form in the body; the form wins. A body of another type is no form."""
        body = await self.body()
        kind = header(self._scope, b"content-type").decode("latin-1").partition(";")[0].strip().lower()
        sent: dict[str, str] = {}
        if kind == "application/x-www-form-urlencoded":
            pairs = parse_qsl(body.decode(errors="replace"), keep_blank_values=True)
            sent = dict(reversed(pairs))
        elif kind == "multipart/form-data":
            sent = await self._multipart(body)
        return {**self.query, **sent}

    async def _multipart(self, body: bytes) -> dict[str, str]:
        async def stream() -> AsyncGenerator[bytes, None]:
            yield body

        parser = MultiPartParser(Headers(scope=self._scope), stream(), max_files=0, max_fields=20)
        try:
            form = await parser.parse()
        except (MultiPartException, KeyError, ValueError):
            return {}
        return {name: value for name, value in form.items() if isinstance(value, str)}

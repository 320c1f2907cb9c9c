"""Calls over HTTP.

Retries are here, once: a call that certainly did not arrive is sent again, one whose answer was lost only if it is
repeatable, and a server that asks for patience gets it.
"""

import asyncio
import functools
import ssl
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx
import msgspec

from duetime.backoff import Outage
from duetime.client.calls import Call, Request
from duetime.errors import DuetimeError, StoreUnavailable
from duetime.wire import convert, messages

Answer = TypeVar("Answer")

TRIES = 5
CONNECT_S = 5.0
REPLY_S = 30.0
OK_BELOW = 400

MoreHeaders = Callable[[], dict[str, str]]
"""What each request of a client carries beside its own headers."""


@functools.cache
def _trust() -> ssl.SSLContext:
    """What all clients of this process check servers with. To read the certificates takes ten times as long as all else
    that a new client does.
    """
    return httpx.create_ssl_context()


def _headers(token: str | None) -> dict[bytes, bytes]:
    headers = {b"content-type": b"application/json", b"accept": b"application/json"}
    # In bytes, because a token may be any UTF-8 and the client takes text for ASCII.
    return headers | {b"authorization": b"Bearer " + token.encode()} if token else headers


def _built(
    client: httpx.Client | httpx.AsyncClient, request: Request, call: Call[Any], headers: dict[str, str]
) -> httpx.Request:
    timeout = httpx.Timeout(REPLY_S + call.wait_ms / 1000, connect=CONNECT_S)
    return client.build_request(request.method, request.path, content=request.body, headers=headers, timeout=timeout)


class Attempts:
    """What to do after each try of one call; the same for the sync and the async transport."""

    def __init__(self, call: Call[Any]) -> None:
        self._call = call
        self._outage = Outage()

    def after_error(self, error: httpx.TransportError) -> float:
        """The pause before the next try, or the error that ends it."""
        unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        if (unsent or self._call.repeatable) and (pause := self._pause()) is not None:
            return pause
        raise StoreUnavailable(f"the server cannot be reached: {error or type(error).__name__}", unknown=not unsent)

    def after_refusal(self, error: DuetimeError) -> float:
        """As `after_error`, after a refusal of the server."""
        passing = isinstance(error, StoreUnavailable) and (self._call.repeatable or not error.outcome_unknown)
        if passing and (pause := self._pause()) is not None:
            return pause
        raise error

    def _pause(self) -> float | None:
        self._outage.failed()
        return self._outage.pause_s if self._outage.failures < TRIES else None


def _refusal(reply: httpx.Response) -> DuetimeError:
    try:
        return convert.error(msgspec.json.decode(reply.content, type=messages.ErrorOut))
    except msgspec.MsgspecError:
        return DuetimeError(f"the server answered {reply.status_code}: {reply.text[:200]}", status=reply.status_code)


class AsyncHttp:
    def __init__(self, url: str, token: str | None, *, more_headers: MoreHeaders = dict) -> None:
        self._client = httpx.AsyncClient(base_url=url, headers=_headers(token), verify=_trust())
        self._more_headers = more_headers

    async def send(self, call: Call[Answer]) -> Answer:
        request, attempts = call.request(), Attempts(call)
        while True:
            try:
                reply = await self._client.send(_built(self._client, request, call, self._more_headers()))
                if reply.status_code < OK_BELOW:
                    return call.parse(reply.content)
                pause = attempts.after_refusal(_refusal(reply))
            except httpx.TransportError as error:
                pause = attempts.after_error(error)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        await self._client.aclose()


class SyncHttp:
    def __init__(self, url: str, token: str | None, *, more_headers: MoreHeaders = dict) -> None:
        self._client = httpx.Client(base_url=url, headers=_headers(token), verify=_trust())
        self._more_headers = more_headers

    def send(self, call: Call[Answer]) -> Answer:
        request, attempts = call.request(), Attempts(call)
        while True:
            try:
                reply = self._client.send(_built(self._client, request, call, self._more_headers()))
                if reply.status_code < OK_BELOW:
                    return call.parse(reply.content)
                pause = attempts.after_refusal(_refusal(reply))
            except httpx.TransportError as error:
                pause = attempts.after_error(error)
            time.sleep(pause)

    def close(self) -> None:
        self._client.close()

"""Calls over HTTP for asyncio, by httpx."""

import asyncio
from typing import TypeVar

import httpx

from duetime.client.call import Call
from duetime.client.sync_http import CONNECT_S, OK_BELOW, REPLY_S, Attempts, MoreHeaders, headers, trust

Answer = TypeVar("Answer")


class AsyncHttp:
    def __init__(self, url: str, token: str | None, *, more_headers: MoreHeaders = dict) -> None:
        sent = {name.encode(): value for name, value in headers(token).items()}
        self._client = httpx.AsyncClient(base_url=url, headers=sent, verify=trust())
        self._more_headers = more_headers

    async def send(self, call: Call[Answer]) -> Answer:
        request, attempts = call.request(), Attempts(call)
        timeout = httpx.Timeout(REPLY_S + call.wait_ms / 1000, connect=CONNECT_S)
        while True:
            try:
                reply = await self._client.request(
                    request.method, request.path, content=request.body, headers=self._more_headers(), timeout=timeout
                )
                if reply.status_code < OK_BELOW:
                    return call.parse(reply.content)
                pause = attempts.after_refusal(reply.status_code, reply.content)
            except httpx.TransportError as error:
                unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
                pause = attempts.after_error(error, unsent=unsent)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        await self._client.aclose()

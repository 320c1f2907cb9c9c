"""Calls callbacks over HTTP: pooled connections, bounded answers, no redirects, no proxies, only checked addresses.

A call never raises because of its receiver: every failure is a CallbackAnswer that says what went wrong. One attempt
is one call, or, for a topic that wants an answer that is not empty, up to three quick calls, 10 ms apart.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from ipaddress import ip_address

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from duetime.callbacks.outcome import CallbackAnswer
from duetime.callbacks.request import USER_AGENT, CallbackRequest
from duetime.callbacks.targets import AllowedTargets, ForbiddenTarget
from duetime.model.topic import Success, Topic

CONNECT_S = 1.0
QUICK_TRIES = 3
QUICK_PAUSE_S = 0.01
MAX_ANSWER = 65_536
"""How many bytes of an answer are read; the rest is not waited for."""
KEPT_HEADERS = ("retry-after", "content-type", "location", "server")
DNS_CACHE_S = 10

NOT_COMPRESSED = {"user-agent": USER_AGENT, "accept": "*/*", "accept-encoding": "identity"}


class Caller:
    """An async context manager around one session of pooled connections."""

    def __init__(self, targets: AllowedTargets) -> None:
        self._targets = targets
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Caller":
        connector = aiohttp.TCPConnector(
            limit=0, resolver=GuardedResolver(self._targets), ttl_dns_cache=DNS_CACHE_S, keepalive_timeout=30
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=NOT_COMPRESSED,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def attempt(
        self, request: CallbackRequest, topic: Topic, *, headers: Mapping[str, str] | None = None
    ) -> CallbackAnswer:
        """Make one call; where the topic wants an answer that is not empty, up to three. Answers the last one's answer,
        with the time of all.
        """
        timeout_ms, verify = topic.timeout_ms, topic.verify_tls
        answer = await self.call(request, timeout_ms=timeout_ms, verify=verify, headers=headers)
        spent = answer.ms
        for _ in range(QUICK_TRIES - 1):
            if not answer.is_empty or topic.success is Success.STATUS:
                return answer
            await asyncio.sleep(QUICK_PAUSE_S)
            answer = await self.call(request, timeout_ms=timeout_ms, verify=verify, headers=headers)
            spent += answer.ms
        return CallbackAnswer(answer.status, answer.body, answer.headers, answer.error, answer.unreachable, spent)

    async def call(
        self, request: CallbackRequest, *, timeout_ms: int, verify: bool, headers: Mapping[str, str] | None = None
    ) -> CallbackAnswer:
        if self._session is None:
            raise RuntimeError("the caller is not open")
        began = time.perf_counter()

        def failed(why: str, *, unreachable: bool = False) -> CallbackAnswer:
            return CallbackAnswer(error=why, unreachable=unreachable, ms=_since(began))

        try:
            url = URL(request.url, encoded=True)
            self._targets.check(url.raw_host or "")
            async with self._session.request(
                request.method,
                url,
                data=request.body or None,
                headers={**request.headers, **(headers or {})},
                allow_redirects=False,
                ssl=verify,
                timeout=aiohttp.ClientTimeout(total=timeout_ms / 1000, sock_connect=CONNECT_S),
            ) as response:
                body = await _read(response)
                kept = {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers}
                return CallbackAnswer(response.status, body, kept, ms=_since(began))
        except aiohttp.ConnectionTimeoutError:
            return failed(f"no connection within {min(timeout_ms, int(CONNECT_S * 1000))} ms", unreachable=True)
        except TimeoutError:
            return failed(f"no answer within {timeout_ms} ms")
        except ForbiddenTarget as error:
            return failed(str(error), unreachable=True)
        except aiohttp.ClientConnectorError as error:
            return failed(f"no connection: {_why(error)}", unreachable=True)
        except (aiohttp.ClientError, ssl.SSLError, OSError, ValueError) as error:
            return failed(f"the call broke: {_why(error)}")


class GuardedResolver(AbstractResolver):
    """Resolves names and checks their addresses; a name with one forbidden address is refused."""

    def __init__(self, targets: AllowedTargets) -> None:
        self._targets = targets
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found: Sequence[ResolveResult] = await self._inner.resolve(host, port, family)
        for one in found:
            self._targets.check_address(ip_address(one["host"].partition("%")[0]))
        return list(found)

    async def close(self) -> None:
        await self._inner.close()


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """At most MAX_ANSWER bytes. The connection of a longer answer is closed and not used for another call."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size >= MAX_ANSWER:
            response.close()
            break
    return b"".join(chunks)[:MAX_ANSWER]


def _since(began: float) -> int:
    return round((time.perf_counter() - began) * 1000)


def _why(error: BaseException) -> str:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return f"{type(cause).__name__}: {cause}"[:500]

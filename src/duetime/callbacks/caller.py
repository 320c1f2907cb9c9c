"""Calls callbacks over HTTP: pooled connections, bounded answers, no redirects, no proxies, only checked addresses.

A call never raises because of its receiver: every failure is a CallbackAnswer that says what went wrong. One attempt
is one call, or, for a topic that wants an answer that is not empty, up to three quick calls, 10 ms apart. Only the
server's extra installs what this module needs.
"""

import asyncio
import socket
import ssl
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo
from ipaddress import ip_address

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from msgspec import Struct
from standardwebhooks.webhooks import hmac_data
from yarl import URL

from duetime.callbacks.outcome import CallbackAnswer, describe, judge
from duetime.callbacks.request import ID_HEADER, USER_AGENT, CallbackRequest, write_request
from duetime.callbacks.targets import AllowedTargets, ForbiddenTarget
from duetime.callbacks.topic_registry import SECRET_PREFIX, TopicAddress
from duetime.model.clock import SystemClock
from duetime.model.condition import parse
from duetime.model.job import Delivery, Lease
from duetime.model.topic import Success, Topic

CONNECT_S = 1.0
QUICK_TRIES = 3
QUICK_PAUSE_S = 0.01
MAX_ANSWER = 65_536
"""How many bytes of an answer are read; the rest is not waited for."""
KEPT_HEADERS = ("retry-after", "content-type", "location", "server")
DNS_CACHE_S = 10
SAMPLE_BODY = b'{"sample":"1"}'

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

    async def attempt(self, request: CallbackRequest, topic: Topic, *, now_ms: int) -> CallbackAnswer:
        """Make one signed call; where the topic wants an answer that is not empty, up to three. Returns the answer of
        the last call, with the time of all.
        """
        headers, spent = attempt_headers(topic, request, now_ms), 0
        for _ in range(QUICK_TRIES - 1):
            answer = await self.call(request, timeout_ms=topic.timeout_ms, verify=topic.verify_tls, headers=headers)
            if topic.success is Success.STATUS or not answer.is_empty:
                break
            spent += answer.ms
            await asyncio.sleep(QUICK_PAUSE_S)
        else:
            answer = await self.call(request, timeout_ms=topic.timeout_ms, verify=topic.verify_tls, headers=headers)
        return replace(answer, ms=answer.ms + spent) if spent else answer

    async def call(
        self, request: CallbackRequest, *, timeout_ms: int, verify: bool, headers: Mapping[str, str] | None = None
    ) -> CallbackAnswer:
        if self._session is None:
            raise RuntimeError("Caller must be opened first")
        began = time.perf_counter()

        def failed(why: str, *, unreachable: bool = False) -> CallbackAnswer:
            return CallbackAnswer(error=why, unreachable=unreachable, ms=round((time.perf_counter() - began) * 1000))

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
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) >= MAX_ANSWER:
                        response.close()  # its connection is not used for another call
                        break
                kept = {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers}
                spent_ms = round((time.perf_counter() - began) * 1000)
                return CallbackAnswer(response.status, bytes(body[:MAX_ANSWER]), kept, ms=spent_ms)
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


def _why(error: BaseException) -> str:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return f"{type(cause).__name__}: {cause}"[:500]


def attempt_headers(topic: Topic, request: CallbackRequest, now_ms: int) -> dict[str, str]:
    """The headers of one attempt by Standard Webhooks: its time, and a signature if the topic has a secret.

    The time is that of the attempt, so that a receiver does not refuse a retry as too old. While a secret is being
    changed, both the old and the new one sign, so that a receiver with either accepts the call.
    """
    second = str(now_ms // 1000)
    if not topic.secret:
        return {"webhook-timestamp": second}
    secrets = [topic.secret, topic.old_secret] if now_ms < topic.old_secret_until else [topic.secret]
    # The library's own `sign` takes only text, and a body may be any bytes.
    signed = f"{request.headers[ID_HEADER]}.{second}.".encode() + request.body
    keys = [b64decode(secret.removeprefix(SECRET_PREFIX)) for secret in secrets if secret]
    signatures = [f"v1,{b64encode(hmac_data(key, signed)).decode()}" for key in keys]
    return {"webhook-timestamp": second, "webhook-signature": " ".join(signatures)}


class Sample(Struct, frozen=True):
    """A request, its answer, and how the courier would judge it."""

    request: CallbackRequest
    headers: dict[str, str]
    answer: CallbackAnswer
    verdict: str
    why: str


async def call_sample(
    topic: Topic, address: TopicAddress, targets: AllowedTargets, *, body: bytes = b"", zone: tzinfo | None = None
) -> Sample:
    """Call a topic's callback once, to show what its receiver gets and answers; without the quick repeats of a real
    attempt. Nothing is stored or counted.
    """
    now_ms = SystemClock().now_ms()
    lease = Lease(address.queue, "sample", now_ms, 1)
    delivery = Delivery(lease, body or SAMPLE_BODY, now_ms, now_ms, topic.priority, 0, 1)
    request = write_request(topic, delivery, zone)
    signed = attempt_headers(topic, request, now_ms)
    async with Caller(targets) as caller:
        answer = await caller.call(request, timeout_ms=topic.timeout_ms, verify=topic.verify_tls, headers=signed)
    verdict = judge(topic, parse(topic.retry_if), answer)
    headers = {**NOT_COMPRESSED, **request.headers, **signed}
    return Sample(request, headers, answer, str(verdict), describe(verdict, answer))

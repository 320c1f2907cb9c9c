"""Traces of a server: the engines' spans go to an OTLP collector, as children of those that its callers sent along.

Needs the extra [otel] and the setting `otel_endpoint`. The rest is set as everywhere with OpenTelemetry's own variables
(OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS ...).
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from opentelemetry import context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from starlette.types import ASGIApp, Receive, Scope, Send

from duetime.engine.engine import Engine
from duetime.model.errors import LeaseLost
from duetime.model.job import DEFAULT_TTR_MS, Delivery, IfExists, Lease, Moved, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Mark, Pushed, Store
from duetime.tracing.spans import SYSTEM, Tracing, now_ns, propagator

TRACES = "/v1/traces"
EXPORT_S = 3.0
"""The deadline for sending spans to the collector; a server that stops waits at most this long."""
CARRIED = (b"traceparent", b"tracestate")


class TracedEngine(Engine):
    """An engine whose verbs leave spans. Takes the arguments of an Engine, and the maker of its spans.

    It is a subclass and no recorder: a span lies around one caller's request, in that caller's context, and a push
    writes its context into the jobs before they are stored. Recorders get store calls, which many callers share. The
    plain engine knows nothing of it and pays nothing.
    """

    def __init__(self, store: Store, *, tracing: Tracing, **options: Any) -> None:
        super().__init__(store, **options)
        self._tracing = tracing

    async def push(
        self,
        queue: Queue,
        jobs: Sequence[NewJob],
        *,
        if_exists: IfExists = IfExists.KEEP,
        mark: Mark | None = None,
        made_ids: bool = False,
    ) -> Pushed:
        with self._tracing.pushing(queue, jobs) as carried:
            return await super().push(queue, carried, if_exists=if_exists, mark=mark, made_ids=made_ids)

    async def reserve(
        self, queues: Sequence[Queue], *, limit: int = 1, ttr_ms: int = DEFAULT_TTR_MS, wait_ms: int = 0
    ) -> list[Delivery]:
        began_ns = now_ns()
        found = await super().reserve(queues, limit=limit, ttr_ms=ttr_ms, wait_ms=wait_ms)
        self._tracing.received(found, began_ns)
        return found

    async def ack(self, leases: Sequence[Lease]) -> list[Moved | LeaseLost | None]:
        if not leases:
            return []
        with self._tracing.settling("ack", leases):
            return await super().ack(leases)

    async def ack_by_id(self, queue: Queue, ids: Sequence[str]) -> Sequence[Moved | None]:
        if not ids:
            return []
        with self._tracing.settling("ack", [Lease(queue, job_id, 0, 0) for job_id in ids]):
            return await super().ack_by_id(queue, ids)

    async def release(self, lease: Lease, *, delay_ms: int = 0, error: str = "") -> Moved:
        with self._tracing.settling("release", [lease]):
            return await super().release(lease, delay_ms=delay_ms, error=error)

    async def kill(self, lease: Lease, *, error: str = "") -> Moved:
        with self._tracing.settling("kill", [lease]):
            return await super().kill(lease, error=error)


class ServerTracing:
    """Tracing of a server: spans of its engines, and the trace context of incoming requests."""

    def __init__(self, tracing: Tracing) -> None:
        self.engine = partial(TracedEngine, tracing=tracing)

    def around(self, app: ASGIApp) -> ASGIApp:
        """The same application, within the trace that a request's headers name."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            headers: list[tuple[bytes, bytes]] = scope.get("headers", [])
            carrier = {name.decode(): value.decode("latin-1") for name, value in headers if name in CARRIED}
            if not carrier:
                return await app(scope, receive, send)
            token = context.attach(propagator.extract(carrier))
            try:
                return await app(scope, receive, send)
            finally:
                context.detach(token)

        return traced


@asynccontextmanager
async def export_traces(endpoint: str, exporter: SpanExporter | None = None) -> AsyncGenerator[ServerTracing, None]:
    """Leaving the block sends what is left, in a thread: a collector that is gone must not hold up the loop."""
    provider = TracerProvider(resource=Resource.create({"service.name": SYSTEM}))
    exporter = exporter or OTLPSpanExporter(endpoint=traces_url(endpoint), timeout=EXPORT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        yield ServerTracing(Tracing(provider.get_tracer(SYSTEM)))
    finally:
        await asyncio.to_thread(provider.shutdown)


def traces_url(endpoint: str) -> str:
    """A collector's bare address gets the path that it listens on."""
    parts = urlsplit(endpoint)
    return endpoint if parts.path.strip("/") else urlunsplit(parts._replace(path=TRACES))

"""Traces of a server: the engines' spans go to an OTLP collector, as children of those that its callers sent along.

Needs the extra [otel] and the setting `otel_endpoint`. The rest is set as everywhere with OpenTelemetry's own variables
(OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS ...).
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit, urlunsplit

from opentelemetry import context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from starlette.types import ASGIApp, Receive, Scope, Send

from duetime.tracing.engine import TracedEngine
from duetime.tracing.spans import SYSTEM, Tracing, propagator

TRACES = "/v1/traces"
EXPORT_S = 3.0
"""The deadline for sending spans to the collector; a server that stops waits at most this long."""
CARRIED = (b"traceparent", b"tracestate")


class ServerTracing:
    """What a server needs to be traced: engines that leave spans, and requests that bring their callers' context."""

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

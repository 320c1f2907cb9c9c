"""Spans of pushes and deliveries, as the real SDK of OpenTelemetry records them."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from duetime.client import AsyncClient, Client
from duetime.engine.pools import Pools
from duetime.metrics.scraper import Scraper
from duetime.model.errors import InvalidSettings, JobExists, LeaseLost
from duetime.model.job import IfExists, Lease, NewJob
from duetime.model.names import MAX_ATTRIBUTES, Queue
from duetime.protocols.v1 import V1App
from duetime.server.supervision.siblings import Alone
from duetime.stores.memory.store import MemoryStore
from duetime.stores.open import open_store
from duetime.tracing.client import AsyncTraced, processing
from duetime.tracing.metrics_export import MetricsExport
from duetime.tracing.server import ServerTracing, TracedEngine, traces_url
from duetime.tracing.spans import Tracing
from tests.protocols.v1.server import OneEngine, OpenGate, listen

QUEUE = Queue("default", "q")


class Spans(InMemorySpanExporter):
    def take(self) -> list[ReadableSpan]:
        found = list(self.get_finished_spans())
        self.clear()
        return found

    def one(self) -> ReadableSpan:
        [span] = self.take()
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def provider(spans: Spans) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


@pytest.fixture
def tracing(provider: TracerProvider) -> Tracing:
    return Tracing(provider.get_tracer("test"))


@pytest.fixture
async def engine(tracing: Tracing) -> AsyncIterator[TracedEngine]:
    async with TracedEngine(MemoryStore(), tracing=tracing) as engine:
        yield engine  # type: ignore[misc]


@pytest.fixture
def global_provider(provider: TracerProvider, monkeypatch: pytest.MonkeyPatch) -> TracerProvider:
    """As the program that uses the SDK would set it; OpenTelemetry allows that once only."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return provider


async def test_a_push_is_a_producer_span_and_travels_with_the_job(engine: TracedEngine, spans: Spans) -> None:
    await engine.push(QUEUE, [NewJob("a", b"body", attributes={"mine": "1"})])
    span = spans.one()
    assert (span.name, span.kind) == ("push default/q", SpanKind.PRODUCER)
    assert dict(span.attributes or {}) == {
        "messaging.system": "duetime",
        "messaging.operation.name": "push",
        "messaging.operation.type": "send",
        "messaging.destination.name": "default/q",
        "messaging.message.id": "a",
        "messaging.message.body.size": 4,
    }
    [job] = await engine.store.get(QUEUE, ["a"])
    assert job is not None
    assert job.attributes == {"mine": "1", "traceparent": traceparent(span)}


def traceparent(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


async def test_a_delivery_links_to_the_push_and_begins_its_own_trace(engine: TracedEngine, spans: Spans) -> None:
    await engine.push(QUEUE, [NewJob("a", b""), NewJob("b", b"")])
    pushed = spans.one()
    assert (pushed.attributes or {})["messaging.batch.message_count"] == 2
    found = await engine.reserve([QUEUE], limit=2)
    received = spans.one()
    assert (received.name, received.kind, received.parent) == ("reserve default/q", SpanKind.CLIENT, None)
    assert [link.context.span_id for link in received.links] == [pushed.context.span_id] * 2
    assert [(link.attributes or {})["messaging.message.id"] for link in received.links] == ["a", "b"]
    await engine.ack([found[0].lease])
    settled = spans.one()
    assert (settled.name, (settled.attributes or {})["messaging.operation.type"]) == ("ack default/q", "settle")
    await engine.release(found[1].lease)
    assert spans.one().name == "release default/q"


async def test_a_long_poll_that_brings_nothing_leaves_no_span(engine: TracedEngine, spans: Spans) -> None:
    assert await engine.reserve([QUEUE], wait_ms=1) == []
    assert await engine.ack([]) == []
    assert spans.take() == []


async def test_errors_are_named_by_their_code(engine: TracedEngine, spans: Spans) -> None:
    await engine.push(QUEUE, [NewJob("a", b"")])
    spans.take()
    with pytest.raises(JobExists):
        await engine.push(QUEUE, [NewJob("a", b"")], if_exists=IfExists.ERROR)
    span = spans.one()
    assert (span.status.status_code, (span.attributes or {})["error.type"]) == (StatusCode.ERROR, JobExists.code)
    with pytest.raises(LeaseLost):
        await engine.kill(Lease(QUEUE, "a", 1, 1))
    assert (spans.one().attributes or {})["error.type"] == LeaseLost.code


async def test_a_job_without_room_for_a_trace_is_pushed_without(engine: TracedEngine) -> None:
    full = {str(number): "" for number in range(MAX_ATTRIBUTES)}
    await engine.push(QUEUE, [NewJob("a", b"", attributes=full), NewJob("b", b"", attributes={"traceparent": "mine"})])
    jobs = await engine.store.get(QUEUE, ["a", "b"])
    assert [job.attributes if job else None for job in jobs] == [full, {"traceparent": "mine"}]
    assert len(await engine.reserve([QUEUE], limit=2)) == 2, "one that is no traceparent is no link, and no error"


async def test_the_store_calls_of_many_requests_belong_to_none(engine: TracedEngine, spans: Spans) -> None:
    await asyncio.gather(*(engine.push(QUEUE, [NewJob(str(number), b"")]) for number in range(10)))
    found = spans.take()
    assert len({span.context.trace_id for span in found if span.context}) == 10
    assert all(span.parent is None for span in found)


# --- the SDK, alone and with a server that is traced, too


async def test_client_and_server_share_a_trace(global_provider: TracerProvider, tracing: Tracing, spans: Spans) -> None:
    async with TracedEngine(MemoryStore(), tracing=tracing) as engine:
        app = ServerTracing(tracing).around(V1App(OneEngine(engine), OpenGate()))
        async with listen(app) as at, AsyncClient(at.url, tracing=True) as client:
            await client.queue("q").push("hello")
            server, sdk = spans.take()
            assert (sdk.kind, server.kind) == (SpanKind.PRODUCER, SpanKind.SERVER)
            assert server.parent is not None
            assert (server.parent.span_id, server.context.trace_id) == (sdk.context.span_id, sdk.context.trace_id)
            delivery = await client.queue("q").pop()
            assert delivery is not None
            assert delivery.attributes["traceparent"] == traceparent(sdk)
            received = spans.take()
            assert [span.name for span in received] == ["reserve default/q"] * 2
            assert all([link.context.span_id for link in span.links] == [sdk.context.span_id] for span in received)
            with processing(delivery):
                await client.ack(delivery)
            acked, settled, processed = spans.take()
            assert (processed.name, processed.kind, processed.parent) == ("process default/q", SpanKind.CONSUMER, None)
            assert processed.context.trace_id != sdk.context.trace_id
            assert acked.context.trace_id == settled.context.trace_id == processed.context.trace_id
            assert [link.context.span_id for link in settled.links] == [sdk.context.span_id]


def test_the_embedded_sync_client(global_provider: TracerProvider, spans: Spans) -> None:
    with Client("memory:", tracing=True) as client:
        client.queue("q").bulk(["a", "b", "c"])
        assert (spans.one().attributes or {})["messaging.batch.message_count"] == 3
        [delivery] = client.queue("q").reserve()
        assert len(spans.one().links) == 1
        client.release(delivery, delay=5)
        assert (spans.one().name, client.queue("q").counts().delayed) == ("release default/q", 1)
        assert spans.take() == [], "looking at counts is no span"


def test_an_ack_and_the_next_pop_have_a_span_each(
    global_provider: TracerProvider, spans: Spans, tmp_path: Path
) -> None:
    with Client(f"sqlite://{tmp_path}/jobs.db", tracing=True) as client:
        queue = client.queue("q")
        queue.bulk(["a", "b"])
        job = queue.pop()
        spans.take()
        assert queue.pop(ack=job) is not None
        assert [(span.name, len(span.links)) for span in spans.take()] == [
            ("ack default/q", 1),
            ("reserve default/q", 1),
        ]


async def test_tracing_is_off_by_default(global_provider: TracerProvider, spans: Spans) -> None:
    async with AsyncClient("memory:") as client:
        assert not isinstance(client._transport, AsyncTraced)
        await client.queue("q").push("hello")
        delivery = await client.queue("q").pop()
    assert delivery is not None
    assert (delivery.attributes, spans.take()) == ({}, [])


def test_nothing_of_it_is_imported_unless_it_is_on() -> None:
    code = (
        "import sys, duetime, duetime.server.process, duetime.cli.main\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://collector/otlp/v1/traces", "https://collector/otlp/v1/traces"),
    ],
)
def test_the_collector_s_address(given: str, used: str) -> None:
    assert traces_url(given) == used


@pytest.mark.parametrize("text", ["soon", "0", "-1", "1.5", "1" * 400])
def test_an_interval_of_the_metrics_export_must_be_milliseconds(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero let the server do nothing but send metrics, and a word ended it with a traceback."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", text)
    with pytest.raises(InvalidSettings, match="OTEL_METRIC_EXPORT_INTERVAL must be"):
        MetricsExport(
            Scraper(Pools({"default": "memory:"}, open_store=open_store), Alone()),
            "http://127.0.0.1:9",
            instance="here",
        )

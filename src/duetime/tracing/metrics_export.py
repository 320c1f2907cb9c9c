"""Sends the metrics of a server to an OTLP collector: the numbers of /metrics, under the same names.

Needs the extra [otel] and the setting `otel_endpoint`. OpenTelemetry's own variables set the rest:
OTEL_METRIC_EXPORT_INTERVAL (milliseconds, 60000 by default), OTEL_METRICS_EXPORTER=none to send traces only,
OTEL_EXPORTER_OTLP_HEADERS ... In a server of several processes one of them sends for all.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from duetime.duties import Rounds, run_duty
from duetime.metrics.meters import MeterKind, Reading, Snapshot
from duetime.metrics.scraper import Scraper
from duetime.model.errors import InvalidSettings
from duetime.tracing.spans import SYSTEM

METRICS = "/v1/metrics"
EXPORT_S = 3.0
"""The deadline for sending to the collector; a server that stops waits at most this long."""
UNKNOWN = 0
"""When a counter began: before this process, because totals are kept in the stores. Zero means unknown in OTLP."""


class MetricsExport:
    """An async context manager that sends now and then, and once more at its end."""

    def __init__(self, scraper: Scraper, endpoint: str, *, instance: str) -> None:
        self._scraper = scraper
        self._exporter: Any = OTLPMetricExporter(endpoint=metrics_url(endpoint), timeout=EXPORT_S)
        self._resource = Resource.create({"service.name": SYSTEM, "service.instance.id": instance})
        self._every_s = _interval_ms(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or "60000") / 1000
        self.loops: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "MetricsExport":
        duty = Rounds("export of metrics", self._send)
        self.loops = [asyncio.create_task(run_duty(duty, first_after_s=self._every_s, survives_bugs=True))]
        return self

    async def __aexit__(self, *_: object) -> None:
        for loop in self.loops:
            loop.cancel()
        await asyncio.gather(*self.loops, return_exceptions=True)
        await self._send()
        await asyncio.to_thread(self._exporter.shutdown)

    async def _send(self) -> float:
        """A collector that does not answer is logged by the exporter; the next round sends newer numbers."""
        snapshot = await self._scraper.snapshot()
        await asyncio.to_thread(self._export, snapshot)
        return self._every_s

    def _export(self, snapshot: Snapshot) -> None:
        now = time.time_ns()
        metrics = [as_metric(reading, now) for reading in snapshot.readings if reading.series]
        scope = ScopeMetrics(InstrumentationScope(SYSTEM), metrics, "")
        self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))


def _interval_ms(text: str) -> int:
    if not text.isdecimal() or len(text) > 9 or not int(text):
        raise InvalidSettings(f"OTEL_METRIC_EXPORT_INTERVAL must be milliseconds from 1 on, got {text!r:.50}")
    return int(text)


def as_metric(reading: Reading, now: int) -> Metric:
    """`now` is epoch nanoseconds."""
    one = reading.description
    cumulative = AggregationTemporality.CUMULATIVE
    points = [(dict(zip(one.labels, labels, strict=True)), value) for labels, value in reading.series.items()]
    if one.kind is MeterKind.SPREAD:
        spreads = [_spread(attributes, value, one.edges, now) for attributes, value in points]
        return Metric(one.name, one.about, "", Histogram(spreads, cumulative))
    numbers = [NumberDataPoint(attributes, UNKNOWN, now, float(value[0])) for attributes, value in points]
    if one.kind is MeterKind.COUNTER:
        return Metric(one.name, one.about, "", Sum(numbers, cumulative, is_monotonic=True))
    return Metric(one.name, one.about, "", Gauge(numbers))


def _spread(attributes: dict[str, str], value: Sequence[float], edges: Sequence[float], now: int) -> HistogramDataPoint:
    *counts, total = value
    whole = [int(count) for count in counts]
    # The least and greatest value are not known. None leaves them out.
    unknown: Any = None
    return HistogramDataPoint(attributes, UNKNOWN, now, sum(whole), total, whole, edges, unknown, unknown)


def metrics_url(endpoint: str) -> str:
    """The path for metrics at the collector whose address, or whose path for traces, is given."""
    return endpoint.removesuffix("/").removesuffix("/v1/traces") + METRICS

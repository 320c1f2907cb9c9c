"""A real server sends its spans and metrics to a collector."""

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.plugins.serving import serving


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP and keeps the bodies by path."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, bytes]] = []
        super().__init__(("127.0.0.1", 0), Taker)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Taker(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.taken.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_spans_arrive_at_the_latest_when_the_server_ends(tmp_path: Path, collector: Collector) -> None:
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with serving(tmp_path, "--dev", DUETIME_OTEL_ENDPOINT=collector.url, OTEL_METRICS_EXPORTER="none") as server:
        queue = f"{server.api}/v1/queues/default/q"
        httpx.post(f"{queue}/jobs", json={"body": "x"}, headers={"traceparent": caller})
        [delivery] = httpx.post(f"{queue}/reserve", json={}).json()["deliveries"]
    assert delivery["attributes"]["traceparent"].startswith(caller[:35])
    assert {path for path, _ in collector.taken} == {"/v1/traces"}
    sent = b"".join(body for _, body in collector.taken)
    assert b"push default/q" in sent
    assert b"reserve default/q" in sent
    assert bytes.fromhex(caller[3:35]) in sent


def exported(collector: Collector) -> dict[str, list[Any]]:
    """The points of the last message that has any jobs, by metric."""
    for path, body in reversed(collector.taken):
        if path == "/v1/metrics":
            [resource] = ExportMetricsServiceRequest.FromString(body).resource_metrics
            [scope] = resource.scope_metrics
            found = {one.name: list(getattr(one, str(one.WhichOneof("data"))).data_points) for one in scope.metrics}
            if "duetime_jobs_pushed_total" in found:
                return found
    return {}


def pushed_of(points: Sequence[Any]) -> dict[str, float]:
    """By queue."""
    named = [({pair.key: pair.value.string_value for pair in point.attributes}, point) for point in points]
    return {labels["queue"]: point.as_double or point.as_int for labels, point in named}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_metrics_of_all_processes_arrive_once(tmp_path: Path, collector: Collector) -> None:
    options = {"DUETIME_OTEL_ENDPOINT": collector.url, "OTEL_METRIC_EXPORT_INTERVAL": "200"}
    with serving(tmp_path, "--dev", "--workers", "2", **options) as server:
        for number in range(20):
            httpx.post(f"{server.api}/v1/queues/default/q/jobs", json={"id": str(number), "body": "x"})
        httpx.post(f"{server.api}/v1/queues/default/q/reserve", json={"limit": 20})
        wait_for(lambda: "duetime_job_lateness_seconds" in exported(collector))
        text = httpx.get(f"{server.admin}/metrics").text
    found = exported(collector)
    assert pushed_of(found["duetime_jobs_pushed_total"]) == {"q": 20}
    names = re.findall("^# TYPE (\\S+)", text, re.MULTILINE)
    assert set(found) <= set(names)
    assert "duetime_worker_up" in found
    [lateness] = found["duetime_job_lateness_seconds"]
    assert (lateness.count, sum(lateness.bucket_counts)) == (20, 20)
    assert len(lateness.bucket_counts) == len(lateness.explicit_bounds) + 1
    assert not lateness.HasField("max")


def test_a_collector_that_is_not_there_stops_nothing(tmp_path: Path, free_port: int) -> None:
    with serving(tmp_path, "--dev", DUETIME_OTEL_ENDPOINT=f"http://127.0.0.1:{free_port}") as server:
        reply = httpx.post(f"{server.api}/v1/queues/default/q/jobs", json={"body": "x"})
        assert reply.status_code == 201
    assert server.process.returncode == 0

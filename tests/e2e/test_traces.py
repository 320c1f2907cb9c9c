"""A real server sends its spans to a collector."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

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
    with serving(tmp_path, "--dev", DUETIME_OTEL_ENDPOINT=collector.url) as server:
        queue = f"{server.api}/v1/queues/default/q"
        httpx.post(f"{queue}/jobs", json={"body": "x"}, headers={"traceparent": caller})
        [delivery] = httpx.post(f"{queue}/reserve", json={}).json()["deliveries"]
    assert delivery["attributes"]["traceparent"].startswith(caller[:35])
    assert {path for path, _ in collector.taken} == {"/v1/traces"}
    sent = b"".join(body for _, body in collector.taken)
    assert b"push default/q" in sent
    assert b"reserve default/q" in sent
    assert bytes.fromhex(caller[3:35]) in sent


def test_a_collector_that_is_not_there_stops_nothing(tmp_path: Path, free_port: int) -> None:
    with serving(tmp_path, "--dev", DUETIME_OTEL_ENDPOINT=f"http://127.0.0.1:{free_port}") as server:
        reply = httpx.post(f"{server.api}/v1/queues/default/q/jobs", json={"body": "x"})
        assert reply.status_code == 201
    assert server.process.returncode == 0

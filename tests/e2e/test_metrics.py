"""/metrics of a real server: one page for all its processes, whatever happens to them."""

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.plugins.serving import Samples, Served, read_samples, serving
from tests.plugins.until import until

QUEUE = frozenset({("pool", "default"), ("namespace", "default"), ("queue", "q")})


def scrape(server: Served) -> Samples:
    reply = httpx.get(f"{server.admin}/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return read_samples(reply.text)


def push(server: Served, jobs: int) -> None:
    """Each on a connection of its own, so that every worker gets some."""
    for _ in range(jobs):
        assert httpx.post(f"{server.api}/v1/queues/default/q/jobs", json={"body": "x"}).status_code == 201


def counters(server: Served) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    reply = httpx.get(f"{server.admin}/metrics")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for metric in text_string_to_metric_families(reply.text)
        if metric.type in ("counter", "histogram")
        for sample in metric.samples
    }


def test_the_life_of_a_job_over_http(tmp_path: Path) -> None:
    with serving(tmp_path, "--dev") as server:
        push(server, 3)
        found = httpx.post(f"{server.api}/v1/queues/default/q/reserve", json={"limit": 2}).json()["deliveries"]
        leases = [one["lease"] for one in found]
        httpx.post(f"{server.api}/v1/queues/default/q/ack", json={"leases": leases[:1]})
        samples = scrape(server)
    names = {"pushed": 3, "delivered": 2, "acked": 1}
    assert {name: samples[f"duetime_jobs_{name}_total", QUEUE] for name in names} == names
    states = {state: samples["duetime_jobs", QUEUE | {("state", state)}] for state in ("ready", "leased", "dead")}
    assert states == {"ready": 1, "leased": 1, "dead": 0}
    assert samples["duetime_job_lateness_seconds_count", QUEUE] == 2
    assert samples["duetime_job_run_seconds_count", QUEUE] == 1
    pool = frozenset({("pool", "default")})
    assert samples["duetime_batch_requests_count", pool | {("verb", "push")}] == 3
    assert samples["duetime_reaper_passes_total", pool] >= 1
    assert samples["duetime_pool_up", pool] == 1
    worker = frozenset({("worker", "1")})
    assert samples["duetime_process_resident_memory_bytes", worker] > 1_000_000
    assert samples["duetime_process_open_fds", worker] > 5
    assert samples["duetime_worker_up", worker] == 1
    api = frozenset({("listener", "api")})
    assert samples["duetime_http_responses_total", api | {("code", "201")}] == 3
    assert samples["duetime_http_connections", frozenset({("listener", "admin")})] == 1
    assert samples["duetime_http_buffered_bytes", frozenset()] >= 0
    assert samples["duetime_http_overload_refusals_total", frozenset()] == 0


async def test_parked_polls_are_seen(tmp_path: Path) -> None:
    with serving(tmp_path, "--dev") as server:
        async with httpx.AsyncClient() as client:
            poll = asyncio.create_task(
                client.post(f"{server.api}/v1/queues/default/q/reserve", json={"wait": "30s"}, timeout=40)
            )
            key = ("duetime_parked_polls", frozenset({("pool", "default")}))
            await until(lambda: scrape(server)[key] == 1)
            push(server, 1)
            assert len((await poll).json()["deliveries"]) == 1
        assert scrape(server)[key] == 0


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to stop"])
async def test_counters_outlive_a_worker(tmp_path: Path, end: signal.Signals) -> None:
    with serving(tmp_path, "--dev", "--workers", "2") as server:
        push(server, 40)
        before = counters(server)
        assert before["duetime_jobs_pushed_total", QUEUE] == 40
        victim = _worker_pids(server)[0]
        push(server, 5)
        if end is signal.SIGKILL:
            scrape(server)
        os.kill(victim, end)
        await until(lambda: victim not in _worker_pids(server) and len(_worker_pids(server)) == 2)
        await until(lambda: _workers_up(server) == 2)
        after = counters(server)
        assert after["duetime_jobs_pushed_total", QUEUE] == 45
        assert {key: (value, after.get(key)) for key, value in before.items() if after.get(key, -1) < value} == {}
        assert sum(value for (name, _), value in after.items() if name == "duetime_worker_restarts_total") == 1
        push(server, 5)
        assert counters(server)["duetime_jobs_pushed_total", QUEUE] == 50


def _worker_pids(server: Served) -> list[int]:
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


def _workers_up(server: Served) -> float:
    return sum(value for (name, _), value in scrape(server).items() if name == "duetime_worker_up")


async def test_new_settings_lose_no_counts(tmp_path: Path) -> None:
    settings = tmp_path / "duetime.toml"
    settings.write_text("dev = true\n")
    with serving(tmp_path, "--config", str(settings)) as server:
        push(server, 3)
        settings.write_text("dev = true\nmax_body = '64KiB'\n")
        server.signal(signal.SIGHUP)
        await until(lambda: "settings_reloaded" in server.log.read_text())
        push(server, 1)
        assert scrape(server)["duetime_jobs_pushed_total", QUEUE] == 4


def test_queues_beyond_the_limit_are_counted_together(tmp_path: Path) -> None:
    with serving(tmp_path, "--dev", DUETIME_METRICS_QUEUES="1") as server:
        for queue in ("a", "b", "c"):
            httpx.post(f"{server.api}/v1/queues/default/{queue}/jobs", json={"body": "x"})
        samples = scrape(server)
    pushed = {
        dict(labels)["queue"]: value for (name, labels), value in samples.items() if name == "duetime_jobs_pushed_total"
    }
    assert pushed == {"a": 1, "other": 2}
    ready = {
        dict(labels)["queue"]: value
        for (name, labels), value in samples.items()
        if name == "infra_lmstfy_redis_queue_sizes"
    }
    assert ready == {"a": 1, "other": 2}

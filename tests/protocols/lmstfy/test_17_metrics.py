"""17. The metric names and labels that the public dashboard asks for, as far as this protocol fills them."""

import re

from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server
from tests.protocols.lmstfy.test_09_tries import die
from tests.protocols.lmstfy.test_16_tokens_and_limits import label, set_limit

SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Samples(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    @classmethod
    def parse(cls, text: str) -> "Samples":
        samples = cls()
        for line in text.splitlines():
            if found := SAMPLE.match(line):
                samples[found[1], frozenset(LABEL.findall(found[2] or ""))] = float(found[3])
        return samples

    def value(self, name: str, **labels: str) -> float:
        return self.get((name, frozenset(labels.items())), 0.0)


async def scrape(server: Server) -> tuple[str, Samples]:
    response = await server.admin.request("GET", "/metrics")
    assert response.status == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = response.body.decode()
    return text, Samples.parse(text)


async def test_counters_and_histograms(server: Server, lmstfy: Lmstfy) -> None:
    before = (await scrape(server))[1]
    job_id = await lmstfy.publish("q")
    await lmstfy.call("PUT", "q/bulk", body=b"[1,2,3]", delay=60)
    await lmstfy.consume("q", count=5)
    await lmstfy.ack("q", job_id)
    await lmstfy.consume("q")
    await lmstfy.call("PUT", "q", delay="x")
    await set_limit(lmstfy, write=1, interval=60)
    for _ in range(3):
        await lmstfy.call("PUT", "other")
    text, after = await scrape(server)
    per_pool = {"pool": "default"}
    space = {**per_pool, "namespace": lmstfy.namespace}
    queue = {**space, "queue": "q"}

    def grown(name: str) -> float:
        return after.value(name, **per_pool) - before.value(name, **per_pool)

    assert after.value("infra_lmstfy_redis_publish_queue_jobs", **queue) == 4
    assert after.value("infra_lmstfy_redis_consume_queue_jobs", **queue) == 1
    assert after.value("infra_lmstfy_redis_job_elapsed_ms_count", **queue) == 1
    assert after.value("infra_lmstfy_redis_job_ack_elapsed_ms_count", **queue) == 1
    assert after.value("infra_lmstfy_redis_job_elapsed_ms_bucket", **queue, le="+Inf") == 1
    assert grown("infra_lmstfy_redis_publish_jobs") == grown("infra_lmstfy_redis_pool_add_jobs") == 5
    assert grown("infra_lmstfy_redis_timer_add_jobs") == 3
    assert grown("infra_lmstfy_redis_queue_direct_push_jobs") == 2
    assert grown("infra_lmstfy_redis_consume_jobs") == grown("infra_lmstfy_redis_queue_pop_jobs") == 1
    assert grown("infra_lmstfy_redis_pool_delete_jobs") == 1
    route = {**space, "api": "/api/:namespace/:queue"}
    codes = {
        (method, code): after.value("infra_lmstfy_http_http_codes", **route, method=method, code=code)
        for method, code in [("PUT", "201"), ("PUT", "400"), ("PUT", "429"), ("GET", "200"), ("GET", "404")]
    }
    assert codes == {("PUT", "201"): 2, ("PUT", "400"): 1, ("PUT", "429"): 2, ("GET", "200"): 1, ("GET", "404"): 1}
    assert after.value("infra_lmstfy_http_latency_milliseconds_count", **route, method="PUT") == 2, "below 300 only"
    limited = {**space, "token": label(lmstfy.token), "action": "produce"}
    assert after.value("infra_lmstfy_http_rate_limit", **limited) == 2
    assert lmstfy.token not in text
    assert "infra_lmstfy_http_http_codes_total" not in text
    assert "_created" not in text
    assert "# TYPE infra_lmstfy_http_http_codes counter" in text
    assert "# TYPE infra_lmstfy_http_latency_milliseconds histogram" in text


async def test_buckets(server: Server, lmstfy: Lmstfy) -> None:
    await lmstfy.publish("q")
    await lmstfy.consume("q")
    _, samples = await scrape(server)

    def edges(name: str, **labels: str) -> list[float]:
        wanted = set(labels.items())
        found = [dict(key[1])["le"] for key in samples if key[0] == name and wanted <= key[1]]
        return sorted(float(edge) for edge in found)

    route = {"namespace": lmstfy.namespace, "method": "PUT"}
    latency = edges("infra_lmstfy_http_latency_milliseconds_bucket", **route)
    elapsed = edges("infra_lmstfy_redis_job_elapsed_ms_bucket", namespace=lmstfy.namespace)
    assert latency[:-1] == [15 * 2.5**power for power in range(9)]
    assert elapsed[:-1] == [15 * 3.5**power for power in range(7)]


async def test_gauges(server: Server, lmstfy: Lmstfy) -> None:
    await die(lmstfy, "q", 2)
    for delay in (0, 0, 0, 60):
        await lmstfy.publish("q", delay=delay)
    server.parts.scraper.levels.forget()
    _, samples = await scrape(server)
    queue = {"pool": "default", "namespace": lmstfy.namespace, "queue": "q"}
    assert samples.value("infra_lmstfy_redis_queue_sizes", **queue) == 3
    assert samples.value("infra_lmstfy_redis_deadletter_sizes", **queue) == 2
    assert samples.value("infra_lmstfy_redis_timer_sizes", pool="default") >= 1
    assert ("infra_lmstfy_redis_timer_sizes", frozenset({("pool", "second")})) in samples


async def test_what_strangers_make_up_gets_no_label_of_its_own(server: Server, lmstfy: Lmstfy) -> None:
    for path in (f"/api/made-up-{lmstfy.namespace}/q", f"/api/made-up-{lmstfy.namespace}/q/size", "/made-up"):
        await server.api.request("GET", path, headers={"X-Token": "made-up-token-made-up"})
        await server.api.request("LOCK", path)
    text, samples = await scrape(server)
    assert "made-up" not in text
    assert "LOCK" not in text
    unknown = {"pool": "", "namespace": "", "api": "/api/:namespace/:queue", "method": "GET", "code": "401"}
    assert samples.value("infra_lmstfy_http_http_codes", **unknown) >= 1

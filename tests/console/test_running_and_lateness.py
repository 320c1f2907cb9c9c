"""How long a job has run, how late a queue's jobs were, and a queue that is offline, as the pages show them."""

import re
import uuid

import duetime
from duetime.stores.base import RulesChange
from tests.console.conftest import Visitor
from tests.plugins.until import until


def test_a_job_that_the_server_delivered_shows_how_long_it_runs(boss: Visitor, remote: duetime.Client) -> None:
    name = f"run{uuid.uuid4().hex[:10]}"
    remote.queue(name).push("work", id=name)
    job = remote.queue(name).take("1m", ttr="1h")
    page = boss.get("workers").text
    job.ack()
    row = next(line for line in page.split("<tr>") if name in line)
    runs, left = re.findall(r'<td class="time"[^>]*>([^<]*)</td>', row)[:2]
    assert re.fullmatch(r"\d+ (ms|s)", runs)
    assert left.startswith("59 m")


def test_a_job_that_a_program_took_from_the_store_shows_a_dash(boss: Visitor, client: duetime.Client) -> None:
    name = f"run{uuid.uuid4().hex[:10]}"
    client.queue(name).push("work", id=name)
    job = client.queue(name).take("1m", ttr="1h")
    page = boss.get("workers").text
    job.ack()
    row = next(line for line in page.split("<tr>") if name in line)
    assert re.findall(r'<td class="time"[^>]*>([^<]*)</td>', row)[0] == "\N{EN DASH}"


async def test_the_lateness_of_a_queue_is_on_both_pages(boss: Visitor, remote: duetime.Client) -> None:
    name = f"late{uuid.uuid4().hex[:10]}"
    queue = remote.queue(name)
    queue.push("x", due_at="2020-01-01T00:00:00Z")
    queue.push("y", delay="1h")
    assert "Lateness p50 / p99" in boss.get("queues", find=name).text
    queue.take("1m").ack()
    # All pages share a sample of the meters for half a second.
    figures = r'<td class="num quiet no-phone">[^<]+ / [^<]+</td>'
    await until(lambda: re.search(figures, boss.get("queues", find=name).text), every_s=0.1)
    one = boss.get("queue", pool="default", namespace="default", queue=name).text
    assert re.search(r"Lateness p50 / p99.*?[\d.]+ \w+.* / .*?\d+ \w+", one, re.DOTALL)


def test_a_queue_is_put_offline_by_its_rules(boss: Visitor, client: duetime.Client) -> None:
    name = f"off{uuid.uuid4().hex[:10]}"
    place = {"pool": "default", "namespace": "default", "queue": name}
    client.queue(name).push("x", delay="1h")
    boss.post("do/rules", **place, offline="on", max_jobs="0", max_body="0")
    assert client.queue(name).configure().offline
    assert "pushes are refused" in boss.get("queue", **place).text
    client.queue(name).configure(RulesChange(offline=False))
    assert "pushes are refused" not in boss.get("queue", **place).text

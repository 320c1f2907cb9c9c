"""Actions on all jobs of a filter: their progress, and how they are undone."""

import re
import uuid
from pathlib import Path

import pytest

import duetime
from duetime.client.client import QueueClient
from tests.console.conftest import Visitor
from tests.plugins.serving import Served
from tests.plugins.until import until


@pytest.fixture
def place() -> dict[str, str]:
    return {"pool": "default", "namespace": "default", "queue": f"q{uuid.uuid4().hex[:12]}"}


def waiting(queue: QueueClient) -> dict[str, tuple[object, ...]]:
    jobs = [*queue.list_jobs("delayed").jobs, *queue.list_jobs("ready").jobs]
    return {job.id: (job.body, job.due_at, job.tries, job.priority, dict(job.attributes)) for job in jobs}


def run_of(page: str) -> str:
    [run] = re.findall(r'name="run" value="([^"]+)"', page)
    return run


def test_a_cancel_is_undone_by_pushing_the_jobs_again(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    queue = client.queue(place["queue"])
    queue.later("1h", b"\xff\x00", ttl="2h", tries=7, attributes={"shop": "a"})
    again = queue.later("2h", "two").id
    before = waiting(queue)

    page = boss.post("do/bulk", **place, state="delayed", verb="cancel").text
    assert "2 of 2 jobs" in page
    assert waiting(queue) == {}
    new = queue.later("3h", "newer", id=again)
    assert "Undone for 1 job" in boss.post("do/undo-bulk", run=run_of(page)).text
    after = waiting(queue)
    assert after.pop(again)[1] == new.due_at
    assert after == {key: value for key, value in before.items() if key != again}
    assert "cannot be undone" in boss.post("do/undo-bulk", run=run_of(page)).text


@pytest.mark.parametrize("verb", ["run-now", "reschedule"])
def test_a_move_is_undone_by_moving_the_jobs_back(
    boss: Visitor, client: duetime.Client, place: dict[str, str], verb: str
) -> None:
    queue = client.queue(place["queue"])
    for hours in (1, 2, 3):
        queue.later(f"{hours}h", str(hours))
    before = waiting(queue)

    page = boss.post("do/bulk", **place, state="delayed", verb=verb, when="5h").text
    assert waiting(queue) != before
    gone = queue.list_jobs("ready" if verb == "run-now" else "delayed").jobs[0].id
    queue.cancel(gone)
    assert "Undone for 2 jobs" in boss.post("do/undo-bulk", run=run_of(page)).text
    assert waiting(queue) == {key: value for key, value in before.items() if key != gone}


def peak_mib(server: Served) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) // 1024


def test_pages_and_runs_over_large_jobs_hold_a_few_of_them_at_a_time(
    console_server: Served, boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    queue, count = client.queue(place["queue"]), 100
    for number in range(count):
        queue.later("1h", b"%08d" % number + b"x" * 1_000_000)
    boss.get("bulk", **place, state="delayed", verb="cancel", text="no such text")
    before = peak_mib(console_server)

    assert "100 jobs" in boss.get("bulk", **place, state="delayed", verb="cancel").text
    page = boss.post("do/bulk", **place, state="delayed", verb="cancel").text
    assert queue.status().counts.total == 0
    assert "Undone for 100 jobs" in boss.post("do/undo-bulk", run=run_of(page)).text
    assert queue.status().counts.delayed == count
    assert peak_mib(console_server) - before < 100
    queue.purge()


async def test_a_long_run_goes_on_by_itself_and_shows_its_progress(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    queue = client.queue(place["queue"])
    queue.bulk(["x"] * 1201, delay="1h")

    page = boss.post("do/bulk", **place, state="delayed", verb="cancel")
    assert page.url.path == "/console/bulk-run"
    assert re.search(r"[\d,]+ of 1,201 jobs", page.text)
    address = str(page.url)
    await until(lambda: "1,201 of 1,201 jobs" in boss.http.get(address).text, deadline_s=120)
    await until(lambda: ">finished<" in boss.http.get(address).text)
    assert queue.status().counts.total == 0
    assert "Undone for 1,201 jobs" in boss.post("do/undo-bulk", run=run_of(boss.http.get(address).text)).text
    assert queue.status().counts.delayed == 1201

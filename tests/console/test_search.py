"""The search box: an id, finished ones included, a queue, and a text in all jobs."""

import re
import tracemalloc
import uuid
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

import duetime
from duetime.console import lake_lookup
from duetime.console.journal_lookup import MOST_IDS
from duetime.console.lake_lookup import EVENT_COLUMNS, JOB_COLUMNS, FoundInLake, find_in_lake, read_entries
from duetime.console.searches import readable
from duetime.model.names import Queue
from tests.console.conftest import Visitor
from tests.plugins.serving import serving
from tests.plugins.until import until


async def test_a_finished_job_is_found_by_its_id_and_by_its_beginning(boss: Visitor, client: duetime.Client) -> None:
    name = f"s{uuid.uuid4().hex[:12]}"
    job_id = f"order-{uuid.uuid4().hex}"
    client.queue(name).push("first")
    place = {"pool": "default", "namespace": "default", "queue": name}
    pushed = boss.post("do/push", **place, id=job_id, tries="1")
    assert pushed.status_code == 200
    for job in client.queue(name).reserve(limit=2):
        client.ack(job)
    await until(lambda: boss.get("search", q=job_id).url.path == "/console/job")
    assert job_id in boss.get("search", q=job_id[:14]).text


def test_a_job_that_waits_is_found_before_a_finished_one_of_its_name_and_id(
    boss: Visitor, client: duetime.Client
) -> None:
    name, job_id = f"s{uuid.uuid4().hex[:12]}", "order-17"
    for namespace in ("default", "zoo"):
        place = {"pool": "default", "namespace": namespace, "queue": name}
        assert boss.post("do/push", **place, id=job_id, tries="1").status_code == 200
    client.queue(name).push("so that the queue stays")
    client.ack(next(job for job in client.queue(name).reserve(limit=2) if job.id == job_id))
    assert "namespace=zoo" in str(boss.get("search", q=f"{name} {job_id}").url)


def test_queues_are_found_by_a_part_of_their_name(boss: Visitor, client: duetime.Client) -> None:
    name = f"s{uuid.uuid4().hex[:12]}"
    client.queue(name).push("x")
    assert f"default/{name}" in boss.get("search", q=name[2:]).text


def test_escapes_and_case_do_not_matter() -> None:
    assert "试用" in readable(rb'{"kind": "\u8bd5\u7528"}')
    assert "carla" in readable(b'{"to": "Carla"}')
    assert readable(b"\xff\x00") == "�\0"
    assert readable(b'{"broken": \\') == '{"broken": \\'


async def test_a_text_is_searched_for_in_all_jobs_and_no_is_said_at_the_end_only(
    boss: Visitor, client: duetime.Client
) -> None:
    name, needle = f"s{uuid.uuid4().hex[:12]}", f"Needle{uuid.uuid4().hex}"
    queue = client.queue(name)
    queue.bulk(["hay"] * 2_500, delay="1h")
    queue.later("2h", rb'{"to": "\u8bd5\u7528 %b"}' % needle.encode())
    place = {"pool": "default", "namespace": "default", "queue": name}

    page = boss.get("jobs", **place, state="delayed", text=needle.lower())
    assert "No match in the first 2,0" in page.text
    assert "Search all 2,501" in page.text
    run = boss.post("do/search", **place, state="delayed", q=f"试用 {needle.lower()}")
    address = str(run.url)
    await until(lambda: "all 2,501 jobs searched" in boss.http.get(address).text)
    assert "1 found" in boss.http.get(address).text
    missing = boss.post("do/search", **place, q="nowhere at all")
    await until(lambda: "Nothing found" in boss.http.get(str(missing.url)).text)


async def test_a_search_is_stopped_and_seen_by_nobody_else(boss: Visitor, client: duetime.Client) -> None:
    name = f"s{uuid.uuid4().hex[:12]}"
    client.queue(name).bulk(["hay"] * 6_000, delay="1h")
    run = boss.post("do/search", pool="default", namespace="default", queue=name, q="nowhere")
    [run_id] = re.findall(r"run=(\w+)", str(run.url))
    boss.post("do/stop-search", run=run_id)
    await until(lambda: re.search("stopped after|jobs searched", boss.get("search", run=run_id).text))
    boss.post("do/add-user", name="otto", role="viewer", password="correct horse")
    other = Visitor(boss.admin)
    with other.http:
        other.log_in("otto", "correct horse")
        assert other.get("search", run=run_id).status_code == 404
    boss.post("do/remove-user", name="otto")
    client.queue(name).purge()


async def test_a_job_is_looked_up_by_its_topic_and_id(boss: Visitor, remote: duetime.Client) -> None:
    """As on php-delayqueue's admin site. The same id is in two queues."""
    name = f"topic.{uuid.uuid4().hex[:8]}"
    for queue in (name, f"{name}.other"):
        remote.queue(queue).push("x", id="17")
    for wanted in (f"{name} 17", f"default/{name}  17"):
        answer = boss.get("search", q=wanted)
        assert (answer.url.path, answer.url.params["queue"]) == ("/console/job", name)
    remote.queue(name).take("1m").ack()
    await until(lambda: boss.get("search", q=f"{name} 17").url.path == "/console/job")  # finished
    assert boss.get("search", q=f"{name} 18").url.path == "/console/search"


DAY = 1_794_000_000_000
"""2026-11-06."""


def write_lake(folder: Path, table: str, rows: list[dict[str, Any]]) -> None:
    """One file of a table as pipelines publish it, with the columns that the console reads."""
    place = folder / table / "current" / "date=2026-11-06"
    place.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), place / "part-0.parquet")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Two finished jobs, of which the first still has its events."""
    key = {"pool": "default", "namespace": "shop", "queue": "mail", "born": DAY}
    job = {name: None for name in JOB_COLUMNS} | key | {"accepted_at": DAY, "attempt": 2, "first_due_at": DAY}
    job |= {"last_delivered_at": DAY + 60_000, "ended_at": DAY + 61_000, "last_at": DAY + 61_000, "outcome": "acked"}
    write_lake(tmp_path, "jobs", [job | {"id": "mail-1"}, job | {"id": "mail-2"}, job | {"id": "nail-1"}])
    event = {name: 0 for name in EVENT_COLUMNS} | key | {"id": "mail-1", "node": "n", "reason": "", "due_at": DAY}
    steps = [("accepted", 0, 0), ("delivered", 1, 5_000), ("released", 1, 6_000), ("delivered", 2, 60_000)]
    rows = [
        event | {"event": name, "attempt": attempt, "ts": DAY + late, "seq": seq}
        for seq, (name, attempt, late) in enumerate([*steps, ("acked", 2, 61_000)], 1)
    ]
    write_lake(tmp_path, "events", rows)
    return tmp_path


def test_a_job_that_the_journal_forgot_is_found_in_the_lake(
    lake: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with serving(tmp_path_factory.mktemp("served"), "--dev", DUETIME_LAKE=str(lake)) as served:
        visitor = Visitor(served.admin)
        with visitor.http:
            found = visitor.get("search", q="mail-1")
            assert (found.url.path, found.url.params["queue"]) == ("/console/job", "mail")
            assert "From the pipelines" in found.text
            assert re.findall(r'data-label="Try">(\d)', found.text) == ["2", "1"]
            assert "1 m" in found.text  # how late the second try was
            # Its events are gone: what the table of jobs has of it.
            assert re.findall(r'data-label="Try">(\d)', visitor.get("search", q="mail-2").text) == ["2"]
            both = visitor.get("search", q="mail-")
            assert "mail-1" in both.text
            assert "mail-2" in both.text
            assert "nail-1" not in both.text


def test_a_short_text_holds_few_rows_of_the_lake_in_memory(lake: Path) -> None:
    [file] = lake.glob("jobs/current/*/*.parquet")
    row = parquet.ParquetFile(file).read().to_pylist()[0]
    write_lake(lake, "jobs", [row | {"id": f"mail-{n}"} for n in range(30_000)])
    find_in_lake(str(lake), "mail-1")  # imports pyarrow
    tracemalloc.start()
    found = find_in_lake(str(lake), "m")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(found.jobs), found.is_whole) == (MOST_IDS, False)
    assert peak < 5_000_000


def test_a_search_says_that_it_could_not_read_the_lake(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_in_lake(str(lake), "mail-1").is_whole
    assert find_in_lake("s3a://bucket/lake", "mail-1") == FoundInLake((), is_whole=True)
    monkeypatch.setattr(lake_lookup, "find_spec", lambda name: None)
    assert find_in_lake(str(lake), "mail-1") == FoundInLake((), is_whole=False)
    assert read_entries(str(lake), "default", Queue("shop", "mail"), "mail-1") == []

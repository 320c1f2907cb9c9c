"""The task that puts lost jobs back, without Spark around it: its answer for each row, and the entries it drafts."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from duetime.client import connect
from duetime.journal.events import body_of
from duetime.journal.reader import read_journal
from duetime.model.clock import SystemClock
from duetime.model.job import Delivery, Event
from duetime.model.names import Queue
from duetime.spark.load.task_entries import TaskEntries, close_left
from duetime.spark.reconcile.repair_task import RepairTask
from duetime.spark.store_view import StoreView

QUEUE = Queue("shop", "mail")
NAMES = ["first", "second", "third", "ü-\N{SNOWMAN}"]


def plan(now: int, **changed: Any) -> Iterator[pa.RecordBatch]:
    rows = [
        {
            "action": "push",
            "pool": "default",
            "namespace": QUEUE.namespace,
            "queue": QUEUE.name,
            "id": name,
            "born": now - 86_400_000 + index // 2,
            "batch": "",
            "due_at": now - 1000 + index,
            "expires_at": 0,
            "attempt": 1,
            "tries": 5,
            "priority": 2,
            "body": b"body of " + name.encode(),
            "attributes": None,
            **changed,
        }
        for index, name in enumerate(NAMES)
    ]
    kinds = {"born": pa.int64(), "due_at": pa.int64(), "expires_at": pa.int64(), "body": pa.binary()}
    kinds |= dict.fromkeys(("attempt", "tries", "priority"), pa.int32())
    columns = {name: pa.array([row[name] for row in rows], kinds.get(name, pa.string())) for name in rows[0]}
    yield pa.RecordBatch.from_pydict(columns)


def carry_out(url: str, batches: Iterator[pa.RecordBatch], now: int, journal: str = "") -> list[dict[str, Any]]:
    view = StoreView(url)
    epoch = view.info().epoch
    view.close()
    task = RepairTask((url, None), epoch, now, instance="reconcile-run", journal=journal)
    found = [row for batch in task(batches) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: NAMES.index(row["id"]) if row["id"] else 0)


@pytest.mark.parametrize("kind", ["sqlite", "redis", "http without journal"])
def test_each_row_is_answered_and_each_job_put_back_once(
    kind: str, address_of: Callable[[str], str], drain: Callable[[str, str, str], list[Delivery]]
) -> None:
    url, now = address_of(kind), SystemClock().now_ms()
    with connect(url, namespace=QUEUE.namespace) as client:
        client.queue(QUEUE.name).push(b"newer", id="second", due_at=now + 10**9)
    first = carry_out(url, plan(now), now)
    assert [row["result"] for row in first] == ["pushed", "superseded", "pushed", "pushed"]
    journals = url.startswith("http")
    entries = [msgspec.json.decode(row["entry"]) if row["entry"] else None for row in first]
    assert entries[1]["event"] == "cancelled"
    for index in (0, 2, 3):
        if journals:
            assert entries[index] is None
        else:
            assert (entries[index]["id"], entries[index]["body"]) == (NAMES[index], f"body of {NAMES[index]}")
            assert (entries[index]["event"], entries[index]["attempt"]) == ("accepted", 1)
            assert (entries[index]["born"], entries[index]["due_at"]) == (
                now - 86_400_000 + index // 2,
                now - 1000 + index,
            )
    assert sorted(one.lease.id for one in drain(url, QUEUE.namespace, QUEUE.name)) == sorted(set(NAMES) - {"second"})
    again = carry_out(url, plan(now), now)
    # A server does not say that it knew a mark.
    assert journals or {row["result"] for row in again} == {"repeated", "superseded"}, again
    assert drain(url, QUEUE.namespace, QUEUE.name) == [], "what was acked is not delivered again"


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_an_id_that_is_lost_again_and_again_keeps_every_mark(
    kind: str, address_of: Callable[[str], str], drain: Callable[[str, str, str], list[Delivery]]
) -> None:
    url, now = address_of(kind), SystemClock().now_ms()
    losses = [{"attempt": 1}, {"attempt": 2}, {"attempt": 1, "born": now - 1000}]
    for loss in losses:
        assert {row["result"] for row in carry_out(url, plan(now, **loss), now)} == {"pushed"}
        assert len(drain(url, QUEUE.namespace, QUEUE.name)) == len(NAMES)
    # Rows with attributes are pushed one by one, and meet the same marks.
    for loss in [*losses, *({**loss, "attributes": '{"a":"b"}'} for loss in losses)]:
        assert {row["result"] for row in carry_out(url, plan(now, **loss), now)} == {"repeated"}
    for attempt in (3, 4):
        alone = {"attempt": attempt, "attributes": '{"a":"b"}'}
        assert {row["result"] for row in carry_out(url, plan(now, **alone), now)} == {"pushed"}
        assert len(drain(url, QUEUE.namespace, QUEUE.name)) == len(NAMES)
    for loss in [*losses, {"attempt": 3}, {"attempt": 4}]:
        assert {row["result"] for row in carry_out(url, plan(now, **loss), now)} == {"repeated"}
    assert drain(url, QUEUE.namespace, QUEUE.name) == []


def test_many_jobs_are_journaled_once_each(address_of: Callable[[str], str], tmp_path: Path) -> None:
    """Several requests are under way at a time; the jobs have different options, and a body is not text."""
    url, now, journal = address_of("redis"), SystemClock().now_ms(), tmp_path / "journal"
    [few] = plan(now)
    rows = [
        {**row, "id": f"{row['id']}-{number}", "tries": 5 + number // 600, "due_at": now + 10**8 + number}
        for number in range(700)
        for row in few.to_pylist()
    ]
    rows[-1]["body"] = b"\xff\x00"
    found = carry_out(url, iter([pa.RecordBatch.from_pylist(rows, schema=few.schema)]), now, str(journal))
    assert [(row["result"], row["jobs"]) for row in found] == [("pushed", 500)] * 5 + [("pushed", 300)]
    *entries, closed = read_journal(journal)
    assert [one.seq for one in (*entries, closed)] == list(range(1, len(rows) + 2))
    told = [(one.id, one.born, one.attempt, one.due_at, one.tries, body_of(one)) for one in entries]
    assert told == [tuple(row[name] for name in ("id", "born", "attempt", "due_at", "tries", "body")) for row in rows]


def test_a_task_writes_its_entries_and_signs_off(address_of: Callable[[str], str], tmp_path: Path) -> None:
    url, now, journal = address_of("redis"), SystemClock().now_ms(), tmp_path / "journal"
    found = carry_out(url, plan(now), now, str(journal))
    entries = list(read_journal(journal))
    assert [(one.event, one.id, one.seq) for one in entries[:-1]] == [
        (Event.ACCEPTED, name, seq) for seq, name in enumerate(NAMES, 1)
    ]
    assert (entries[-1].event, entries[-1].seq) == (Event.CLOSED, 5)
    told = [(row["id"], row["result"], row["jobs"], row["node"], row["entry"]) for row in found]
    assert told == [(None, "pushed", len(NAMES), entries[0].node, None)], "one row for all that were put back"
    view = StoreView(url)
    assert view.registered()[entries[0].node].last == 5
    view.close()
    assert {row["node"] for row in carry_out(url, plan(now, action="expire", expires_at=1), now, str(journal))} == {""}


def test_a_task_is_a_registered_node_before_it_has_written(address_of: Callable[[str], str], tmp_path: Path) -> None:
    with closing(StoreView(address_of("sqlite"))) as view:
        entries = TaskEntries(tmp_path / "journal", view, instance="reconcile-run")
        entries.write([b'{"ts":1,"event":"heartbeat"}'])
        assert view.registered()[entries.node].last is None
        entries.close()
        assert view.registered()[entries.node].last == 2


KILLED = """
import os, signal, sys
from pathlib import Path
from duetime.spark.store_view import StoreView
from duetime.spark.load.task_entries import TaskEntries

entries = TaskEntries(Path(sys.argv[2]), StoreView(sys.argv[1]), instance=f"reconcile-{sys.argv[3]}")
entries.write([b'{"ts":1,"event":"heartbeat"}'] * int(sys.argv[4]))
if int(sys.argv[4]) > 1:
    entries._writer.flush(60)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_driver_closes_the_nodes_of_tasks_that_were_killed(
    address_of: Callable[[str], str], tmp_path: Path
) -> None:
    """One of them before its first entry was on the disk. A node of another run is not touched."""
    url, journal = address_of("sqlite"), tmp_path / "journal"
    for run, count in (("run", "1"), ("run", "3"), ("other", "3")):
        killed = subprocess.run([sys.executable, "-c", KILLED, url, str(journal), run, count], check=False)
        assert killed.returncode == -signal.SIGKILL
    with closing(StoreView(url)) as view:
        alive = TaskEntries(journal, view, instance="reconcile-other")
        alive.write([b'{"ts":1,"event":"heartbeat"}'])
        close_left(journal, "reconcile-run", view)
        lasts = {name: record.last for name, record in view.registered().items()}
        alive.close()
    ended = {name: last for name, last in lasts.items() if name.startswith("reconcile-run-")}
    assert sorted(ended.values()) in ([1, 4], [2, 4])
    assert [last for name, last in lasts.items() if name not in ended] == [None, None]
    for name, last in ended.items():
        *_, closed = read_journal(journal, only=[name])
        assert (closed.event, closed.seq) == (Event.CLOSED, last)


@pytest.mark.parametrize("changed", [{"attributes": '{"a":"b"}'}, {"body": b"\xff\x00"}, {"expires_at": 1}])
def test_unusual_rows_go_the_long_way(
    changed: dict[str, Any], address_of: Callable[[str], str], drain: Callable[[str, str, str], list[Delivery]]
) -> None:
    url, now = address_of("redis"), SystemClock().now_ms()
    found = carry_out(url, plan(now, **changed), now)
    expired = "expires_at" in changed
    assert [row["result"] for row in found] == ["expired" if expired else "pushed"] * 4
    taken = drain(url, QUEUE.namespace, QUEUE.name)
    assert len(taken) == (0 if expired else 4)
    if "body" in changed:
        assert {one.body for one in taken} == {b"\xff\x00"}
        assert msgspec.json.decode(found[0]["entry"])["body_b64"] == "/wA="
    if "attributes" in changed:
        assert taken[0].attributes == {"a": "b"}

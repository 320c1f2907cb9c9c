"""ingest: every entry once, typed, whatever the files look like; damage with its place."""

import json
import os
import subprocess
from collections.abc import Callable
from datetime import date
from pathlib import Path
from shutil import copy, copytree

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from duetime.journal.events import Entry, read_line, write_line
from duetime.model.errors import InvalidRequest
from duetime.model.job import Event
from duetime.spark.ingest import transform as ingest
from duetime.spark.ingest.about import about_events
from duetime.spark.ingest.run import NAMED_DAMAGE, Ingested, run_ingest
from duetime.spark.lake.files import FoundFile, LocalFiles
from duetime.spark.lake.lake import Lake
from duetime.spark.lifecycle.run import run_lifecycle
from duetime.spark.schemas import EVENTS, frame
from duetime.stores.finishes import SeenJoin
from tests.e2e.shell import program
from tests.spark.frames import DEFAULTS
from tests.spark.history import Node

TS = 1_790_000_000_000
LINES = "value binary, file string"


def entry(**fields: object) -> Entry:
    return Entry(**{"ts": TS, "wrote_at": TS + 1, "node": "n-1", "seq": 1, "event": Event.ACCEPTED, **fields})  # type: ignore[arg-type]


def read(spark: SparkSession, *lines: bytes):
    rows = spark.createDataFrame([(line.removesuffix(b"\n"), "f") for line in lines], LINES)
    return rows.select(F.col("value").cast("string"), "file").transform(ingest.read_lines)


def test_lines_become_typed_events(spark: SparkSession) -> None:
    full = entry(
        pool="east", namespace="shop", queue="mail", id="ä-1", born=TS, attempt=2, due_at=TS + 5, priority=1, ttl=9,
        tries=3, reason="killed", body="grüß\n", attributes={"a": "b"}, batch="b-1", was=7, status=200, ms=12,
        join=SeenJoin("g", 3, "g~>then", 60_000, 2),
    )  # fmt: skip
    binary = entry(seq=2, event=Event.ADOPTED, id="x", body_b64="/wA=", ts=TS + 86_400_000)
    beat = entry(seq=3, event=Event.HEARTBEAT)
    found = read(spark, *(write_line(one) for one in (full, binary, beat))).transform(ingest.good_events)
    day = date(2026, 9, 21)
    rows = [
        (
            *(TS, TS + 1, "n-1", 1, "accepted", "east", "shop", "mail", "ä-1", TS, 2, TS + 5, 1, 9, 3, "killed"),
            *("grüß\n".encode(), {"a": "b"}, "b-1", 7, 200, 12, ("g", 3, "g~>then", 60_000, 2), day),
        ),
        _plain(seq=2, event="adopted", id="x", body=b"\xff\x00", ts=TS + 86_400_000, date=date(2026, 9, 22)),
        _plain(seq=3, event="heartbeat", ts=TS, date=day),
    ]
    assertDataFrameEqual(found, frame(spark, rows, EVENTS))


def _plain(**fields: object) -> tuple[object, ...]:
    known = {**DEFAULTS, "node": "n-1", "wrote_at": TS + 1, "namespace": "", "queue": "", "id": "", **fields}
    return tuple(known[name] for name in EVENTS.names)


def test_damage_is_told_apart_as_the_journal_does(spark: SparkSession) -> None:
    good = write_line(entry(body="ü"))
    bad = [
        b"",
        b"short",
        good[:40],
        good[:-2] + b"x\n",
        b"0" + good,
        good.replace(b"n-1", b"n-2"),
        good[17:],
        b"\xff" * 40,
    ]
    no_entry = b'{"ts":1}'
    from zlib import crc32

    bad.append(b"%08x%08x %b\n" % (crc32(no_entry), len(no_entry), no_entry))
    problems = [row["problem"] for row in read(spark, good, *bad).collect()]
    assert problems[0] is None
    assert all(problems[1:]), problems
    for line in bad:
        with pytest.raises(ValueError):  # noqa: PT011 # what it says is the reader's
            read_line(line if line.endswith(b"\n") else line + b"\n")


def test_every_entry_once(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "the journal"
    one, two = Node(journal, "node-a", per_segment=4), Node(journal, "node-b", per_segment=100)
    for number in range(10):
        one.write(Event.ACCEPTED, TS + number, namespace="n", queue="q", id=f"job-{number}", born=TS + number, body="x")
    two.write(Event.HEARTBEAT, TS)
    two.seal()
    two.write(Event.HEARTBEAT, TS + 5000)
    two.leave_open()
    lake = Lake(spark, str(tmp_path / "lake"))
    first = run_ingest(lake, str(journal))
    assert (first.segments, first.events, first.repeated, first.damaged) == (3, 9, 0, 0)
    assert run_ingest(lake, str(journal)).events == 0

    # The rest comes late; a segment comes again under another folder; one is damaged.
    copy(
        journal / "node-a" / "000000000001-000000000004.journal",
        journal / "node-b" / "000000000900-000000000903.journal",
    )
    for number in range(10, 14):
        one.write(Event.ACCEPTED, TS - 9 * 86_400_000 + number, namespace="n", queue="q", id=f"job-{number}", born=TS)
    one.seal()
    damaged = journal / "node-a" / "000000000009-000000000012.journal"
    lines = damaged.read_bytes().splitlines(keepends=True)
    damaged.write_bytes(b"".join([lines[0], lines[1][:-9], b"\n", *lines[2:]]))
    second = run_ingest(lake, str(journal))
    assert (second.segments, second.events, second.repeated, second.damaged) == (3, 5, 4, 1)
    [damage] = second.damage
    assert (damage.file.rpartition("/")[2], damage.line, damage.node, damage.seq) == (damaged.name, 2, "node-a", 10)
    assert lake.events.manifest().dates() == {"2026-09-12", "2026-09-21"}

    about = about_events(lake.events.manifest())
    assert (about.events, about.damaged, len(about.damage)) == (14, 1, 1)
    assert about.nodes["node-a"].ranges == [(1, 9), (11, 14)]
    assert about.nodes["node-b"].beats == {"default": TS}
    found = [(row["node"], row["seq"]) for row in lake.events.read().orderBy("node", "seq").collect()]
    assert found == [*(("node-a", seq) for seq in range(1, 15) if seq != 10), ("node-b", 1)]

    # What was read is not read again, not even a segment that is damaged or has another name; a copy adds nothing.
    assert run_ingest(lake, str(journal)) == Ingested(version=second.version)
    copytree(journal / "node-a", journal / "other-name")
    third = run_ingest(lake, str(journal))
    assert (third.segments, third.events, third.repeated, third.damaged) == (4, 0, 13, 1)
    assert run_ingest(lake, str(journal)) == Ingested(version=third.version)
    assert lake.events.read().count() == 14


def test_folders_of_ended_nodes_are_not_listed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing does not grow with the history of the journal, but with its living nodes."""
    journal, listed = tmp_path / "a journal [1]", list[str]()
    ended, living = Node(journal, "ended", per_segment=2), Node(journal, "living", per_segment=2)
    for node in (ended, living):
        for number in range(4):
            node.write(Event.HEARTBEAT, TS + number)
    ended.close(TS + 9)
    lake = Lake(spark, str(tmp_path / "lake"))
    assert run_ingest(lake, str(journal)).events == 9

    def follow(files: LocalFiles, folder: str, original: Callable[..., list[FoundFile]] = LocalFiles.list):
        listed.append(folder.rpartition("/")[2])
        return original(files, folder)

    monkeypatch.setattr(LocalFiles, "list", follow)
    for number in range(2):
        living.write(Event.HEARTBEAT, TS + 10 + number)
    assert run_ingest(lake, str(journal)).events == 2
    assert "living" in listed
    assert "ended" not in listed


def test_nothing_to_do_is_found_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    home, journal = str(tmp_path / "lake"), tmp_path / "journal"
    asked = (["ingest", "--journal", str(journal)], ["lifecycle"])

    def run(*arguments: str) -> tuple[str, str]:
        command = [*program(), "pipeline", *arguments, "--lake", home, "--json"]
        nowhere = {**os.environ, "JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}
        ran = subprocess.run(command, capture_output=True, text=True, env=nowhere, check=False)
        return ran.stdout, ran.stderr

    assert all("Java" in run(*one)[1] for one in asked), "an empty lake is Spark's"
    lake, node = Lake(spark, home), Node(journal, "node-a", per_segment=4)
    for number in range(8):
        node.write(
            Event.ACCEPTED, TS + number, namespace="n", queue="q", id=f"job-{number}", born=TS + number, body="x"
        )
    run_ingest(lake, str(journal))
    assert "Java" in run("lifecycle")[1]
    run_lifecycle(lake)
    assert [json.loads(run(*one)[0]).get("events", 0) for one in asked] == [0, 0]

    for number in range(4):
        node.write(Event.ACKED, TS + 9, namespace="n", queue="q", id=f"job-{number}", born=TS + number)
    assert "Java" in run(*asked[0])[1]


def test_all_damaged_lines_are_counted_although_only_some_are_named(spark: SparkSession, tmp_path: Path) -> None:
    node = Node(tmp_path / "journal", "node-a", per_segment=5_000)
    node.write(Event.HEARTBEAT, TS)
    path = node.seal()
    assert path is not None
    path.write_bytes(path.read_bytes() + b"no line\n" * 2_500)
    lake = Lake(spark, str(tmp_path / "lake"))
    done = run_ingest(lake, str(tmp_path / "journal"))

    assert (done.events, done.damaged, len(done.damage)) == (1, 2_500, NAMED_DAMAGE)
    about = about_events(lake.events.manifest())
    assert (about.damaged, len(about.damage)) == (2_500, NAMED_DAMAGE)


def test_no_journal_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no journal in"):
        run_ingest(Lake(spark, str(tmp_path / "lake")), str(tmp_path / "nothing"))

"""The lake: published whole or not at all, and of two runs at once one wins."""

import json
from pathlib import Path

import duckdb
import pyarrow.dataset
import pyarrow.parquet
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from duetime.model.errors import InvalidSettings
from duetime.model.job import MAX_BODY
from duetime.spark.lake import delta, in_place
from duetime.spark.lake import lake as lake_module
from duetime.spark.lake.files import Files, HadoopFiles, LocalFiles
from duetime.spark.lake.lake import LITTER_MS, Lake, Manifest, PublishConflict, StagedTooOld
from duetime.spark.lake.nodes import NodeState, join_nodes, without
from duetime.spark.load.batch import Batch
from duetime.spark.schemas import EVENTS, JOBS
from duetime.spark.session import whole_file_session
from tests.spark.conftest import FAST_START
from tests.spark.frames import events
from tests.spark.rival import run_beside

DAY_MS = 86_400_000


def test_the_columns_that_get_no_dictionary_exist() -> None:
    assert set(in_place.DISTINCT) <= {*EVENTS.names, *JOBS.names}


def test_nothing_is_seen_before_it_is_published(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, str(tmp_path / "my lake"))
    rows = events(spark, {"event": "accepted", "ts": 5}, {"event": "acked", "ts": DAY_MS + 5})
    staged = lake.events.stage(rows)
    assert lake.events.read().isEmpty()
    done = lake.events.publish(staged, after=Manifest(), about={"by": "test"})
    assert (done.version, done.dates(), done.about) == (1, {"1970-01-01", "1970-01-02"}, {"by": "test"})
    assertDataFrameEqual(lake.events.read(), rows)

    second = events(spark, {"event": "dead", "ts": DAY_MS + 7})
    replaced = lake.events.publish(
        lake.events.stage(second), after=done, about={}, replaces=lambda file: file.date == "1970-01-02"
    )
    assertDataFrameEqual(lake.events.read(), rows.where("event = 'accepted'").union(second))
    assertDataFrameEqual(lake.events.read(manifest=done), rows)  # who began before goes on reading what was there
    assert [one.path.partition("/")[0] for one in replaced.dropped] == ["date=1970-01-02"]
    assert not list((tmp_path / "my lake" / "events" / "_files" / "_staging").iterdir())


def test_other_programs_read_what_is_published(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that were replaced, and files that are not published, are still there."""
    monkeypatch.setattr(delta, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(lake_module, "KEPT_MANIFESTS", 1)
    lake, home = Lake(spark, str(tmp_path)), tmp_path / "events"
    manifest = Manifest()
    for seq in range(1, 6):
        rows = events(spark, {"event": "accepted", "seq": 10 * seq}, {"event": "acked", "seq": seq, "ts": DAY_MS})
        manifest = lake.events.publish(
            lake.events.stage(rows), after=manifest, about={}, replaces=lambda file: file.date == "1970-01-01"
        )
        lake.events.stage(events(spark, {"event": "dead", "seq": 1_000}))
    assert len(list((home / "_files").rglob("*.parquet"))) == 15

    def sums(frame: DataFrame) -> list[tuple[str, int, int]]:
        found = frame.groupBy("event").agg(F.count("*"), F.sum("seq")).orderBy("event").collect()
        return [(row[0], row[1], row[2]) for row in found]

    expected = [("accepted", 1, 50), ("acked", 5, 15)]
    assert sums(lake.events.read()) == expected
    assert sums(spark.read.parquet(str(home))) == expected
    assert sums(spark.read.parquet(str(home / "current"))) == expected
    assert sums(spark.read.option("recursiveFileLookup", "true").parquet(str(home))) == expected
    query = "SELECT event, count(*), sum(seq)::BIGINT FROM read_parquet(?) GROUP BY event ORDER BY event"
    assert duckdb.execute(query, [f"{home}/current/*/*.parquet"]).fetchall() == expected
    assert pyarrow.dataset.dataset(home, partitioning="hive").to_table().column("seq").to_pylist().count(1_000) == 0
    assert pyarrow.dataset.dataset(home, partitioning="hive").count_rows() == 6
    assert sums(lake.events.read_files(delta_files(home))) == expected
    assert len(list((home / "_versions").iterdir())) == 2
    assert sorted(path.name for path in (home / "_delta_log").iterdir() if path.name[0] == "0") == [
        f"{2:020d}.json", f"{3:020d}.checkpoint.parquet", f"{3:020d}.json", f"{4:020d}.json",
    ]  # fmt: skip


def delta_files(home: Path) -> set[str]:
    """What a reader of Delta's format finds: the last checkpoint, and the commits after it."""
    log, found = home / "_delta_log", set[str]()
    version = json.loads((log / "_last_checkpoint").read_text())["version"]
    rows = pyarrow.parquet.read_table(log / f"{version:020d}.checkpoint.parquet").to_pylist()
    assert [row["metaData"]["partitionColumns"] for row in rows if row["metaData"]] == [["date"]]
    later = sorted(path for path in log.glob("*.json") if int(path.stem) > version)
    for action in [*rows, *(json.loads(line) for path in later for line in path.read_text().splitlines())]:
        if added := action.get("add"):
            assert dict(added["partitionValues"])["date"] == added["path"].split("/")[1].removeprefix("date=")
            assert (home / added["path"]).stat().st_size == added["size"]
            found.add(added["path"].removeprefix("_files/"))
        if removed := action.get("remove"):
            found.remove(removed["path"].removeprefix("_files/"))
    return found


def test_of_two_runs_one_wins(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(spark, str(tmp_path))
    before = lake.events.manifest()
    mine, other = (lake.events.stage(events(spark, {"event": word})) for word in ("accepted", "kept"))
    lake.events.publish(other, after=before, about={})
    with pytest.raises(PublishConflict):
        lake.events.publish(mine, after=before, about={})
    assert [row["event"] for row in lake.events.read().collect()] == ["kept"]

    # The other one was quicker by the blink between looking and creating.
    now = lake.events.manifest()
    monkeypatch.setattr(lake.events, "manifest", lambda: before)
    with pytest.raises(PublishConflict):
        lake.events.publish(mine, after=before, about={})
    monkeypatch.undo()
    assert [row["event"] for row in lake.events.read().collect()] == ["kept"]
    lake.events.publish(mine, after=now, about={})
    mine.drop()
    assert sorted(row["event"] for row in lake.events.read().collect()) == ["accepted", "kept"]


def test_two_processes_lose_nothing_and_double_nothing(spark: SparkSession, tmp_path: Path) -> None:
    lake, rounds = Lake(spark, str(tmp_path / "lake")), 5
    conf = {"spark.driver.extraJavaOptions": FAST_START, "spark.driver.memory": "512m"}
    mine, other = run_beside(lake, tmp_path / "meeting", rounds, conf)
    assert mine + other == rounds
    rows = sorted((row["node"], row["seq"]) for row in lake.events.read().collect())
    assert rows == [(name, number) for name in ("mine", "other") for number in range(rounds)]
    assert lake.events.manifest().version == 2 * rounds


@pytest.mark.parametrize("way", ["classic", "connect"])
def test_files_are_written_where_they_stay(
    spark: SparkSession, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place, "is_connect", lambda spark: way == "connect")
    lake = Lake(spark, str(tmp_path))
    with lake.events.stage(events(spark, {"event": "accepted"})) as staged:
        there = {path: path.stat().st_ino for path in tmp_path.rglob("*.parquet") if path.name[0] != "."}
        assert [f"{path.parent.name}/{path.name}" for path in there] == [file.path for file in staged.files]
        lake.events.publish(staged, after=Manifest(), about={})
    assert {path: path.stat().st_ino for path in there} == there
    links = {path for path in tmp_path.rglob("*.parquet") if path.name[0] != "."} - set(there)

    with lake.events.stage(events(spark, {"event": "acked"})) as staged:
        assert not staged.read().isEmpty()
    assert {path for path in tmp_path.rglob("*.parquet") if path.name[0] != "."} - links == set(there)
    assert not list((tmp_path / "events" / "_files" / "_staging").iterdir())


def test_rows_of_the_greatest_size_are_read_a_few_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    """Spark bounds the rows that it reads at a time by number only; equal bodies are small in a file."""
    count, body = 400, F.expr(f"repeat(string(id % 10), {MAX_BODY})").cast("binary")
    rows = spark.range(0, count, 1, 1).select(body.alias("body"))
    batch = Batch.open(spark, str(tmp_path), "large")
    [file] = batch.write_rows(rows, "files")
    assert file.bytes < count * MAX_BODY / 10

    read = whole_file_session(spark).read.parquet(f"{batch.home}/{file.name}")
    assert read.agg(F.sum(F.octet_length("body")), F.bit_xor(F.crc32("body"))).first() == (count * MAX_BODY, 0)
    assert int(spark.conf.get("spark.sql.parquet.columnarReaderBatchSize")) * MAX_BODY <= 64 * 1024**2


def test_a_write_that_fails_says_why_and_shows_nothing(spark: SparkSession, tmp_path: Path) -> None:
    lake, seen = Lake(spark, str(tmp_path)), Observation()
    rows = events(spark, *({"event": "accepted", "seq": seq} for seq in range(4))).observe(seen, F.count("*"))
    with pytest.raises(PySparkException, match="no such entry"):
        lake.events.stage(rows.withColumn("seq", F.expr("if(seq < 3, seq, raise_error('no such entry'))")))
    assert lake.events.manifest() == Manifest()
    assert lake.events.read().isEmpty()


def test_what_a_vacuum_may_have_deleted_is_not_published(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, str(tmp_path))
    staged = lake.events.stage(events(spark, {"event": "accepted"}))
    staged.begun_at -= LITTER_MS + 1
    with pytest.raises(StagedTooOld, match="more than a day"):
        lake.events.publish(staged, after=Manifest(), about={})
    assert lake.events.manifest() == Manifest()


@pytest.mark.parametrize("kind", ["local", "hadoop"])
def test_files(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    files: Files = LocalFiles() if kind == "local" else HadoopFiles(spark)
    home = files.home(str(tmp_path))
    assert files.list(f"{home}/none") == []
    files.create(f"{home}/a b/one", b"\x00\xff")
    with pytest.raises(FileExistsError):
        files.create(f"{home}/a b/one", b"other")
    assert files.read(f"{home}/a b/one") == b"\x00\xff"
    files.rename(f"{home}/a b/one", f"{home}/c=d/two")
    assert [(found.name, found.is_folder) for found in files.list(home)] == [("a b", True), ("c=d", True)]
    assert [(found.name, found.size) for found in files.list(f"{home}/c=d") if found.name[0] != "."] == [("two", 2)]
    with pytest.raises(FileNotFoundError):
        files.read(f"{home}/a b/one")
    files.delete(f"{home}/c=d")
    files.delete(f"{home}/c=d")
    assert not (tmp_path / "c=d").exists()


def test_what_is_missing_is_counted() -> None:
    node = NodeState(ranges=[(1, 3), (6, 9)], beats={"a": 50, "b": 90}, first_at=10)
    assert (node.gaps(), node.gaps(12), node.entries, node.last) == ([(4, 5)], [(4, 5), (10, 12)], 7, 9)
    assert without([(4, 9)], {5, 9}) == [(4, 4), (6, 8)]
    joined = join_nodes({"n": node}, {"n": NodeState(ranges=[(4, 5)], beats={"a": 70}), "m": NodeState()})
    assert joined["n"] == NodeState(ranges=[(1, 9)], beats={"a": 70, "b": 90}, first_at=10)
    assert (node.is_silent("a", 50), node.is_silent("a", 49)) == (True, False)
    assert not node.is_silent("another pool", 99)
    assert not NodeState(beats={"a": 50}, closed=True).is_silent("a", 99)


def test_a_table_of_a_newer_release_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, str(tmp_path))
    lake.events.publish(lake.events.stage(events(spark, {"event": "accepted"})), after=Manifest(), about={})
    commit = tmp_path / "events" / delta.commit_path("", 1).lstrip("/")
    first, *others = commit.read_text().splitlines()
    info = json.loads(first)
    info["commitInfo"]["manifest"]["format"] = lake_module.FORMAT + 1
    commit.write_text("\n".join([json.dumps(info), *others]) + "\n")
    with pytest.raises(InvalidSettings, match=r"has format 2, this release reads up to 1: upgrade Duetime"):
        lake.events.read()

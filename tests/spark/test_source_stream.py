"""Streams: the journal as a table that grows, and micro-batches that become jobs."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import UNSET
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from duetime.client import connect
from duetime.journal.events import Entry, write_line
from duetime.journal.reader import read_journal
from duetime.journal.segments import open_name, sealed_name
from duetime.model.errors import InvalidSettings, StoreDamaged
from duetime.model.job import Event, Lease, NewJob, State
from duetime.spark.source.stream import JournalReader
from duetime.spark.store_view import StoreView
from duetime.stores.finishes import SeenJoin
from tests.spark.conftest import jobs_in, since


def write_segment(journal: Path, node: str, first: int, last: int, *, sealed: bool = True) -> Path:
    folder = journal / node
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (sealed_name(first, last) if sealed else open_name(first))
    path.write_bytes(b"".join(write_line(entry(node, seq)) for seq in range(first, last + 1)))
    return path


def entry(node: str, seq: int) -> Entry:
    return Entry(
        ts=1000 + seq, wrote_at=1000 + seq, node=node, seq=seq, event=Event.ACCEPTED, queue="q", id=f"{node}-{seq}",
        body="text", attributes={"k": "v"}, join=SeenJoin("g", 3, "g~>then", 60_000, 2) if seq % 2 else UNSET,
    )  # fmt: skip


def run(spark: SparkSession, journal: Path | str, folder: Path, **options: str) -> list[list[tuple[str, int]]]:
    """All that is there, as the micro-batches that it came in."""
    batches: list[list[tuple[str, int]]] = []

    def take(frame, number: int) -> None:
        batches.append(sorted((row["node"], row["seq"]) for row in frame.collect()))

    query = (
        spark.readStream.format("duetime")
        .options(journal=str(journal), **options)
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [batch for batch in batches if batch]


def test_each_entry_once_also_over_runs(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    write_segment(journal, "a", 1, 4)
    write_segment(journal, "b", 1, 3, sealed=False)
    first = run(spark, journal, tmp_path)
    write_segment(journal, "a", 5, 6)
    write_segment(journal, "c", 1, 1)
    second = run(spark, journal, tmp_path)

    assert first == [[*(("a", seq) for seq in range(1, 5)), *(("b", seq) for seq in range(1, 4))]]
    assert second == [[("a", 5), ("a", 6), ("c", 1)]]


def test_what_servers_ship_is_read_through_fsspec(spark: SparkSession, tmp_path: Path) -> None:
    """`local://` is the disk by way of fsspec; s3:// and gs:// differ in the file system that fsspec loads."""
    shipped = tmp_path / "shipped"
    url = f"local://{shipped}"
    with pytest.raises(InvalidSettings, match="there is no journal in local://"):
        JournalReader({"journal": url})
    write_segment(shipped, "a", 1, 4)
    write_segment(shipped, "a", 5, 9)
    write_segment(shipped, "b", 1, 3)
    assert run(spark, url, tmp_path) == [[*(("a", seq) for seq in range(1, 10)), *(("b", seq) for seq in range(1, 4))]]
    write_segment(shipped, "a", 10, 12).write_bytes(b"")
    write_segment(shipped, "b", 4, 5)
    assert run(spark, url, tmp_path, failOnDataLoss="false") == [[("b", 4), ("b", 5)]]
    write_segment(shipped, "a", 20, 21)
    with pytest.raises(StreamingQueryException, match="entries 13 to 19 of a are gone"):
        run(spark, url, tmp_path)


@since(4, 2)
def test_a_trigger_takes_so_many_rows(spark: SparkSession, tmp_path: Path) -> None:
    write_segment(tmp_path / "journal", "a", 1, 5)
    write_segment(tmp_path / "journal", "b", 1, 2)
    batches = run(spark, tmp_path / "journal", tmp_path, maxRowsPerTrigger="3")

    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert len({one for batch in batches for one in batch}) == 7


@since(4, 2)
def test_a_busy_node_leaves_room_for_the_others(tmp_path: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    write_segment(tmp_path, "a-busy", 1, 1_000)
    write_segment(tmp_path, "b-quiet", 1, 2)
    write_segment(tmp_path, "c-quiet", 1, 5)
    reader = JournalReader({"journal": str(tmp_path)})

    assert reader.latestOffset({}, ReadMaxRows(12)) == {"a-busy": 5, "b-quiet": 2, "c-quiet": 5}
    assert reader.latestOffset({}, ReadMaxRows(100)) == {"a-busy": 93, "b-quiet": 2, "c-quiet": 5}


@since(4, 2)
def test_every_node_is_read_although_there_are_more_nodes_than_rows_in_a_trigger(tmp_path: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    for node in "abcde":
        write_segment(tmp_path, node, 1, 10)
    reader, offset, sizes = JournalReader({"journal": str(tmp_path)}), {}, list[int]()
    for _ in range(3):
        before, offset = offset, reader.latestOffset(offset, ReadMaxRows(2))
        sizes.append(sum(offset.values()) - sum(before.values()))

    assert (sizes, set(offset)) == ([2, 2, 2], set("abcde"))


@since(4, 2)
def test_what_came_after_the_start_of_available_now_is_left(tmp_path: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    write_segment(tmp_path, "a", 1, 4)
    reader = JournalReader({"journal": str(tmp_path)})
    reader.prepareForTriggerAvailableNow()
    write_segment(tmp_path, "a", 5, 9)

    assert reader.latestOffset({}, ReadMaxRows(3)) == {"a": 3}
    assert reader.latestOffset({"a": 3}, ReadMaxRows(3)) == {"a": 4}
    assert reader.latestOffset({"a": 4}) == {"a": 4}


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    path = write_segment(tmp_path, "a", 1, 3, sealed=False)
    path.write_bytes(path.read_bytes()[:-5])

    assert JournalReader({"journal": str(tmp_path)}).latestOffset() == {"a": 2}


def test_what_was_read_before_is_not_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither to find the newest entry nor to go on: the beginning of both segments is garbage by now."""
    old = write_segment(tmp_path, "a", 1, 2_000)
    old.write_bytes(b"x" * old.stat().st_size)
    path = write_segment(tmp_path, "a", 2_001, 6_000, sealed=False)
    content = path.read_bytes()
    path.write_bytes(b"x" * (len(content) // 2) + content[len(content) // 2 :])
    reader = JournalReader({"journal": str(tmp_path)})
    newest = reader.latestOffset({"a": 5_900})
    [partition] = reader.partitions({"a": 5_900}, newest)

    assert newest == {"a": 6_000}
    assert [row[3] for row in reader.read(partition)] == list(range(5_901, 6_001))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "the option journal is missing"),
        (
            {"journal": "{here}", "maxRowsPerTriger": "5"},
            "unknown option 'maxRowsPerTriger'; there are journal",
        ),
        ({"journal": "{here}", "failOnDataLoss": "no"}, "failOnDataLoss must be true or false, got 'no'"),
        ({"journal": "{here}", "maxRowsPerTrigger": "-1"}, "maxRowsPerTrigger must be a whole number, got '-1'"),
        ({"journal": "{here}/nowhere"}, "there is no journal in .*/nowhere"),
        ({"journal": "ours://logs"}, "journal: Protocol not known: ours"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidSettings, match=problem):
        JournalReader({name: value.format(here=tmp_path) for name, value in options.items()})


def test_the_folder_may_be_a_file_uri(tmp_path: Path) -> None:
    write_segment(tmp_path, "a", 1, 3)
    for options in ({"path": f"file://{tmp_path}"}, {"journal": f"file:{tmp_path}"}):
        assert JournalReader(options).latestOffset() == {"a": 3}


def test_entries_that_are_gone_end_the_query_unless_told(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    write_segment(journal, "a", 4, 6)
    with pytest.raises(StreamingQueryException, match="entries 1 to 3 of a are gone"):
        run(spark, journal, tmp_path)
    assert run(spark, journal, tmp_path / "other", failOnDataLoss="false") == [[("a", 4), ("a", 5), ("a", 6)]]


def test_a_journal_may_be_named_as_the_path(spark: SparkSession, tmp_path: Path) -> None:
    write_segment(tmp_path / "journal", "a", 1, 3)
    found: list[tuple[str, int]] = []
    stream = spark.readStream.format("duetime").load(str(tmp_path / "journal"))
    query = (
        stream.writeStream.foreachBatch(
            lambda frame, number: found.extend((row["node"], row["seq"]) for row in frame.collect())
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert found == [("a", 1), ("a", 2), ("a", 3)]
    assert spark.read.format("duetime").load(str(tmp_path / "journal")).count() == 3


def damage(path: Path, *lines: int) -> None:
    """Spoil these lines, counted from 1."""
    content = path.read_bytes().splitlines(keepends=True)
    for line in lines:
        content[line - 1] = b"x" * (len(content[line - 1]) - 1) + b"\n"
    path.write_bytes(b"".join(content))


def test_a_damaged_line_is_skipped_with_its_entry(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    damage(write_segment(journal, "a", 1, 6), 2, 3, 6)
    write_segment(journal, "a", 7, 8)
    damage(write_segment(journal, "b", 1, 3, sealed=False), 1)

    whole = [("a", 1), ("a", 4), ("a", 5), ("a", 7), ("a", 8), ("b", 2), ("b", 3)]
    assert run(spark, journal, tmp_path) == [whole]
    batches = run(spark, journal, tmp_path / "in-steps", maxRowsPerTrigger="2")
    assert sorted(one for batch in batches for one in batch) == whole


def test_damage_excuses_no_more_entries_than_there_were_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two lines are gone behind a damaged one; another line was damaged before the place where reading begins."""
    path = write_segment(tmp_path, "a", 1, 8)
    damage(path, 2, 4)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], *lines[6:]]))
    reader = JournalReader({"journal": str(tmp_path)})
    [partition] = reader.partitions({"a": 3}, {"a": 8})

    with pytest.raises(StoreDamaged, match="entries 4 to 6 of a are gone"):
        list(reader.read(partition))
    assert [record.getMessage().partition("offset=")[2].split()[0] for record in caplog.records] == [
        str(sum(map(len, lines[:3])))
    ], "damage of which an earlier run has told is not told again"


def test_rows_are_typed(spark: SparkSession, tmp_path: Path) -> None:
    write_segment(tmp_path / "journal", "a", 1, 1)
    stream = spark.readStream.format("duetime").option("journal", str(tmp_path / "journal")).load()
    found = []
    query = (
        stream.writeStream.foreachBatch(lambda frame, number: found.extend(frame.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    [row] = found
    assert (row["event"], row["id"], bytes(row["body"]), row["attributes"]) == ("accepted", "a-1", b"text", {"k": "v"})
    assert row["join"].asDict() == {"name": "g", "of": 3, "then": "g~>then", "life_ms": 60_000, "seen": 2}


@since(4, 1)
def test_a_replayed_micro_batch_adds_nothing(spark: SparkSession, redis_url: str, tmp_path: Path) -> None:
    source, journal = tmp_path / "source", tmp_path / "journal"

    def run_query() -> None:
        (
            spark.readStream.schema("name string")
            .json(str(source))
            .select(F.col("name").alias("body"))
            .writeStream.format("duetime")
            .options(url=redis_url, queue="recall", batch="stream-1", journal=str(journal))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    source.mkdir()
    (source / "1.json").write_text("".join(f'{{"name": "n{index}"}}\n' for index in range(50)))
    run_query()
    assert len(jobs_in(redis_url, "default", "recall")) == 50

    # As after a crash before the commit was written down.
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    run_query()
    assert len(jobs_in(redis_url, "default", "recall")) == 50

    # The same row in the next micro-batch is another job.
    (source / "2.json").write_text('{"name": "n0"}\n')
    run_query()
    jobs = {(job.id, job.born) for job in jobs_in(redis_url, "default", "recall")}
    assert len(jobs) == 51
    accepted = [one for one in read_journal(journal) if isinstance(one, Entry) and one.event is Event.ACCEPTED]
    assert {(one.id, one.born) for one in accepted} == jobs
    with closing(StoreView(redis_url)) as view:
        assert all(record.last is not None for record in view.registered().values())


def test_a_journal_is_read_as_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    write_segment(tmp_path, "a", 1, 4)
    write_segment(tmp_path, "b", 1, 3, sealed=False)
    rows = spark.read.format("duetime").options(journal=str(tmp_path), table="events").load()
    found = rows.where("seq > 2").select("node", "seq", F.col("body").cast("string"), "join.name").collect()
    assert sorted(map(tuple, found)) == [("a", 3, "text", "g"), ("a", 4, "text", None), ("b", 3, "text", "g")]
    assert rows.count() == 7


@since(4, 2)
def test_due_jobs_are_acked_when_their_micro_batch_is_done(spark: SparkSession, redis_url: str, tmp_path: Path) -> None:
    with connect(redis_url, namespace="crm") as client:
        queue = client.queue("recall")
        queue.bulk([NewJob(f"{index}", b"x", due_at=1_500_000_000_000 + index) for index in range(700)])
        queue.push(b"later", id="later", delay="1h")
        sizes: list[int] = []

        def run_query(work: Callable[[list[str]], None]) -> None:
            (
                spark.readStream.format("duetime")
                .options(url=redis_url, namespace="crm", queue="recall", ttr="1h", maxRowsPerTrigger="600")
                .load()
                .writeStream.foreachBatch(lambda frame, number: work([row["id"] for row in frame.collect()]))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
                .awaitTermination()
            )

        def fail(ids: list[str]) -> None:
            raise RuntimeError(f"{len(ids)} jobs")

        with pytest.raises(StreamingQueryException, match="600 jobs"):
            run_query(fail)
        counts = queue.counts()
        assert (counts.ready, counts.leased) == (100, 600)
        for job in queue.get_many([str(index) for index in range(700)]):
            if job and job.state is State.LEASED:
                client.release(Lease(job.queue, job.id, job.born, job.attempt))
        assert queue.counts().ready == 700

        seen: list[str] = []

        def take(ids: list[str]) -> None:
            sizes.append(len(ids))
            seen.extend(ids)

        run_query(take)
        assert [size for size in sizes if size] == [600, 100]
        assert len(set(seen)) == 700
        counts = queue.counts()
        assert (counts.ready, counts.delayed, counts.leased, counts.dead) == (0, 1, 0, 0)

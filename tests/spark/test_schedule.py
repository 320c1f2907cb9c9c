"""`schedule`: exactly once, whatever was done before and whatever happens in between."""

import asyncio
import datetime
import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import redis
from msgspec import structs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duetime.client import Client, connect
from duetime.console.pipeline_files import read_lake
from duetime.journal.events import Entry, body_of
from duetime.journal.reader import read_journal
from duetime.journal.registration import NODE_KIND, RegisteredNode
from duetime.model.job import Delivery, Event, NewJob
from duetime.spark import schedule
from duetime.spark.audit.run import ComparedStore
from duetime.spark.lake.lake import Lake
from duetime.spark.load.batch import BatchConflict, ReconcileFirst
from duetime.spark.load.options import LoadFields
from duetime.spark.load.schedule import BadRows
from duetime.spark.reconcile.run import run_reconcile
from duetime.stores.open import open_store
from tests.plugins.redis_server import RedisServer
from tests.plugins.served import StartServer
from tests.spark.conftest import jobs_in

PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
Drain = Callable[[str, str, str], list[Delivery]]


def members(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(
        F.format_string("recall-%06d", "id").alias("id"),
        F.lit(PAST).alias("due_at"),
        F.struct(F.col("id").alias("member")).alias("body"),
    )


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture(params=["redis", "sqlite", "http"])
def url(request: pytest.FixtureRequest, address_of: Callable[[str], str]) -> str:
    return address_of(request.param)


def test_each_row_is_a_job_and_a_second_run_adds_nothing(
    spark: SparkSession, url: str, lake: str, drain: Drain
) -> None:
    count = 1_700
    first = schedule(members(spark, count), url=url, namespace="crm", queue="recall", batch="b1", lake=lake)
    taken = drain(url, "crm", "recall")
    again = schedule(members(spark, count), url=url, namespace="crm", queue="recall", batch="b1", lake=lake)

    assert (first.rows, first.accepted, first.kept, first.bad) == (count, count, 0, 0)
    assert sorted(one.lease.id for one in taken) == [f"recall-{index:06}" for index in range(count)]
    assert {one.body for one in taken} == {b'{"member":%d}' % index for index in range(count)}
    assert again == structs.replace(first, was_done=True)
    [files] = (Path(lake) / "batches" / "b1").glob("files-*")
    assert {path.suffix for path in files.iterdir() if not path.name.startswith(".")} == {".parquet"}, "as written"
    assert jobs_in(url, "crm", "recall") == []


def test_a_run_without_its_manifest_pushes_nothing_twice(
    spark: SparkSession, url: str, lake: str, drain: Drain
) -> None:
    """A driver that died before it wrote the manifest; the jobs were delivered and acked in the meantime."""
    schedule(members(spark, 1_300), url=url, queue="recall", batch="b1", lake=lake)
    assert len(drain(url, "default", "recall")) == 1_300
    (Path(lake) / "batches" / "b1" / "_manifest").unlink()

    # The second run has other partitions, and its rows are not looked at.
    again = schedule(members(spark, 10, 5), url=url, queue="recall", batch="b1", lake=lake)

    assert (again.rows, again.accepted, again.repeated) == (1_300, 1_300, 1_300)
    assert jobs_in(url, "default", "recall") == []


def test_a_bad_row_in_the_last_partition_leaves_the_store_untouched(
    spark: SparkSession, redis_url: str, lake: str
) -> None:
    last = F.col("id") == "recall-000999"
    frame = members(spark, 1_000, 4).withColumn("body", F.when(~last, F.to_json("body")))
    with pytest.raises(BadRows) as raised:
        schedule(frame, url=redis_url, queue="recall", batch="b1", lake=lake)

    assert "1 of 1,000 rows cannot be jobs, so nothing was pushed: the body is null: 1" in raised.value.message
    assert raised.value.fields["sample"] == ["recall-000999"]
    with redis.Redis.from_url(redis_url) as client:
        # No queue, job or mark: at most the epoch that the first look at an empty store draws.
        assert list(client.scan_iter("dt:{*}:*/*")) == []
        assert client.dbsize() <= 1
    assert [path.name for path in (Path(lake) / "batches" / "b1").iterdir()] == []

    # Once the row is mended, the same batch can be run.
    assert schedule(members(spark, 1_000), url=redis_url, queue="recall", batch="b1", lake=lake).accepted == 1_000


def test_bad_rows_can_be_put_aside(spark: SparkSession, redis_url: str, lake: str) -> None:
    frame = members(spark, 100).withColumn("tries", F.when(F.col("id") == "recall-000007", -1).otherwise(3))
    done = schedule(frame, url=redis_url, queue="recall", batch="b1", lake=lake, bad_records="skip")

    assert (done.rows, done.accepted, done.bad) == (99, 99, 1)
    [row] = spark.read.parquet(f"{lake}/batches/b1/rejected").collect()
    assert (row["id"], row["reason"]) == ("recall-000007", "tries is not a whole number from 0 to 65535")
    assert "recall-000007" not in {job.id for job in jobs_in(redis_url, "default", "recall")}


@pytest.mark.parametrize("kind", ["redis", "sqlite", "http on redis"])
def test_after_a_wiped_store_the_error_says_reconcile_first(
    spark: SparkSession,
    kind: str,
    address_of: Callable[[str], str],
    lake: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    url = address_of(kind)
    schedule(members(spark, 10), url=url, queue="recall", batch="b1", lake=lake)
    (Path(lake) / "batches" / "b1" / "_manifest").unlink()
    if kind.endswith("redis"):
        with redis.Redis.from_url(str(request.getfixturevalue("redis_url"))) as client:
            client.flushall()
    else:
        for path in tmp_path.glob("jobs.db*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    with pytest.raises(ReconcileFirst, match=r"the store was wiped .*: reconcile first"):
        schedule(members(spark, 10), url=url, queue="recall", batch="b1", lake=lake)
    assert jobs_in(url, "default", "recall") == []


@pytest.mark.parametrize("kind", ["redis", "http on redis"])
def test_a_store_that_is_wiped_under_way_stops_the_push(
    spark: SparkSession, kind: str, address_of: Callable[[str], str], lake: str, request: pytest.FixtureRequest
) -> None:
    """Right before the first push: the tasks look once more."""
    url = address_of(kind)

    def wipe(phase: str, rows: int) -> None:
        if phase == "pushing":
            with redis.Redis.from_url(str(request.getfixturevalue("redis_url"))) as client:
                client.flushall()

    with pytest.raises(ReconcileFirst, match="wiped while the batch 'b1' was pushed"):
        schedule(members(spark, 10), url=url, queue="recall", batch="b1", lake=lake, on_phase=wipe)
    assert jobs_in(url, "default", "recall") == []


def test_marks_that_may_have_ended_are_not_relied_on(spark: SparkSession, redis_url: str, lake: str) -> None:
    schedule(members(spark, 10), url=redis_url, queue="recall", batch="b1", lake=lake)
    home = Path(lake) / "batches" / "b1"
    (home / "_manifest").unlink()
    pushing = json.loads((home / "_pushing").read_text())
    (home / "_pushing").write_text(json.dumps({**pushing, "at": pushing["at"] - 6 * 86_400_000 - 60_000}))

    with pytest.raises(ReconcileFirst, match="marks may have ended"):
        schedule(members(spark, 10), url=redis_url, queue="recall", batch="b1", lake=lake)


def test_one_name_is_one_batch(spark: SparkSession, redis_url: str, lake: str) -> None:
    schedule(members(spark, 10), url=redis_url, queue="recall", batch="b1", lake=lake)
    home = Path(lake) / "batches" / "b1"
    (home / "_manifest").unlink()

    with pytest.raises(BatchConflict, match="other options"):
        schedule(members(spark, 10), url=redis_url, queue="elsewhere", batch="b1", lake=lake)
    [file, *_] = sorted(home.glob("files-*/*.parquet"))
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(BatchConflict, match="is not the file that was accepted"):
        schedule(members(spark, 10), url=redis_url, queue="recall", batch="b1", lake=lake)


def test_a_done_batch_is_not_taken_for_another_one(
    spark: SparkSession, redis_url: str, lake: str, tmp_path: Path
) -> None:
    given: LoadFields = {"url": redis_url, "queue": "recall", "batch": "b1", "source": "members"}
    schedule(members(spark, 10), lake=lake, **given)
    others: list[tuple[LoadFields, str]] = [
        ({"queue": "elsewhere"}, "with other options"),
        ({"namespace": "crm"}, "with other options"),
        ({"source": "customers"}, "from another source"),
        ({"url": f"sqlite://{tmp_path}/jobs.db"}, "in another store, or this one was wiped"),
    ]
    for other, said in others:
        with pytest.raises(BatchConflict, match=said):
            schedule(members(spark, 10), lake=lake, **{**given, **other})
    with pytest.raises(BatchConflict, match="from another source"):
        schedule(members(spark, 10).drop("due_at"), lake=lake, **given)


def test_after_a_reconcile_what_is_missing_is_pushed_once(
    spark: SparkSession, start_redis: Callable[..., RedisServer], lake: str, tmp_path: Path
) -> None:
    """Of ten rows two were pushed, and one of them acked, when the store was wiped."""
    server, journal = start_redis(), str(tmp_path / "journal")
    given: LoadFields = {"url": server.url, "queue": "recall", "batch": "b1", "journal": journal}

    def wipe(phase: str, rows: int) -> None:
        if phase == "pushing":
            server.kill()
            server.start()

    with pytest.raises(ReconcileFirst, match="wiped while the batch 'b1' was pushed"):
        schedule(members(spark, 10), lake=lake, on_phase=wipe, **given)
    with Client(server.url, journal=journal) as client:
        client.queue("recall").bulk([NewJob("recall-000000", b"0"), NewJob("recall-000001", b"1")])
        client.queue("recall").ack(client.queue("recall").reserve(limit=1))
    server.kill()
    server.start()
    with pytest.raises(ReconcileFirst, match=r"reconcile first .* then run this again: it pushes what is missing"):
        schedule(members(spark, 10), lake=lake, **given)

    run_reconcile(Lake(spark, lake), journal, ComparedStore(server.url, wait_s=0))
    done = schedule(members(spark, 10), lake=lake, **given)
    assert (done.rows, done.accepted, done.repeated, done.kept) == (10, 10, 2, 0)
    assert [job.id for job in jobs_in(server.url, "default", "recall")] == [
        f"recall-{index:06}" for index in (2, 3, 4, 5, 6, 7, 8, 9, 1)
    ], "the one that was put back has its own due time, and the one that was acked is gone"
    assert schedule(members(spark, 10), lake=lake, **given).was_done


def register_node(url: str, name: str, at: int) -> None:
    """As if the node had begun at that time and had not signed off."""

    async def put() -> None:
        store = await open_store(url)
        await store.registry.put(NODE_KIND, name, msgspec.json.encode(RegisteredNode(at)))
        await store.close()

    asyncio.run(put())


def test_rows_that_a_reconcile_adopted_are_not_pushed_again_once_they_are_acked(
    spark: SparkSession, redis_url: str, lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows were pushed, their segment was never written, and a week went by before the next run."""
    journal, home = tmp_path / "journal", Path(lake) / "batches" / "b1"
    given: LoadFields = {"url": redis_url, "queue": "recall", "batch": "b1", "journal": str(journal)}
    schedule(members(spark, 10), lake=lake, **given)
    (home / "_manifest").unlink()
    begun = json.loads((home / "_pushing").read_text())
    long_ago = begun["at"] - 6 * 86_400_000 - 60_000
    (home / "_pushing").write_text(json.dumps({**begun, "at": long_ago}))
    shutil.rmtree(journal / begun["node"])
    register_node(redis_url, begun["node"], long_ago)

    # The acks are in a segment that is still being written when the batch is run again.
    with Client(redis_url, journal=str(journal)) as client:
        client.queue("other").bulk([NewJob("x", b"x")])
        with pytest.raises(ReconcileFirst, match="marks may have ended"):
            schedule(members(spark, 10), lake=lake, **given)
        assert run_reconcile(Lake(spark, lake), str(journal), ComparedStore(redis_url)).counts == {"adopted": 10}
        recall = client.queue("recall")
        recall.ack(recall.reserve(limit=100))

        register_node(redis_url, "lost-since", long_ago)
        with monkeypatch.context() as impatient:
            impatient.setattr("duetime.spark.load.push_round.WAIT_S", 0)
            with pytest.raises(ReconcileFirst, match=r"lost-since: registered, .* reconcile again"):
                schedule(members(spark, 10), lake=lake, **given)
        assert list(home.glob("_accepted.*")) == [], "what is missing is not known yet"
        register_node(redis_url, "lost-since", 2 * begun["at"])
        done = schedule(members(spark, 10), lake=lake, **given)

    assert (done.rows, done.accepted, done.repeated, done.kept) == (10, 10, 10, 0)
    assert jobs_in(redis_url, "default", "recall") == []
    assert list((Path(lake) / "_scratch").iterdir()) == []


def test_after_a_reconcile_through_a_server_its_journal_tells_what_was_pushed(
    spark: SparkSession, start_server: StartServer, lake: str, tmp_path: Path
) -> None:
    """The server journals, so the batch knows the journal's folder from the reconcile only."""
    journal, home = str(tmp_path / "journal"), Path(lake) / "batches" / "b1"
    url = start_server("--store", f"sqlite://{tmp_path}/jobs.db", "--journal", journal).api
    given: LoadFields = {"url": url, "queue": "recall", "batch": "b1"}
    schedule(members(spark, 10), lake=lake, **given)
    (home / "_manifest").unlink()
    begun = json.loads((home / "_pushing").read_text())
    (home / "_pushing").write_text(json.dumps({**begun, "at": begun["at"] - 6 * 86_400_000 - 60_000}))
    run_reconcile(Lake(spark, lake), journal, ComparedStore(url))
    with connect(url) as client:
        client.queue("recall").ack(client.queue("recall").reserve(limit=100))

    done = schedule(members(spark, 10), lake=lake, **given)
    assert (done.rows, done.accepted, done.repeated) == (10, 10, 10)
    assert jobs_in(url, "default", "recall") == []


def test_of_two_runs_at_once_the_second_one_follows_the_first(
    spark: SparkSession, redis_url: str, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from duetime.spark.load.batch import Batch

    schedule(members(spark, 10), url=redis_url, queue="recall", batch="b1", lake=lake)
    home = Path(lake) / "batches" / "b1"
    (home / "_manifest").unlink()
    real = Batch.accepted
    # As if `_accepted` had appeared after this run looked for it.
    monkeypatch.setattr(Batch, "accepted", lambda self: None)
    same = schedule(members(spark, 10), url=redis_url, queue="recall", batch="b1", lake=lake)
    (home / "_manifest").unlink()
    with pytest.raises(BatchConflict, match="accepted with other rows"):
        schedule(members(spark, 11), url=redis_url, queue="recall", batch="b1", lake=lake)
    monkeypatch.setattr(Batch, "accepted", real)

    assert same.repeated == 10
    assert len(list(home.glob("files-*"))) == 1


@pytest.mark.parametrize("with_journal", [False, True])
def test_a_batch_says_how_many_rows_are_pushed_while_it_is_under_way(
    spark: SparkSession, redis_url: str, lake: str, tmp_path: Path, with_journal: bool
) -> None:
    rows, seen = 4_000, list[int]()
    options: LoadFields = {"url": redis_url, "queue": "recall", "batch": "b1", "max_jobs_per_second": 2_000}
    if with_journal:
        options["journal"] = str(tmp_path / "journal")
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(lambda: schedule(members(spark, rows), lake=lake, **options))
        while not running.done():
            batch = next(iter(read_lake(Path(lake)).batches), None)
            if batch is not None and batch.pushed is not None and batch.pushed not in seen[-1:]:
                seen.append(batch.pushed)
            time.sleep(0.02)
        assert running.result().accepted == rows

    assert seen == sorted(seen)
    assert any(0 < pushed < rows for pushed in seen)
    [batch] = read_lake(Path(lake)).batches
    assert (batch.state, batch.rows) == ("done", rows)
    assert not (Path(lake) / "batches" / "b1" / "_progress").exists()


def test_the_accepted_rows_are_entries_of_the_journal(
    spark: SparkSession, redis_url: str, lake: str, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    frame = members(spark, 700)
    schedule(frame.limit(1), url=redis_url, queue="recall", batch="before", lake=lake)
    given: LoadFields = {"url": redis_url, "queue": "recall", "batch": "b1", "journal": str(journal), "tries": 3}
    schedule(frame, lake=lake, **given)

    [folder] = journal.iterdir()
    assert folder.name.startswith("batch-default-default-b1-"), "a batch is one node"
    entries = [item for item in read_journal(journal) if isinstance(item, Entry)]
    assert [one.seq for one in entries] == list(range(1, 702))
    assert entries[-1].event is Event.CLOSED
    jobs = {job.id: job for job in jobs_in(redis_url, "default", "recall")}
    for entry in entries[:-1]:
        job = jobs.pop(entry.id)
        assert (entry.event, entry.born, entry.due_at, body_of(entry)) == (
            Event.ACCEPTED,
            job.born,
            job.due_at,
            job.body,
        )
        kept = entry.id == "recall-000000"
        assert (entry.batch, entry.reason, entry.tries) == (("", "repeated", job.tries) if kept else ("b1", "", 3))
    assert jobs == {}

    # A task that runs again leaves its segment as it was.
    before = {path: path.stat().st_ino for path in journal.glob("*/*")}
    (Path(lake) / "batches" / "b1" / "_manifest").unlink()
    schedule(frame, lake=lake, **given)
    assert {path: path.stat().st_ino for path in journal.glob("*/*")} == before

    # A batch of the same name in another namespace is another node.
    schedule(frame.limit(1), lake=f"{lake}-2", **{**given, "namespace": "crm"})
    assert len(list(journal.iterdir())) == 2
    assert len([one for one in read_journal(journal) if isinstance(one, Entry)]) == 703


def test_rows_of_many_kinds_go_to_their_queues(spark: SparkSession, redis_url: str, lake: str) -> None:
    frame = spark.range(0, 1_200, 1, 3).select(
        F.col("id").cast("string").alias("id"),
        F.lit("x").alias("body"),
        F.concat(F.lit("queue-"), F.col("id") % 3).alias("queue"),
        (F.col("id") % 2 + 1).alias("priority"),
        F.when(F.col("id") % 5 == 0, F.create_map(F.lit("k"), F.lit("v"))).alias("attributes"),
    )
    done = schedule(frame, url=redis_url, batch="b1", lake=lake)

    assert done.accepted == 1_200
    for name in range(3):
        jobs = jobs_in(redis_url, "default", f"queue-{name}")
        assert len(jobs) == 400
        assert all(int(job.priority) == int(job.id) % 2 + 1 for job in jobs)
        assert all(bool(job.attributes) == (int(job.id) % 5 == 0) for job in jobs)

"""A lake and a journal on S3 and on HDFS: the pipelines run there, and of two who create one file one wins."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duetime.journal.events import read_line
from duetime.model.ids import IdMaker
from duetime.model.job import Event
from duetime.spark import schedule
from duetime.spark.audit.run import ComparedStore, run_audit
from duetime.spark.ingest.run import run_ingest
from duetime.spark.lake.files import Files, HadoopFiles, LocalFiles
from duetime.spark.lake.lake import LITTER_MS, Lake, Manifest, PublishConflict
from duetime.spark.lake.vacuum import vacuum
from duetime.spark.reconcile.run import run_reconcile
from duetime.spark.stats.run import refresh_stats
from tests.spark.conftest import jobs_in
from tests.spark.frames import events
from tests.spark.history import FATES, Node, Story, a_day, segments

WRITERS = 6
START = 1_790_000_000_000


@pytest.fixture
def home(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty folder of a kind of storage."""
    return str(tmp_path) if kind == "local" else f"{request.getfixturevalue(kind)}/{IdMaker().make()}"


@pytest.mark.parametrize("kind", ["local", "s3", "hdfs"])
def test_of_many_who_create_one_file_one_wins(spark: SparkSession, kind: str, home: str) -> None:
    files: Files = LocalFiles() if kind == "local" else HadoopFiles(spark)

    def create(path: str, writer: int) -> bool:
        try:
            files.create(path, str(writer).encode())
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as threads:
        for number in range(5):
            path = f"{files.home(home)}/{number:012d}.json"
            won = list(threads.map(create, [path] * WRITERS, range(WRITERS)))
            assert sum(won) == 1
            assert files.read(path) == str(won.index(True)).encode()


def test_a_request_that_is_sent_again_is_not_another_run(spark: SparkSession, s3: str) -> None:
    """As S3's client sends it when the first answer is lost."""
    files, path = HadoopFiles(spark), f"{s3}/{IdMaker().make()}/one"
    files.create(path, b"mine")
    files.create(path, b"mine")
    with pytest.raises(FileExistsError):
        files.create(path, b"other")


@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_of_two_runs_one_wins(spark: SparkSession, kind: str, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(spark, home)
    mine, other = (lake.events.stage(events(spark, {"event": word})) for word in ("accepted", "kept"))
    now = lake.events.publish(other, after=Manifest(), about={})
    with monkeypatch.context() as earlier:
        earlier.setattr(lake.events, "manifest", Manifest)
        with pytest.raises(PublishConflict):
            lake.events.publish(mine, after=Manifest(), about={})
    assert [row["event"] for row in lake.events.read().collect()] == ["kept"]
    lake.events.publish(mine, after=now, about={})
    assert sorted(row["event"] for row in lake.events.read().collect()) == ["accepted", "kept"]


@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_the_pipelines_run_there(spark: SparkSession, kind: str, home: str, tmp_path: Path) -> None:
    lake, journal = Lake(spark, f"{home}/lake"), f"{home}/journal"
    a_day(tmp_path / "journal", START, rounds=1)
    for segment in segments(tmp_path / "journal"):
        lake.files.create(f"{journal}/{segment.parent.name}/{segment.name}", segment.read_bytes())
    audited = run_audit(lake, journal)
    # The job that was replaced counts twice.
    assert (audited.is_sound, audited.total("accepted"), audited.total("acked")) == (True, len(FATES) + 1, 7)
    assert run_ingest(lake, journal).events == 0
    refresh_stats(lake)
    stats, jobs = [file.path for file in lake.stats.manifest().files], lake.jobs.read().count()
    lake.stats.publish(None, after=lake.stats.manifest(), about={}, replaces=lambda file: True)
    vacuum(lake, now_ms=int(time.time() * 1000) + 2 * LITTER_MS, keep_ms=2 * LITTER_MS)
    assert lake.jobs.read().count() == jobs, "a living job keeps its day"
    for path in stats:
        with pytest.raises(FileNotFoundError):
            lake.files.read(f"{lake.stats.folder}/{path}")


@pytest.mark.timeout(900)
def test_a_repair_is_on_record_there(spark: SparkSession, s3: str, tmp_path: Path) -> None:
    """The driver writes the entries, because executors cannot write to such a journal."""
    journal, born = f"{s3}/{IdMaker().make()}", int(time.time() * 1000) - 60_000
    files, node = HadoopFiles(spark), Node(tmp_path / "journal", "node-a")
    Story(node.write, "lost", born, born).accepted()
    node.close(born + 1)
    for segment in segments(tmp_path / "journal"):
        files.create(f"{journal}/{segment.parent.name}/{segment.name}", segment.read_bytes())
    compared = ComparedStore(f"sqlite://{tmp_path / 'jobs.db'}", wait_s=0)
    done = run_reconcile(Lake(spark, str(tmp_path / "lake")), journal, compared)
    assert (done.counts, len(done.nodes)) == ({"pushed": 1}, 1)
    [segment] = files.list(f"{journal}/{done.nodes.pop()}")
    accepted, closed = (read_line(line) for line in files.read(segment.path).splitlines(keepends=True))
    assert (accepted.event, accepted.id, accepted.born, closed.event) == (Event.ACCEPTED, "lost", born, Event.CLOSED)


def test_a_table_is_loaded_from_there(spark: SparkSession, s3: str, tmp_path: Path) -> None:
    table = spark.range(5).selectExpr("concat('recall-', id) AS id", "'hello' AS body")
    where = {"url": f"sqlite://{tmp_path / 'jobs.db'}", "queue": "recall", "lake": f"{s3}/{IdMaker().make()}"}
    assert schedule(table, batch="b", **where).accepted == 5
    assert schedule(table, batch="b", **where).was_done
    assert len(jobs_in(where["url"], "default", "recall")) == 5

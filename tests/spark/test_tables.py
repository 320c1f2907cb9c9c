"""A table that is kept in step: what has changed is pushed, moved or withdrawn, once, whatever is killed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from duetime.client import connect
from duetime.journal.events import Entry
from duetime.journal.reader import read_journal
from duetime.model.errors import InvalidRequest, InvalidSettings
from duetime.model.job import Event
from duetime.spark import schedule
from duetime.spark.audit.run import ComparedStore, run_audit
from duetime.spark.lake.lake import Lake
from duetime.spark.load import schedule as scheduling
from duetime.spark.load.batch import Batch, BatchConflict, Changes, ReconcileFirst, Scheduled
from duetime.spark.load.job_columns import REASONS, job_columns
from duetime.spark.load.options import Action, LoadFields, LoadOptions
from duetime.spark.load.table import ACCEPTED_ROWS, changes
from tests.spark.conftest import jobs_in, since

LATER = 4_000_000_000_000
DAY = 86_400_000
ROW = {"body": b"x", "ttl": 0, "tries": 5, "priority": 2, "queue": "recall", "action": "replace", "digest": 1}


def table(spark: SparkSession, rows: dict[str, int], body: str = "hello") -> DataFrame:
    """Ids and due times."""
    values = [(name, due_at, body) for name, due_at in rows.items()]
    return spark.createDataFrame(values, "id string, due_at long, body string")


@pytest.fixture(params=["redis", "sqlite", "http"])
def load(request: pytest.FixtureRequest, address_of: Callable[[str], str]) -> LoadFields:
    return {
        "url": address_of(request.param),
        "queue": "recall",
        "source": "members",
        "on_change": "replace",
        "withdraw_missing": True,
    }


def waiting(given: LoadFields) -> dict[str, int]:
    return {job.id: job.due_at for job in jobs_in(given.get("url", ""), "default", "recall")}


def test_only_what_changed_is_pushed(spark: SparkSession, load: LoadFields, tmp_path: Path) -> None:
    lake, past = str(tmp_path / "lake"), 1_500_000_000_000
    rows = {"delivered": past, "moves": LATER, "goes": LATER, "stays": LATER}
    first = schedule(table(spark, rows), lake=lake, **load)
    assert (first.changes, first.accepted) == (Changes(4, 0, 0, 0), 4)
    with connect(load.get("url", "")) as client:
        queue = client.queue("recall")
        queue.ack(queue.reserve(limit=10))

    rows = {"delivered": past, "moves": LATER + DAY, "stays": LATER, "new": LATER}
    second = schedule(table(spark, rows), lake=lake, **load)
    assert second.changes == Changes(new=1, moved=1, withdrawn=1, unchanged=2)
    assert (second.rows, second.accepted, second.replaced, second.cancelled) == (3, 1, 1, 1)
    assert waiting(load) == {"moves": LATER + DAY, "stays": LATER, "new": LATER}, "what was delivered stays so"

    third = schedule(table(spark, rows), lake=lake, **load)
    assert (third.changes, third.rows) == (Changes(0, 0, 0, 4), 0)
    back = schedule(table(spark, {**rows, "goes": LATER, "delivered": LATER}), lake=lake, **load)
    assert back.changes == Changes(new=1, moved=1, withdrawn=0, unchanged=3)
    assert waiting(load) == {**rows, "goes": LATER, "delivered": LATER}


@pytest.mark.parametrize("at", ["accepted", "claimed", "pushed"])
def test_a_run_that_was_killed_is_ended_by_the_next_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Whatever the table is like by then. The jobs that the killed run had pushed were delivered meanwhile."""
    lake, journal = str(tmp_path / "lake"), str(tmp_path / "journal")
    given: LoadFields = {
        "url": f"sqlite://{tmp_path}/jobs.db", "queue": "recall", "source": "members", "journal": journal,
        "on_change": "replace", "withdraw_missing": True,
    }  # fmt: skip
    schedule(table(spark, {"moves": LATER, "goes": LATER}), lake=lake, **given)

    def die(*args: object, **more: object) -> Any:
        raise KeyboardInterrupt

    where: dict[str, tuple[Any, str]] = {
        "accepted": (scheduling.TableLoads, "claim"),
        "claimed": (scheduling, "push_round"),
        "pushed": (Batch, "finish"),
    }
    with monkeypatch.context() as killed:
        killed.setattr(*where[at], die)
        with pytest.raises(KeyboardInterrupt):
            schedule(table(spark, {"moves": 1_500_000_000_000, "new": LATER}), lake=lake, **given)
    if at == "pushed":
        with connect(given["url"], journal=journal) as client:
            client.queue("recall").ack(client.queue("recall").reserve(limit=10))

    done = schedule(table(spark, {"moves": 1_500_000_000_000, "new": LATER, "newer": LATER}), lake=lake, **given)
    assert done.changes == Changes(new=1, moved=0, withdrawn=0, unchanged=2)
    assert done.resumed.endswith("-000002")
    expected = {"new": LATER, "newer": LATER} | ({} if at == "pushed" else {"moves": 1_500_000_000_000})
    assert waiting(given) == expected
    if at == "pushed":
        audited = run_audit(Lake(spark, lake), journal, ComparedStore(given["url"], wait_s=0, grace_ms=0))
        assert (audited.is_sound, audited.found) == (True, {})


def test_jobs_are_rescheduled_and_keep_their_born(spark: SparkSession, load: LoadFields, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    load["on_change"] = "reschedule"
    schedule(table(spark, {"waits": LATER, "was delivered": 1_500_000_000_000}), lake=lake, **load)
    born = {job.id: job.born for job in jobs_in(load.get("url", ""), "default", "recall")}
    with connect(load.get("url", "")) as client:
        queue = client.queue("recall")
        queue.ack(queue.reserve(limit=1))

    moved = schedule(table(spark, {"waits": LATER + 5, "was delivered": LATER}, "other"), lake=lake, **load)
    assert (moved.changes, moved.replaced, moved.accepted) == (Changes(0, 2, 0, 0), 1, 1)
    jobs = {job.id: job for job in jobs_in(load.get("url", ""), "default", "recall")}
    assert {name: job.due_at for name, job in jobs.items()} == {"waits": LATER + 5, "was delivered": LATER}
    assert (jobs["waits"].born, jobs["waits"].body) == (born["waits"], b"hello"), "only its time has changed"


def test_what_must_be_known_of_a_table(spark: SparkSession, redis_url: str, tmp_path: Path) -> None:
    lake, rows = str(tmp_path / "lake"), table(spark, {"a": LATER})
    given: LoadFields = {"url": redis_url, "queue": "recall", "on_change": "replace"}
    with pytest.raises(InvalidSettings, match="name the table with the option source"):
        schedule(rows, lake=lake, **given)
    with pytest.raises(InvalidRequest, match="column due_at is missing: a table that is kept in step"):
        schedule(rows.drop("due_at"), lake=lake, source="t", **given)
    with pytest.raises(InvalidRequest, match="onChange must be one of keep, replace, reschedule, got 'merge'"):
        schedule(rows, lake=lake, source="t", **{**given, "on_change": "merge"})
    schedule(rows, lake=lake, source="t", **given)
    empty = schedule(rows.limit(0), lake=lake, source="t", withdraw_missing=True, **given)
    assert (empty.rows, empty.cancelled, list(waiting(given))) == (0, 0, ["a"]), "an empty table withdraws nothing"
    with pytest.raises(ReconcileFirst, match="went to another store, or this one was wiped since"):
        schedule(rows, lake=lake, source="t", **{**given, "url": f"sqlite://{tmp_path}/jobs.db"})


def test_of_two_runs_that_compared_with_the_same_load_one_wins(
    spark: SparkSession, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = str(tmp_path / "lake")
    given: LoadFields = {"url": redis_url, "queue": "recall", "source": "t", "on_change": "replace"}
    accept = scheduling._accept  # pyright: ignore[reportPrivateUsage]

    def overtaken(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(scheduling, "_accept", accept)
        schedule(table(spark, {"a": LATER}), lake=lake, batch="winner", **given)
        return accept(*args, **more)

    monkeypatch.setattr(scheduling, "_accept", overtaken)
    with pytest.raises(BatchConflict, match="'winner' of the same source was accepted after 'loser' was compared"):
        schedule(table(spark, {"b": LATER}), lake=lake, batch="loser", **given)
    assert list(waiting(given)) == ["a"]


def test_a_plain_load_is_what_the_first_comparison_is_made_with(
    spark: SparkSession, redis_url: str, tmp_path: Path
) -> None:
    """Five members got a later end date; without on_change their jobs are kept."""
    lake, given = str(tmp_path / "lake"), LoadFields(url=redis_url, queue="recall", source="members")
    rows = {f"member-{number}": LATER for number in range(8)}
    schedule(table(spark, rows), lake=lake, batch="monday", **given)
    rows |= {f"member-{number}": LATER + DAY for number in range(5)}
    kept = schedule(table(spark, rows), lake=lake, batch="tuesday", **given)
    assert (kept.accepted, kept.kept) == (0, 8)

    (Path(lake) / "batches" / "tuesday" / "_manifest").unlink()
    done: Scheduled = schedule(table(spark, rows), lake=lake, on_change="replace", **given)
    assert (done.changes, done.replaced) == (Changes(0, 5, 0, 3), 5)
    assert waiting(given) == rows


def rows_of(spark: SparkSession, rows: Sequence[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame([{**ROW, **row} for row in rows], ACCEPTED_ROWS)


def test_a_bad_row_leaves_its_job_as_it_is(spark: SparkSession) -> None:
    before = rows_of(spark, [{"id": name, "due_at": 1} for name in ("bad", "missing", "same")])
    now = [
        {"id": "bad", "due_at": 9, "reason": "the body is null"},
        {"id": "same", "due_at": 1},
        {"id": "same", "due_at": 1},
        {"id": "twice", "due_at": 1},
        {"id": "twice", "due_at": 2},
    ]
    known = before.select("queue", "id", "due_at", "digest")
    found = changes(rows_of(spark, now), known, withdraw=False).select("id", "kind", "action", "due_at", "reason")
    assert sorted(tuple(row) for row in found.collect()) == [
        ("bad", "bad", Action.SAME, 1, "the body is null"),
        ("missing", "missing", Action.SAME, 1, None),
        ("same", "unchanged", Action.SAME, 1, None),
        ("twice", "bad", "replace", 1, "another row has the same id and differs"),
        ("twice", "bad", "replace", 2, "another row has the same id and differs"),
    ]


def test_jobs_are_cancelled_by_the_rows_of_a_table(spark: SparkSession, load: LoadFields, tmp_path: Path) -> None:
    lake, journal = str(tmp_path / "lake"), tmp_path / "journal"
    url = load.get("url", "")
    given: LoadFields = {"url": url, "queue": "recall"}
    if not url.startswith("http"):
        given["journal"] = str(journal)
    schedule(table(spark, {"a": LATER, "b": LATER, "c": LATER}), lake=lake, batch="b1", **given)
    ids = spark.createDataFrame([("a",), ("c",), ("unknown",)], "id string")
    done = schedule(ids, lake=lake, batch="b2", mode="cancel", **given)
    assert (done.rows, done.cancelled, done.accepted) == (3, 2, 0)
    assert list(waiting(given)) == ["b"]
    if not url.startswith("http"):
        entries = [one for one in read_journal(journal) if isinstance(one, Entry)]
        assert sum(one.event is Event.CANCELLED for one in entries) == 2
        audited = run_audit(Lake(spark, lake), str(journal), ComparedStore(url, wait_s=0, grace_ms=0))
        assert (audited.is_sound, audited.found) == (True, {})


FEED = "id string, due_at long, body string, change string, version long"


@since(4, 1)
def test_a_stream_of_changes_is_merged(spark: SparkSession, redis_url: str, tmp_path: Path) -> None:
    """The second micro-batch is repeated after its job was delivered and acked: nothing is pushed again."""
    feed, checkpoint = tmp_path / "feed", tmp_path / "checkpoint"
    given = {"url": redis_url, "queue": "recall", "batch": "feed", "journal": str(tmp_path / "journal")}

    def run() -> None:
        rows = spark.readStream.schema(FEED).option("maxFilesPerTrigger", 1).parquet(str(feed))
        writer = rows.writeStream.format("duetime").options(**given).option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    def arrive(*rows: tuple[Any, ...]) -> None:
        spark.createDataFrame(rows, FEED).coalesce(1).write.mode("append").parquet(str(feed))
        run()

    arrive(("a", LATER, "1", "insert", 1), ("b", LATER, "1", "insert", 1), ("c", LATER, "1", "insert", 1))
    past = 1_500_000_000_000
    arrive(("a", LATER + 1, "2", "update", 2), ("a", past, "3", "update", 3), ("b", LATER, "", "delete", 2))
    with connect(redis_url, journal=given["journal"]) as client:
        queue = client.queue("recall")
        taken = queue.reserve(limit=10)
        queue.ack(taken)
    assert [(one.lease.id, one.body) for one in taken] == [("a", b"3")]
    for file in ("1", ".1.crc"):
        (checkpoint / "commits" / file).unlink(missing_ok=True)
    run()
    assert waiting(LoadFields(url=redis_url)) == {"c": LATER}
    audited = run_audit(
        Lake(spark, str(tmp_path / "lake")), given["journal"], ComparedStore(redis_url, wait_s=0, grace_ms=0)
    )
    assert (audited.is_sound, audited.found) == (True, {})


def test_rows_replace_and_cancel_jobs_by_save(spark: SparkSession, redis_url: str) -> None:
    given = {"url": redis_url, "queue": "recall"}
    save = lambda rows, **more: rows.write.format("duetime").options(**given, **more).mode("append").save()  # noqa: E731
    save(table(spark, {"a": LATER, "b": LATER, "c": LATER}))
    save(table(spark, {"a": LATER + 1}), ifExists="replace")
    save(table(spark, {"b": LATER + 2}), ifExists="reschedule")
    save(table(spark, {"c": LATER}).select("id"), mode="cancel")
    assert waiting(LoadFields(url=redis_url)) == {"a": LATER + 1, "b": LATER + 2}
    with pytest.raises(Exception, match="the job 'a' has several changes: a column version must say"):
        save(
            spark.createDataFrame(
                [("a", "x", "update"), ("a", "y", "delete")], "id string, body string, change string"
            ).coalesce(1)
        )


def test_what_a_row_asks_for() -> None:
    rows = pa.record_batch(
        {
            "id": list("abcdefg"),
            "body": [b"x", b"x", b"x", None, None, b"x", b"x"],
            "if_exists": [None, "replace", "Reschedule", None, None, "merge", None],
            "change": [None, "insert", "update", "DELETE", "insert", "update", "update"],
        }
    )
    table = job_columns(rows, LoadOptions("redis://x", queue="q"), 0, "", "UTC")
    reasons = [None] * 4 + [REASONS["body_null"], REASONS["action_bad"], None]
    assert table.column("reason").to_pylist() == reasons
    actions = table.column("action").to_pylist()
    assert actions == ["keep", "replace", "reschedule", "cancel", "keep", "merge", "replace"]
    in_step = LoadOptions("redis://x", queue="q", on_change=Action.KEEP)
    nulls = pa.record_batch({"id": ["a"], "body": ["x"], "due_at": pa.array([None], pa.int64())})
    assert job_columns(nulls, in_step, 0, "", "UTC").column("reason").to_pylist() == [REASONS["due_null"]]

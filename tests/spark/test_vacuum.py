"""`duetime pipeline vacuum`: what is old goes, what a living job needs stays."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from duetime.model.errors import InvalidRequest
from duetime.model.ids import encode
from duetime.model.job import Event
from duetime.spark.ingest import about as events_about
from duetime.spark.ingest.about import about_events, known_nodes
from duetime.spark.ingest.run import run_ingest
from duetime.spark.lake.files import LocalFiles
from duetime.spark.lake.lake import Lake, Manifest, Table
from duetime.spark.lake.vacuum import vacuum
from duetime.spark.lifecycle.run import run_lifecycle
from duetime.spark.schemas import CLOSED
from tests.spark.history import Node
from tests.spark.sample_rows import DAY, day_of, event, events, frame, job, jobs

NOW = int(time.time() * 1000)
START = NOW - 100 * DAY


def publish(table: Table, rows: DataFrame, **about: object) -> None:
    table.publish(table.stage(rows), after=table.manifest(), about=about)


def bodies(lake: Lake) -> dict[str, bytes | None]:
    rows = lake.events.read().where("event = 'accepted'").collect()
    return {row["id"]: None if row["body"] is None else bytes(row["body"]) for row in rows}


def file_of(lake: Lake, born: int) -> str:
    """The file of `jobs` with the day of a birth."""
    return next(file.path for file in lake.jobs.manifest().files if file.date == str(day_of(born)))


def test_old_days_and_bodies_go_and_living_jobs_stay(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, str(tmp_path / "lake"))
    born = {"old": START, "living": START + DAY, "beside": START + DAY, "recent": START + 80 * DAY, "new": NOW}
    accepted = [event("accepted", at, id=name, born=at, body=b"secret") for name, at in born.items()]
    # Adopted long after its birth, so its body is not on the day of its birth.
    accepted.append(event("adopted", START + 2 * DAY, id="living", born=born["living"], body=b"secret"))
    publish(lake.events, events(spark, *accepted))
    ended = {"outcome": "acked", "ends": 1, "ended_at": NOW}
    rows = [job(name, at, **({} if name == "living" else ended)) for name, at in born.items()]
    publish(lake.jobs, jobs(spark, *rows), events_version=1)
    batch = tmp_path / "lake" / "batches" / "b1"
    (batch / "files-1").mkdir(parents=True)
    (batch / "_manifest").write_text(json.dumps({"finished_at": NOW - 50 * DAY}))
    (tmp_path / "lake" / "batches" / "open" / "files-1").mkdir(parents=True)
    for at in (NOW - 99 * DAY, NOW - DAY):
        (tmp_path / "lake" / "audit" / encode(at << 80)).mkdir(parents=True)
    plan = tmp_path / "lake" / "reconcile" / encode(NOW - 20 * DAY << 80) / "plan"
    plan.mkdir(parents=True)
    litter = tmp_path / "lake" / "events" / "_files" / "date=2020-01-01" / "left.parquet"
    litter.parent.mkdir()
    litter.write_bytes(b"x" * 7)
    os.utime(litter, (1, 1))
    ask = {"now_ms": NOW, "keep_ms": 90 * DAY, "bodies_ms": 10 * DAY}

    planned = vacuum(lake, **ask, dry_run=True)
    assert set(bodies(lake)) == set(born)
    assert litter.exists()
    assert plan.exists()
    done = vacuum(lake, **ask)
    assert done == planned
    assert (done.days, done.batches, done.runs, done.files, done.bytes) == (
        {"events": 1, "jobs": 1, "stats": 0, "closed": 0}, 1, 1, 1, 7
    )  # fmt: skip
    assert done.days_without_bodies == 2
    assert bodies(lake) == {"living": b"secret", "beside": None, "recent": None, "new": b"secret"}
    assert {row["id"] for row in lake.jobs.read().collect()} == set(born) - {"old"}
    assert lake.events.read().where("event = 'adopted' and body is not null").count() == 1
    assert not litter.exists()
    assert not plan.exists()
    assert plan.parent.exists()
    assert (batch / "_manifest").exists()
    assert not (batch / "files-1").exists()
    assert (tmp_path / "lake" / "batches" / "open" / "files-1").exists()
    assert len(list((tmp_path / "lake" / "audit").iterdir())) == 1

    again = vacuum(lake, **ask)
    assert (again.days_without_bodies, again.batches, again.runs) == (0, 0, 0)


def test_sums_and_purges_go_with_the_rows_that_they_are_about(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, str(tmp_path / "lake"))
    born = {"old": START, "living": START + DAY, "recent": START + 80 * DAY}
    purge = event("purged", START + 3 * DAY, reason="dead")
    accepted = (event("accepted", at, id=name) for name, at in born.items())
    kept = [("default", "crm", "recall", START + 3 * DAY, "dead")]
    publish(lake.events, events(spark, *accepted, purge), purges=kept)
    ended = {"outcome": "acked", "ends": 1, "ended_at": NOW}
    rows = [job(name, at, **({} if name == "living" else ended)) for name, at in born.items()]
    publish(lake.jobs, jobs(spark, *rows), events_version=1)
    files = [file_of(lake, born[name]) for name in ("old", "recent")]
    days = [day_of(born[name]) for name in ("old", "recent")]
    sums = [{"file": file, "kind": "", "date": day} for file, day in zip(files, days, strict=True)]
    lake.closed.publish(lake.closed.stage(frame(spark, CLOSED, sums)), after=Manifest(), about={"files": files})

    done = vacuum(lake, now_ms=NOW, keep_ms=90 * DAY)
    assert done.days == {"events": 3, "jobs": 1, "stats": 0, "closed": 1}
    assert [row["file"] for row in lake.closed.read().collect()] == files[1:]
    assert lake.closed.manifest().about == {"files": files[1:]}
    assert about_events(lake.events.manifest()).purges == kept

    before = lake.jobs.manifest()
    staged = lake.jobs.stage(jobs(spark, *(job(name, at, **ended) for name, at in born.items() if name != "old")))
    lake.jobs.publish(staged, after=before, about=before.about, replaces=lambda file: True)
    version = lake.events.manifest().version
    vacuum(lake, now_ms=NOW, keep_ms=90 * DAY)
    assert about_events(lake.events.manifest()).purges == [], "no row is left that it could be about"
    vacuum(lake, now_ms=NOW, keep_ms=90 * DAY)
    assert lake.events.manifest().version == version + 1, "a vacuum that finds nothing publishes nothing"


def test_bodies_are_not_kept_longer_than_their_events(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="bodies cannot be kept longer"):
        vacuum(Lake(spark, str(tmp_path)), now_ms=NOW, keep_ms=DAY, bodies_ms=2 * DAY)


def test_a_segment_that_comes_again_brings_nothing_back(spark: SparkSession, tmp_path: Path) -> None:
    journal, lake = tmp_path / "journal", Lake(spark, str(tmp_path / "lake"))
    node = Node(journal, "web-1")
    for word in (Event.ACCEPTED, Event.ACKED):
        node.write(word, START, namespace="crm", queue="recall", id="a", born=START)
    node.close(START)
    assert run_ingest(lake, str(journal)).events == 3
    run_lifecycle(lake)
    assert vacuum(lake, now_ms=NOW, keep_ms=90 * DAY).days == {"events": 1, "jobs": 1, "stats": 0, "closed": 0}
    (segment,) = (journal / "web-1").glob("*.journal")
    (journal / "restored").mkdir()
    shutil.copy(segment, journal / "restored")
    again = run_ingest(lake, str(journal))
    assert (again.events, again.repeated, lake.events.read().count()) == (0, 3, 0)


def aged(path: Path, at_ms: int, content: bytes = b"secret") -> Path:
    """A file that was last changed at that time, in folders of the same age."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    for one in (path, *path.parents[:3]):
        os.utime(one, (at_ms / 1000, at_ms / 1000))
    return path


def test_what_a_killed_run_left_aside_goes_after_a_day(spark: SparkSession, tmp_path: Path) -> None:
    lake, aside = Lake(spark, str(tmp_path / "lake")), tmp_path / "lake" / "_scratch"
    killed = [aged(aside / "01KILLED" / folder / "part-0.parquet", NOW - 2 * DAY) for folder in ("bodies", "places")]
    running = aged(aside / "01RUNNING" / "bodies" / "part-0.parquet", NOW - 2 * DAY)
    aged(aside / "01RUNNING" / "places" / "part-0.parquet", NOW - DAY // 2)
    begun = aside / "01BEGUN"
    begun.mkdir()

    planned = vacuum(lake, now_ms=NOW, dry_run=True)
    assert killed[0].exists()
    done = vacuum(lake, now_ms=NOW)
    assert done == planned
    assert (done.scratch, done.files, done.bytes) == (1, 2, 12)
    assert not killed[0].parent.parent.exists()
    assert running.exists()
    assert begun.exists()
    assert vacuum(lake, now_ms=NOW).scratch == 0


def test_files_of_ended_nodes_go_a_day_after_they_were_replaced(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_about, "MOST_FILES", 2)
    journal, lake = tmp_path / "journal", Lake(spark, str(tmp_path / "lake"))
    folder = LocalFiles().path(lake.events.folder) / events_about.ENDED_FOLDER

    def end_node(name: str) -> None:
        node = Node(journal, name)
        node.write(Event.HEARTBEAT, NOW)
        node.close(NOW)
        run_ingest(lake, str(journal))

    end_node("web-1")
    end_node("web-2")
    first = set(folder.iterdir())
    for path in first:
        os.utime(path, (1, 1))
    end_node("web-3")
    [named] = about_events(lake.events.manifest()).ended
    left = aged(folder / "01LEFT.json", NOW - 2 * DAY, b"{}")

    done = vacuum(lake, now_ms=NOW)
    assert (done.files, done.bytes) == (1, 2)
    assert not left.exists()
    assert set(folder.iterdir()) == {*first, folder / named}, "a reader may still use what was replaced just now"
    assert set(known_nodes(lake, about_events(lake.events.manifest()))) == {"web-1", "web-2", "web-3"}

    assert vacuum(lake, now_ms=NOW + 2 * DAY).files == 2
    assert set(folder.iterdir()) == {folder / named}

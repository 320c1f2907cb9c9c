"""lifecycle: one row per job, the same whatever order and parts its events come in."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from duetime.spark.ingest.run import compact, run_ingest
from duetime.spark.lake.lake import Lake
from duetime.spark.lifecycle import transform as lifecycle
from duetime.spark.lifecycle.run import run_lifecycle
from duetime.spark.schemas import JOBS
from tests.spark.frames import events, job_columns, settled
from tests.spark.history import HOUR_MS, a_day

TOLD = (
    *("id", "born", "outcome", "reason", "batch", "accepted_at", "adopted", "due_at", "first_due_at", "expires_at"),
    *("first_delivered_at", "last_delivered_at", "acked_at", "ended_at", "attempts", "attempt", "used", "tries"),
    *("lateness_ms", "run_ms", "history", "last_at"),
)

RETRIED: list[dict[str, Any]] = [
    {"event": "accepted", "ts": 100, "due_at": 200, "tries": 5, "ttl": 900, "priority": 2, "batch": "b-1"},
    {"event": "rescheduled", "ts": 110, "due_at": 150},
    {"event": "delivered", "ts": 153, "attempt": 1, "due_at": 150},
    {"event": "released", "ts": 160, "attempt": 1, "due_at": 260},
    {"event": "delivered", "ts": 262, "attempt": 2, "due_at": 260},
    {"event": "given_back", "ts": 263, "attempt": 2, "due_at": 260},
    {"event": "delivered", "ts": 264, "attempt": 3, "due_at": 260},
    {"event": "acked", "ts": 280, "attempt": 3},
]
RETRIED_ROW = {
    **{"id": "a", "born": 100, "outcome": "acked", "reason": "", "batch": "b-1", "accepted_at": 100, "adopted": 0},
    **{"due_at": 260, "first_due_at": 150, "expires_at": 1000, "first_delivered_at": 153, "last_delivered_at": 264},
    **{"acked_at": 280, "ended_at": 280, "attempts": 3, "attempt": 3, "used": 2, "tries": 5, "lateness_ms": 3},
    **{"run_ms": 16, "history": 8, "last_at": 280},
}


def told(spark: SparkSession, jobs: DataFrame, *rows: dict[str, Any]) -> None:
    found = jobs.select(*TOLD)
    assertDataFrameEqual(found, job_columns(spark, [{**dict.fromkeys(TOLD), **row} for row in rows], found.schema))


def test_a_job_is_told_whole(spark: SparkSession) -> None:
    told(spark, lifecycle.lifecycle(events(spark, *({**one, "born": 100} for one in RETRIED))), RETRIED_ROW)


def test_the_order_of_arrival_does_not_matter(spark: SparkSession) -> None:
    """Its events in two parts, cut anywhere, the second part first; the row of the first run is merged into."""
    jobs = merged_in_two_parts(spark, RETRIED, cuts=(1, 4, 7))
    told(spark, jobs, *({**RETRIED_ROW, "id": f"cut at {cut}"} for cut in (1, 4, 7)))
    assert jobs.schema.names == JOBS.names


def merged_in_two_parts(spark: SparkSession, entries: Sequence[dict[str, Any]], *, cuts: Sequence[int]) -> DataFrame:
    """A job per cut, with the same entries: those after the cut, the last one first, are those of an earlier run."""
    jobs = {cut: [{**one, "born": 100, "id": f"cut at {cut}"} for one in entries] for cut in cuts}
    late = events(spark, *(row for cut, rows in jobs.items() for row in rows[:cut]))
    early = events(spark, *(row for cut, rows in jobs.items() for row in reversed(rows[cut:])))
    first = settled(lifecycle.lifecycle(early))
    states = lifecycle.event_states(late).unionByName(lifecycle.job_states(first))
    return lifecycle.finish(
        lifecycle.merge(states), lifecycle.batch_names(late, first), lifecycle.purges_by_queue(late.union(early))
    )


def test_an_end_without_a_begin_closes_nothing(spark: SparkSession) -> None:
    jobs = lifecycle.lifecycle(events(spark, {"event": "acked", "born": 5, "ts": 9, "attempt": 1}))
    assert [(row["outcome"], row["acked_at"], row["ends"]) for row in jobs.collect()] == [("", 9, 1)]


AGAIN: list[dict[str, Any]] = [
    {"event": "accepted", "ts": 150, "due_at": 150, "tries": 5, "ttl": 900, "priority": 2, "reason": "repeated"},
    {"event": "accepted", "ts": 270, "attempt": 3, "due_at": 260, "tries": 5, "priority": 2, "reason": "repeated"},
    {"event": "acked", "ts": 300, "attempt": 3, "reason": "repeated"},
    {"event": "acked", "ts": 400, "attempt": 1, "reason": "repeated"},
]
"""What the job's producer and its consumers said again, whenever they did."""


def test_what_is_said_again_changes_nothing(spark: SparkSession) -> None:
    """Before, between and after what was said first, and merged into an earlier run's row."""
    jobs = settled(merged_in_two_parts(spark, [*AGAIN, *RETRIED], cuts=(3, 9)))
    told(spark, jobs, *({**RETRIED_ROW, "id": f"cut at {cut}", "history": 10} for cut in (3, 9)))
    assert {tuple(row) for row in jobs.select("accepts", "acks", "ends").collect()} == {(1, 1, 1)}


def test_what_only_a_repetition_told(spark: SparkSession) -> None:
    begun = {"event": "accepted", "born": 100, "ts": 500, "due_at": 150, "tries": 5, "ttl": 900, "reason": "repeated"}
    delivered = {"event": "delivered", "born": 100, "ts": 153, "attempt": 1, "due_at": 150}
    acked = {"event": "acked", "born": 100, "ts": 200, "attempt": 1, "reason": "repeated"}
    fates: dict[str, list[dict[str, Any]]] = {
        "waiting": [begun],
        "leased": [begun, delivered],
        "acked": [begun, delivered, acked],
        "acked, delivery untold": [begun, acked],
        "released": [begun, delivered, {**delivered, "event": "released", "ts": 160}],
        "taken by another": [begun, delivered, acked, {**delivered, "attempt": 2}],
        "put back": [begun, acked, {**begun, "reason": "", "attempt": 2, "ts": 300}],
        "cancelled": [begun, delivered, acked, {**delivered, "event": "cancelled", "reason": "running"}],
        "purged": [begun, {"event": "purged", "id": "", "ts": 160, "reason": "ready"}],
        "not begun": [acked],
    }
    outcomes = {"released": "waiting", "taken by another": "leased", "put back": "waiting", "not begun": ""}
    whole = [[{"queue": name, "id": name, **row} for row in rows] for name, rows in fates.items()]
    late, early = (
        events(spark, *(rows[0] for rows in whole)),
        events(spark, *(row for rows in whole for row in rows[1:])),
    )
    first = settled(lifecycle.lifecycle(early))
    merged = lifecycle.merge(lifecycle.event_states(late).unionByName(lifecycle.job_states(first)))
    purges = lifecycle.purges_by_queue(early)
    for jobs in (
        lifecycle.lifecycle(late.unionByName(early)),
        lifecycle.finish(merged, lifecycle.batch_names(late, first), purges),
    ):
        found = {row["id"]: row for row in jobs.collect()}
        assert {name: row["outcome"] for name, row in found.items()} == {
            name: outcomes.get(name, name.partition(",")[0]) for name in fates
        }
        acked_at = {name: row["acked_at"] for name, row in found.items() if row["acked_at"]}
        assert acked_at == dict.fromkeys(("acked", "acked, delivery untold", "not begun"), 200)
        begun_at = {(row["accepted_at"], row["expires_at"]) for name, row in found.items() if row["outcome"]}
        assert begun_at == {(100, 1000), (100, 1200)}, "1200: put back, which counts its ttl anew"


def test_where_jobs_are(spark: SparkSession) -> None:
    begun = {"event": "accepted", "born": 10, "ts": 10, "due_at": 50, "tries": 2}
    fates: dict[str, list[dict[str, Any]]] = {
        "waiting": [],
        "leased": [{"event": "delivered", "attempt": 1, "ts": 51}],
        "waiting again": [
            {"event": "delivered", "attempt": 1, "ts": 51},
            {"event": "lease_expired", "attempt": 1, "ts": 60, "due_at": 60},
        ],
        "dead": [
            {"event": "delivered", "attempt": 1, "ts": 51},
            {"event": "dead", "attempt": 1, "ts": 52, "reason": "killed"},
        ],
        "respawned": [
            {"event": "dead", "attempt": 1, "ts": 52, "reason": "tries"},
            {"event": "respawned", "attempt": 1, "ts": 70, "due_at": 70},
        ],
        "dead again": [
            {"event": "dead", "attempt": 1, "ts": 52, "reason": "tries"},
            {"event": "respawned", "attempt": 1, "ts": 70, "due_at": 70},
            {"event": "dead", "attempt": 2, "ts": 80, "reason": "killed"},
        ],
        "put back": [
            {"event": "dead", "attempt": 1, "ts": 52, "reason": "tries"},
            {"event": "accepted", "attempt": 2, "ts": 90, "due_at": 90, "tries": 1},
        ],
        "cancelled": [{"event": "cancelled", "ts": 20, "reason": "running"}],
        "replaced": [{"event": "replaced", "born": 30, "was": 10, "ts": 30, "due_at": 99}],
        "expired": [{"event": "accepted", "born": 40, "was": 10, "ts": 40, "due_at": 99, "reason": "expired"}],
    }
    rows = [{**begun, "id": name, **step} for name, steps in fates.items() for step in [begun, *steps]]
    found = lifecycle.lifecycle(events(spark, *rows)).select("id", "born", "outcome", "reason", "accepts", "used")
    assert sorted(tuple(row) for row in found.collect()) == [
        ("cancelled", 10, "cancelled", "running", 1, 0),
        ("dead", 10, "dead", "killed", 1, 1),
        ("dead again", 10, "dead", "killed", 1, 1),
        ("expired", 10, "expired", "", 1, 0),
        ("expired", 40, "waiting", "", 1, 0),
        ("leased", 10, "leased", "", 1, 1),
        ("put back", 10, "waiting", "tries", 1, 0),
        ("replaced", 10, "replaced", "", 1, 0),
        ("replaced", 30, "waiting", "", 1, 0),
        ("respawned", 10, "waiting", "tries", 1, 0),
        ("waiting", 10, "waiting", "", 1, 0),
        ("waiting again", 10, "waiting", "", 1, 1),
    ]


def test_a_purge_ends_what_was_there(spark: SparkSession) -> None:
    begun = {"event": "accepted", "due_at": 50}
    rows = [
        {**begun, "id": "ready", "born": 10, "ts": 10},
        {**begun, "id": "delayed", "born": 10, "ts": 10, "due_at": 500},
        {**begun, "id": "dead", "born": 10, "ts": 10},
        {"event": "dead", "id": "dead", "born": 10, "ts": 60, "attempt": 1},
        {**begun, "id": "later", "born": 101, "ts": 101},
        {**begun, "id": "survivor", "born": 10, "ts": 10},
        {"event": "delivered", "id": "survivor", "born": 10, "ts": 130, "attempt": 1},
        {**begun, "id": "elsewhere", "born": 10, "ts": 10, "queue": "other"},
        {"event": "purged", "id": "", "ts": 100, "reason": "dead,ready"},
    ]
    for order in itertools.islice(itertools.permutations(rows), 0, 40_000, 39_999):
        found = lifecycle.lifecycle(events(spark, *order))
        assert {row["id"]: (row["outcome"], row["ended_at"]) for row in found.collect()} == {
            "ready": ("purged", 100),
            "delayed": ("waiting", None),
            "dead": ("purged", 100),
            "later": ("waiting", None),
            "survivor": ("leased", None),
            "elsewhere": ("waiting", None),
        }


def test_only_the_days_of_touched_jobs_are_written_again(spark: SparkSession, tmp_path: Path) -> None:
    start = 1_790_000_000_000
    day = a_day(tmp_path / "journal", start, rounds=1)
    lake = Lake(spark, str(tmp_path / "lake"))
    run_ingest(lake, str(day.journal))
    first = run_lifecycle(lake)
    assert (first.jobs, run_lifecycle(lake).days) == (13, 0)
    kept = set(lake.jobs.manifest().files)

    # Another day, in another journal: the first day's files stay as they are.
    later = a_day(tmp_path / "journal-2", start + 96 * HOUR_MS, rounds=1, nodes="cd")
    run_ingest(lake, str(later.journal))
    second = run_lifecycle(lake)
    assert (second.days, second.jobs) == (1, 13)
    assert kept <= set(lake.jobs.manifest().files)

    # Small files become few, and their rows are not taken for new ones.
    files, rows = len(lake.events.manifest().files), lake.events.read().count()
    assert compact(lake, crowded=1) > 0
    assert len(lake.events.manifest().files) < files
    assert lake.events.read().count() == rows
    assert run_lifecycle(lake).days == 0
    assertDataFrameEqual(
        lake.jobs.read().drop("date"), lifecycle.lifecycle(lake.events.read()).drop("date"), ignoreNullable=True
    )

"""The report: what it gathers, what it writes, and how a browser takes it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from duetime.model.ids import encode
from duetime.spark.audit.transform import law
from duetime.spark.lake.lake import Lake
from duetime.spark.report.data import (
    BatchLine,
    Heat,
    Period,
    Point,
    QueueBalance,
    QueueLine,
    Report,
    duration,
    number,
    percent,
    short,
    span_of,
)
from duetime.spark.report.gather import DAY, HOUR, Tables, balances, gather, step_for
from duetime.spark.report.run import Asked, make_report
from duetime.spark.report.write import write_report
from duetime.spark.stats.run import refresh_stats
from duetime.spark.stats.transform import COUNTS, minute_stats
from tests.e2e.shell import Shell
from tests.spark.browser import look_at
from tests.spark.sample_rows import MINUTE, START, event, events, job, jobs

EVIL = "</script><img src=x onerror=alert(1)>"


def counts(**given: int) -> dict[str, int]:
    return {**dict.fromkeys(COUNTS, 0), **given}


def sample(*, queue: str = "recall", missing: int = 0) -> Report:
    points = [
        Point(START + n * HOUR, counts(accepted=10, delivered=9, acked=8, released=1, dead=n % 2), 2, 5 + n, 9 + n)
        for n in range(48)
    ]
    whole = QueueLine(
        "", "", counts(accepted=480, delivered=432, acked=384, released=48, dead=24), 2, 30, 55, 7, 90, 0.98
    )
    terms = {"accepted": 480 + missing, "waiting": 72, "acked": 384, "dead": 24}
    return Report(
        period=Period(START, START + 2 * DAY, HOUR),
        target_ms=50,
        written_at=START + 2 * DAY,
        whole=whole,
        points=points,
        queues=[replace(whole, namespace="crm", queue=queue)],
        balances=[QueueBalance("crm", queue, terms)],
        dead_reasons={"tries": 20, "killed": 4},
        heat=Heat(["Mon", "Tue"], [f"{hour:02d}" for hour in range(24)], [[9] * 24, [9] * 24], "day and hour"),
        batches=[BatchLine("b-1", f"crm/{queue}", 100, 90, 4, 6, START, START + DAY)],
    )


def test_everything_is_gathered(spark: SparkSession) -> None:
    happened = events(
        spark,
        event("accepted", START),
        event("accepted", START + 1),
        event("delivered", START + HOUR),
        event("delivered", START + HOUR + 30_000),
        event("acked", START + HOUR + 30_500),
        event("dead", START + HOUR + 40_000, reason="killed"),
    )
    due = {"batch": "b", "first_due_at": START + HOUR}
    acked = {"outcome": "acked", "acked_at": START + HOUR + 30_500, "run_ms": 500, "last_at": START + HOUR + 30_500}
    dead = {"outcome": "dead", "last_at": START + HOUR + 40_000}
    known = jobs(
        spark,
        job("a", START, **due, **acked, first_delivered_at=START + HOUR, lateness_ms=0),
        job("b", START + 1, **due, **dead, first_delivered_at=START + HOUR + 30_000, lateness_ms=30_000),
    )
    period = Period(START, START + 2 * HOUR, HOUR)
    tables = Tables(minute_stats(happened, known), happened, known)
    every = counts(accepted=2, delivered=2, acked=1, dead=1)
    latest = {"p50": 0, "p95": 30_000, "p99": 30_000}
    line = QueueLine("crm", "recall", every, **latest, run_p50=500, run_p99=500, on_time=0.5)
    terms = dict.fromkeys(("accepted", "adopted", "waiting", "leased", "dead", "acked", "cancelled", "expired"), 0)
    terms |= dict.fromkeys(("replaced", "purged", "deleted"), 0)
    assert gather(tables, period, target_ms=50, written_at=7) == Report(
        period=period,
        target_ms=50,
        written_at=7,
        whole=replace(line, namespace="", queue=""),
        points=[
            Point(START, counts(accepted=2)),
            Point(START + HOUR, counts(delivered=2, acked=1, dead=1), **latest),
        ],
        queues=[line],
        balances=[QueueBalance("crm", "recall", {**terms, "accepted": 2, "acked": 1, "dead": 1})],
        dead_reasons={"killed": 1},
        heat=Heat(
            ["crm/recall"],
            [f"{n // 60:02d}:{n % 60:02d}" for n in range(0, 120, 60)],
            [[0, 2]],
            "queue and hour",
        ),
        batches=[BatchLine("b", "crm/recall", 2, 1, 1, 0, START + HOUR, START + HOUR)],
        peak=2,
    )
    # The same in steps of seconds: what happened in one of them is not taken for what happens in each.
    short_steps = Period(START + HOUR, START + HOUR + MINUTE, 1000)
    assert gather(tables, short_steps, target_ms=50, written_at=7).peak == 2


def test_the_peak_is_a_count_and_no_estimate() -> None:
    short_steps = replace(sample(), period=Period(START, START + MINUTE, 5_000), peak=9)
    page = write_report(short_steps)
    assert re.search(r"Peak.{0,200}\b9\b.{0,200}deliveries in the busiest minute", page, re.DOTALL)
    assert "deliveries a minute" not in page


def test_the_law_leaves_out_what_has_not_begun(spark: SparkSession) -> None:
    known = jobs(
        spark,
        job("a", START, outcome="acked"),
        job("b", START, outcome="waiting", adopted=1, accepts=0),
        job("c", START, outcome="", accepted_at=None),
    )
    [balance] = balances(known)
    assert (balance.terms["accepted"], balance.terms["adopted"], balance.terms["waiting"]) == (1, 1, 1)
    assert balance.missing == 0


def test_steps_keep_charts_legible() -> None:
    assert step_for(START, START + 2 * MINUTE) == 1000
    assert step_for(START, START + HOUR) == MINUTE
    assert step_for(START, START + 7 * DAY) == HOUR
    assert step_for(START, START + 400 * DAY) == DAY


def test_numbers_read_well() -> None:
    assert [number(1234567), short(914_321), short(1_234_567), short(12), short(9_999)] == [
        "1,234,567", "914 k", "1.23 M", "12", "9,999",
    ]  # fmt: skip
    assert [percent(999_999, 1_000_000), percent(1, 1_000_000), percent(0, 5), percent(5, 5), percent(1, 0)] == [
        "99.999 %", "0.001 %", "0 %", "100 %", "-",
    ]  # fmt: skip
    assert [duration(8), duration(1234), duration(90_000), duration(None)] == ["8 ms", "1.2 s", "1 min 30 s", "-"]
    assert span_of(START, START + DAY) == "2026-11-02 (UTC)"
    assert span_of(START, START + 7 * DAY) == "2026-11-02 to 2026-11-08 (UTC)"


def test_names_are_text_and_never_markup() -> None:
    page = write_report(sample(queue=EVIL))
    assert EVIL not in page
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in page


def test_the_page_refers_to_nothing_outside_itself() -> None:
    page = write_report(sample())
    ours = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", ours)
    assert "default-src 'none'" in ours


@pytest.mark.parametrize(
    ("missing", "headline"), [(0, "Nothing was lost"), (7, "The books do not balance: 7 unexplained")]
)
def test_the_verdict_comes_first(missing: int, headline: str) -> None:
    page = write_report(sample(missing=missing))
    assert page.index(headline) < page.index("Lateness p99")


def test_what_an_audit_named_is_said() -> None:
    page = write_report(replace(sample(), defects={"lost": 3, "early": 0}, audited_at=START))
    assert "The books do not balance: 3 lost" in page


def test_a_browser_draws_it_without_an_error_or_a_request(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(write_report(sample(queue=EVIL)))
    seen = look_at(page, tmp_path / "profile")
    assert seen.console == []
    assert 'data-drawn="yes"' in seen.dom
    assert len(re.findall(r'class="chart js-plotly-plot', seen.dom)) == 6
    page.write_text(page.read_text().replace("<main>", '<main><img src="http://127.0.0.1:9/x.png">'))
    assert "Content Security Policy" in look_at(page, tmp_path / "profile").console[0], "this test could not fail"


def test_from_the_lake_to_the_file(spark: SparkSession, tmp_path: Path) -> None:
    shell = Shell("", tmp_path)
    lake = Lake(spark, str(tmp_path / "lake"))
    missing = shell.run("pipeline", "report", "--json", "--since", "2026-11-02")
    assert (missing.code, missing.error["code"]) == (1, "nothing_to_report")

    happened = [event("accepted", START), event("delivered", START + 9), event("acked", START + 20)]
    done = job("a", START, outcome="acked", first_delivered_at=START + 9, lateness_ms=9, acked_at=START + 20, run_ms=11)
    for table, rows in ((lake.events, events(spark, *happened)), (lake.jobs, jobs(spark, done))):
        table.publish(table.stage(rows), after=table.manifest(), about={})
    made = shell.ok("pipeline", "stats", "--json").document
    assert made["dates"] == ["2026-11-02"]
    assert [(row["queue"], row["written"], row["failed"]) for row in made["totals"]] == [("recall", 1, 0)]
    assert shell.ok("pipeline", "stats", "--json").document["dates"] == []

    arguments = ("pipeline", "report", "--since", "2026-11-02", "--until", "2026-11-03", "--out", "out/november.html")
    answer = shell.ok(*arguments, "--json").document
    assert (answer["counts"]["acked"], answer["lateness_ms"]["p99"], answer["law"]["missing"]) == (1, 9, 0)
    assert "Nothing was lost: 1 jobs accepted" in (tmp_path / "out" / "november.html").read_text()

    late = job("b", START + 2 * DAY, first_due_at=START, first_delivered_at=START + 30, lateness_ms=30)
    lake.jobs.publish(lake.jobs.stage(jobs(spark, late)), after=lake.jobs.manifest(), about={})
    assert shell.ok("pipeline", "stats", "--json").document["dates"] == ["2026-11-02"], "a late job changes that day"
    again = json.loads(shell.ok(*arguments, "--json").out)
    assert (again["counts"]["acked"], again["lateness_ms"]["p99"]) == (1, 30)
    assert "recall" in shell.ok("pipeline", "stats", "--again").out


def test_the_law_is_the_last_audits_while_that_is_fresh(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, str(tmp_path / "lake"))
    known = jobs(spark, job("a", START), job("b", START + 1))
    for table, rows in ((lake.events, events(spark, event("accepted", START))), (lake.jobs, known)):
        table.publish(table.stage(rows), after=table.manifest(), about={})
    refresh_stats(lake)
    run = encode((START + HOUR) << 80)
    law(known).withColumn("waiting", F.lit(1)).withColumn("lost", F.lit(1)).write.parquet(
        f"{lake.folder}/audit/{run}/law"
    )
    spark.sql("SELECT 'lost' AS kind UNION ALL SELECT 'unanswered'").write.parquet(
        f"{lake.folder}/audit/{run}/findings"
    )

    fresh = make_report(lake, Asked(START, START + DAY), written_at=START + 2 * HOUR)
    assert (fresh.audited_at, fresh.defects, fresh.balances[0].missing) == (START + HOUR, {"lost": 1}, 1)
    old = make_report(lake, Asked(START, START + DAY), written_at=START + 26 * HOUR)
    assert (old.audited_at, old.defects, old.balances[0].missing) == (0, {}, 0)
    begun = make_report(lake, Asked(START + 59_000, START + DAY), written_at=START + 2 * HOUR)
    assert begun.period == fresh.period, "a minute that has begun belongs to the report"

"""`duetime pipeline replay`: a past window's arrivals once more, on another queue or in a simulator."""

import dataclasses
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from duetime.cli.options import Target, argument, flag, option
from duetime.cli.output import Answer
from duetime.cli.pipelines.options import SparkOptions
from duetime.cli.pipelines.report import read_time
from duetime.cli.progress import show_progress
from duetime.model.errors import InvalidRequest
from duetime.model.humanise import span
from duetime.model.names import check_queue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from duetime.spark.replay.drive import Arrival


@dataclass(frozen=True)
class ReplayOptions:
    since: Annotated[str, option("TIME", "The start of the window, a day or an instant (UTC).")]
    until: Annotated[str, option("TIME", "Its end, not part of it.")]
    to: Annotated[str | None, option("QUEUE", "Push to this queue, never the same one.")] = None
    consumers: Annotated[str | None, option("N,N...", "Simulate these numbers of consumers, without a store.")] = None
    speed: Annotated[float, option(None, "2 is twice as fast; gaps, delays and lives shrink alike.")] = 1.0
    bodies: Annotated[bool, flag("Push the real bodies instead of blanks of the same length.", "--bodies")] = False
    dry_run: Annotated[bool, flag("Only say what would arrive, and how fast.", "--dry-run")] = False


def replay(
    queue: Annotated[str, argument(None, "The queue of the past.")],
    options: ReplayOptions,
    spark: SparkOptions,
    target: Target,
) -> None:
    """Repeat a past window's arrivals as a capacity test.

    Arrivals keep their gaps, so the load is that of the past, times --speed. Jobs get new ids and, unless --bodies is
    given, blank bodies of the same size. The queue of the past is never touched.

    Examples:
        duetime pipeline replay recall --since 2026-11-15T09:00Z --until 2026-11-15T10:00Z --to load-test --dry-run
        duetime pipeline replay recall --since 2026-11-15 --until 2026-11-16 --to load-test --speed 24
        duetime pipeline replay recall --since 2026-11-15 --until 2026-11-16 --consumers 1,2,4,8
    """
    answer = target.answer
    start, end = read_time(options.since), read_time(options.until)
    check(queue, options, target, length_ms=end - start)
    with spark.session("replay") as session:
        from pyspark.sql import functions as F

        from duetime.spark.lake.lake import Lake
        from duetime.spark.replay.drive import arrivals

        lake = Lake(session, spark.lake_folder)
        ours = (F.col("namespace") == target.space) & (F.col("queue") == queue)
        arrived = arrivals(lake.events.read().where(ours), lake.jobs.read().where(ours), start_at=start, end_at=end)
        with show_progress("reading", as_json=target.json) as progress, progress.follow(session):
            plan = _plan(arrived, options.speed)
        if not plan["jobs"]:
            raise InvalidRequest(f"no job arrived in {target.space}/{queue} in this window, as far as the lake knows")
        if options.consumers and not options.dry_run:
            _simulate(answer, arrived, options)
        elif options.dry_run or options.to is None:
            answer.show({"dry_run": True, **plan}, _plan_text(plan, options))
        else:
            _drive(answer, arrived, options, target, total=plan["jobs"])


def check(queue: str, options: ReplayOptions, target: Target, *, length_ms: int) -> None:
    """Raises InvalidRequest for options that make no sense, above all for a replay into the queue that it came from."""
    if length_ms <= 0:
        raise InvalidRequest("the window ends before it begins: see --since and --until")
    if not 0 < options.speed < 1e6:
        raise InvalidRequest("--speed must be greater than 0")
    if options.to is not None and check_queue(target.space, options.to) == check_queue(target.space, queue):
        raise InvalidRequest(f"--to must name another queue than the one that is replayed, got {queue}")
    if options.to is None and not options.consumers and not options.dry_run:
        raise InvalidRequest("one of --to QUEUE, --consumers N,N... and --dry-run must be given")
    if options.to is not None and options.consumers:
        raise InvalidRequest("--to and --consumers cannot be combined: --to pushes to a store, --consumers simulates")


def _plan(arrived: "DataFrame", speed: float) -> dict[str, Any]:
    from pyspark.sql import functions as F

    from duetime.spark.replay.drive import arrivals_by_second

    sums: Any = (
        arrivals_by_second(arrived)
        .agg(
            F.coalesce(F.sum("jobs"), F.lit(0)).alias("jobs"),
            F.coalesce(F.sum("bytes"), F.lit(0)).alias("bytes"),
            F.max("jobs").alias("peak"),
            F.max("second").alias("last"),
        )
        .head()
    )
    return {
        "jobs": sums["jobs"],
        "bytes": sums["bytes"],
        "peak_per_s": round((sums["peak"] or 0) * speed, 1),
        "seconds": round(((sums["last"] or 0) + 1) / speed, 1),
        "speed": speed,
    }


def _plan_text(plan: dict[str, Any], options: ReplayOptions) -> str:
    where = f"to {options.to}" if options.to else f"to {options.consumers} simulated consumers"
    return (
        f"{plan['jobs']:,} jobs ({plan['bytes']:,} bytes) would go {where} within {span(plan['seconds'] * 1000)}, "
        f"at most {plan['peak_per_s']:,.0f} a second. Nothing was pushed."
    )


def _simulate(answer: Answer, arrived: "DataFrame", options: ReplayOptions) -> None:
    from duetime.spark.replay.drive import simulate_consumers

    rows = arrived.select("offset_ms", "delay_ms", "run_ms").collect()
    known = [row.run_ms for row in rows if row.run_ms is not None]
    if not known:
        raise InvalidRequest("no job of the window was acked, so nothing is known about how long they run")
    usual = median(known)
    due = [(row.offset_ms + row.delay_ms) / options.speed for row in rows]
    runs = [float(row.run_ms if row.run_ms is not None else usual) for row in rows]
    outcomes = [simulate_consumers(due, runs, count) for count in read_consumers(options.consumers or "")]
    if answer.as_json:
        answer.document({"jobs": len(rows), "outcomes": [dataclasses.asdict(one) for one in outcomes]})
        return
    answer.table(
        [dataclasses.asdict(one) for one in outcomes],
        {
            "consumers ": [str(one.consumers) for one in outcomes],
            "late p50 ": [span(one.p50_ms) for one in outcomes],
            "late p95 ": [span(one.p95_ms) for one in outcomes],
            "late p99 ": [span(one.p99_ms) for one in outcomes],
            "worst ": [span(one.worst_ms) for one in outcomes],
            "busy ": [f"{one.busy:.0%}" for one in outcomes],
        },
    )


def read_consumers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part) <= 100_000 for part in parts):
        raise InvalidRequest(f"--consumers must be whole numbers from 1 with commas between them, got {text!r}")
    return [int(part) for part in parts]


def _drive(answer: Answer, arrived: "DataFrame", options: ReplayOptions, target: Target, *, total: int) -> None:
    from duetime.spark.replay.drive import drive, percentile

    prefix = f"replay-{uuid.uuid4().hex[:12]}"
    with (
        target.connect(new=True) as client,
        show_progress("replay", as_json=target.json, total=total, unit="jobs") as progress,
    ):
        queue = client.queue(options.to or "")
        done = drive(
            _read(arrived, with_bodies=options.bodies),
            queue,
            speed=options.speed,
            prefix=prefix,
            on_progress=progress.advance_to,
        )
    sums: dict[str, Any] = {
        "queue": options.to,
        "prefix": prefix,
        "pushed": done.pushed,
        "seconds": round(done.seconds, 3),
        "behind_p99_ms": round(percentile(done.lags_ms, 0.99), 1),
        "call_p50_ms": round(percentile(done.calls_ms, 0.5), 1),
        "call_p99_ms": round(percentile(done.calls_ms, 0.99), 1),
    }
    answer.show(
        sums,
        f"{done.pushed:,} jobs went to {target.space}/{options.to} in {span(done.seconds * 1000)}; calls took "
        f"{span(sums['call_p50_ms'])} (p99 {span(sums['call_p99_ms'])}) and were {span(sums['behind_p99_ms'])} behind "
        f"the plan at p99. Their ids begin with {prefix}.",
    )


def _read(arrived: "DataFrame", *, with_bodies: bool) -> "Iterator[Arrival]":
    """Read one partition at a time: a whole window may not fit into the memory of this process."""
    from duetime.spark.replay.drive import Arrival

    chosen = arrived if with_bodies else arrived.drop("body")
    for row in chosen.toLocalIterator(prefetchPartitions=True):
        body = bytes(row.body or b"") if with_bodies else b" " * row["size"]
        yield Arrival(row.offset_ms, row.delay_ms, row.priority, row.ttl_ms, row.tries, body)

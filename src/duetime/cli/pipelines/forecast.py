"""`duetime pipeline forecast`: what falls due, and which queue will be late."""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from duetime.cli.options import Target, flag, option
from duetime.cli.output import Answer
from duetime.cli.pipelines.options import SparkOptions, local_file
from duetime.cli.progress import show_progress
from duetime.model.clock import SystemClock, duration_ms, rfc3339
from duetime.model.errors import InvalidRequest
from duetime.model.humanise import span
from duetime.model.ids import IdMaker

if TYPE_CHECKING:
    from duetime.spark.forecast.model import Error, QueueName, Trouble
    from duetime.spark.forecast.page import ForecastPage


@dataclass(frozen=True)
class ForecastOptions:
    ahead: Annotated[str, option("DURATION", "How far to look, a week at most.")] = "24h"
    late_after: Annotated[str, option("DURATION", "A queue is late from here on.")] = "1m"
    capacity: Annotated[
        list[str] | None, option("QUEUE=N", "What its consumers can do a minute; else as measured.")
    ] = None
    out: Annotated[Path, option("FILE", "The page with the charts.", parser=local_file)] = Path("duetime-forecast.html")
    backtest: Annotated[bool, flag("Also forecast the last 7 days and say how wrong it was.")] = True


def forecast(options: ForecastOptions, spark: SparkOptions, target: Target) -> None:
    """Forecast the lateness of the namespace's queues, and draw it.

    Counts what waits in the store, adds what the past weeks say about jobs not pushed yet (table `jobs`), and compares
    it with what the consumers have shown that they can do (table `stats`). Changes nothing but the lake.

    Examples:
        duetime pipeline forecast --url redis://localhost --ahead 24h
        duetime pipeline forecast --ahead 6h --capacity recall=1200 --out forecast.html
        duetime pipeline forecast --url http://127.0.0.1:7777 --late-after 5s --json
    """
    answer = target.answer
    now = SystemClock().now_ms()
    given = {(target.space, name): rate for name, rate in map(read_capacity, options.capacity or [])}
    with spark.session("forecast") as session:
        from duetime.spark.forecast import run
        from duetime.spark.forecast.model import find_trouble
        from duetime.spark.forecast.page import ForecastPage, forecast_summary, write_forecast
        from duetime.spark.forecast.run import pending_loads
        from duetime.spark.lake.lake import Lake

        window = run.window_for(now, duration_ms(options.ahead))
        with target.connect() as client, show_progress("waiting", as_json=target.json, unit="queues") as progress:
            pending = pending_loads(
                client, window.edges, on_progress=lambda done, total: progress.advance_to(done, total=total)
            )
        lake = Lake(session, spark.lake_folder)
        jobs = lake.jobs.read()
        jobs = jobs.where(jobs["namespace"] == target.space)
        with show_progress("history", as_json=target.json) as progress, progress.follow(session):
            queues = run.forecast(jobs, pending, run.find_capacities(lake.stats.read(), given), window)
            error = run.backtest(jobs, now) if options.backtest else None
            season = run.find_season(jobs, now)
        if not queues:
            raise InvalidRequest(
                f"the namespace {target.space} has no queues in the store and none in {spark.lake_folder}"
            )
        late_ms = duration_ms(options.late_after)
        troubles = [one for queue in queues for one in find_trouble(queue, late_ms)]
        words = f"the last {season.count} {season.word}" if season else ""
        page = ForecastPage(queues, troubles, late_ms, now, words, error)
        summary = msgspec.json.format(msgspec.json.encode(forecast_summary(page)))
        lake.files.create(f"{lake.folder}/forecast/{IdMaker().make()}/summary.json", summary)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    aside = options.out.with_name(f".{options.out.name}.{os.getpid()}")
    aside.write_text(write_forecast(page), encoding="utf-8")
    os.replace(aside, options.out)
    _show(answer, page, options.out)


def read_capacity(text: str) -> tuple[str, float]:
    name, equals, rate = text.rpartition("=")
    try:
        value = float(rate)
    except ValueError:
        value = 0.0
    if not equals or not name or not 0 < value < float("inf"):
        raise InvalidRequest(f"--capacity must be QUEUE=JOBS_PER_MINUTE, such as recall=1200, got {text!r}")
    return name, value


def _show(answer: Answer, page: "ForecastPage", path: Path) -> None:
    if answer.as_json:
        answer.document(_document(page, path))
        return
    for one in sorted(page.troubles, key=lambda one: one.start_at):
        answer.console.print(_sentence(one.name, one))
    if not page.troubles:
        answer.console.print(f"No queue is expected to be more than {span(page.target_ms)} late.")
    unknown = [one.title for one in page.queues if one.capacity is None and one.load > 0]
    if unknown:
        answer.console.print(
            f"Nothing is known about the capacity of {', '.join(unknown[:5])}: say it with --capacity QUEUE=N."
        )
    answer.console.print(_trust(page.error))
    answer.console.print(f"{path} has the charts.")


def _sentence(name: "QueueName", one: "Trouble") -> str:
    until = f"until {rfc3339(one.end_at)}" if one.end_at else "until after the end of this forecast"
    return (
        f"{'/'.join(name)} will be late from {rfc3339(one.start_at)} {until}, "
        f"by up to {span(one.worst_ms)} at {rfc3339(one.worst_at)}; {one.jobs:,.0f} jobs are affected."
    )


def _trust(error: "Error | None") -> str:
    if error is None or error.wape is None:
        return "There is too little history for a back-test (it needs a week and a day)."
    return (
        f"Back-test over {error.origins} days: {error.wape:.1%} of the load was missed "
        f"({error.pending_only:.1%} by counting waiting jobs alone)."
    )


def _document(page: "ForecastPage", path: Path) -> dict[str, Any]:
    return {
        "file": str(path),
        "late_after_ms": page.target_ms,
        "late": [
            {"namespace": one.name[0], "queue": one.name[1]}
            | {key: value for key, value in dataclasses.asdict(one).items() if key != "name"}
            for one in page.troubles
        ],
        "queues": [
            {
                "namespace": one.name[0],
                "queue": one.name[1],
                "capacity_per_minute": one.capacity.per_minute if one.capacity else None,
                "capacity_is_floor": one.capacity.is_floor if one.capacity else None,
                "worst_late_ms": one.worst.late_ms,
                "steps": [
                    {"at": step.at, "pending": step.pending, "expected": step.expected, "late_ms": step.late_ms}
                    for step in one.steps
                ],
            }
            for one in page.queues
        ],
        "backtest": dataclasses.asdict(page.error) if page.error else None,
    }

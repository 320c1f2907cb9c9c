"""`duetime pipeline lifecycle`: one row per job."""

from duetime.cli.options import AnswerForm, takes_options
from duetime.cli.pipelines.options import SparkOptions
from duetime.cli.progress import show_progress


@takes_options
def lifecycle(spark: SparkOptions, form: AnswerForm) -> None:
    """Update the table `jobs` from the table `events`.

    Only the days of jobs that have new events are written again. Run `ingest` first.

    Examples:
        duetime pipeline lifecycle --lake /srv/lake
        duetime pipeline lifecycle --lake hdfs:///duetime --json
    """
    from duetime.spark.lifecycle.run import find_done, run_lifecycle

    answer = form.answer
    if spark.remote or (done := find_done(spark.lake_folder)) is None:
        with spark.session("lifecycle") as session:
            from duetime.spark.lake.lake import Lake

            lake = Lake(session, spark.lake_folder)
            with show_progress("lifecycle", as_json=form.json) as progress, progress.follow(session):
                done = run_lifecycle(lake)
    text = f"{done.jobs:,} jobs of {done.days:,} days were brought up to date." if done.days else "Nothing is new."
    answer.show(
        {"days": done.days, "jobs": done.jobs, "events_version": done.events_version, "version": done.version}, text
    )

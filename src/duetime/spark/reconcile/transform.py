"""The plan of a reconcile: one row per job that the store has lost, or that is to be adopted.

A job that was accepted, has not ended and is not in the store is pushed again under its old born, with an attempt past
the highest on record, so that no lease from before the loss is ever valid again, and with what is left of its tries and
its time. One that is past its expires_at is closed as expired. Of several jobs with the same id only the last one can
have lived on; the others are closed. Jobs are compared by their full key. DataFrame -> DataFrame.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from duetime.job import Priority
from duetime.spark.audit import transform as audit
from duetime.spark.audit.transform import LOST, UNANSWERED, Scanned
from duetime.spark.lifecycle.states import BEGINS
from duetime.spark.schemas import KEY

PUSH, EXPIRE, SUPERSEDE, ADOPT = "push", "expire", "supersede", "adopt"

PLAN = (
    *("action", *KEY, "batch", "due_at", "expires_at", "attempt", "tries", "priority"),
    *("body", "attributes"),
)


def plan(jobs: DataFrame, events: DataFrame, scanned: Scanned) -> DataFrame:
    """JOBS and EVENTS -> PLAN for every job that the store should have and has not."""
    settled = F.col("last_at") < scanned.began_at - scanned.grace_ms
    overdue = (F.col("expires_at") > 0) & (F.col("expires_at") < scanned.began_at - scanned.grace_ms)
    placed = audit.places(jobs, scanned).where(F.col("outcome").isin(LOST, "expired")).select(*KEY, "outcome")
    in_scope = F.lit(True) if scanned.pool is None else F.col("pool") == scanned.pool
    missing = (
        jobs.where("ends = 0")
        .drop("outcome")
        .join(placed, on=list(KEY), how="inner")
        .where(settled & in_scope & ((F.col("outcome") == LOST) | overdue))
    )
    newest = F.max("born").over(Window.partitionBy(*KEY[:-1]))
    bodies = events.transform(_bodies_of, missing)
    return (
        missing.join(bodies, on=list(KEY), how="left")
        .withColumns(
            {
                "action": F.when(F.col("born") < newest, SUPERSEDE).when(overdue, EXPIRE).otherwise(PUSH),
                "due_at": F.coalesce("due_at", "born"),
                "attempt": F.when(overdue, F.col("attempt")).otherwise(F.col("attempt") + 1),
                "tries": _left_tries(),
                "priority": F.when(F.col("priority") > 0, F.col("priority")).otherwise(int(Priority.NORMAL)),
            }
        )
        .select(*PLAN)
    )


def _left_tries() -> Column:
    """0 stays unlimited. A job that has none left was dead, and gets one more delivery rather than none."""
    left = F.greatest(F.col("tries") - F.col("used"), F.lit(1))
    return F.when(F.col("tries") == 0, 0).otherwise(left)


def _bodies_of(events: DataFrame, missing: DataFrame) -> DataFrame:
    """(KEY, body, attributes) from the latest entry of each job that carries a body."""
    begins = events.where(F.col("event").isin(*(event.value for event in BEGINS)) & F.col("body").isNotNull())
    wanted = begins.join(missing.select(*KEY), on=list(KEY), how="left_semi")
    latest = F.max_by(F.struct("body", "attributes"), F.struct("attempt", "ts")).alias("latest")
    return wanted.groupBy(*KEY).agg(latest).select(*KEY, "latest.body", "latest.attributes")


def adoptable(findings: DataFrame, scanned: Scanned) -> DataFrame:
    """FINDING -> PLAN for the jobs in the store that no entry accepted."""
    held = scanned.jobs.select(*audit.STORE_KEY)
    found = findings.where(F.col("kind") == UNANSWERED).select(*KEY)
    return found.join(held, on=list(audit.STORE_KEY), how="left_semi").select(F.lit(ADOPT).alias("action"), *KEY)

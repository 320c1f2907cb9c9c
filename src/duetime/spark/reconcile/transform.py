"""The plan of a reconcile: one row per job that the store has lost, or that is to be adopted.

A job that was accepted, has not ended and is not in the store is pushed again under its old born, with an attempt past
the highest on record, so that no lease from before the loss is ever valid again, and with what is left of its tries and
its time. One that is past its expires_at is closed as expired. Of several jobs with the same id only the last one can
have lived on, whatever became of it; the others are closed. Jobs are compared by their full key.
DataFrame -> DataFrame.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duetime.model.job import Priority
from duetime.spark.audit import transform as audit
from duetime.spark.audit.transform import LOST, REPLACED, UNANSWERED, Scanned
from duetime.spark.lifecycle.states import BEGINS
from duetime.spark.schemas import KEY

PUSH, EXPIRE, SUPERSEDE, ADOPT = "push", "expire", "supersede", "adopt"

PLAN = (
    *("action", *KEY, "batch", "due_at", "expires_at", "attempt", "tries", "priority"),
    *("body", "attributes"),
)


def missing(jobs: DataFrame, placed: DataFrame, scanned: Scanned) -> DataFrame:
    """JOBS and their `places` -> those that have no end in the journal and are not in the store: `outcome` is lost,
    expired or replaced.
    """
    settled = F.col("last_at") < scanned.began_at - scanned.grace_ms
    gone = placed.where(F.col("outcome").isin(LOST, REPLACED, "expired")).select(*KEY, "outcome")
    in_scope = F.col("pool") == scanned.pool
    return (
        jobs.where("ends = 0")
        .drop("outcome")
        .join(gone, on=list(KEY), how="inner")
        .where(settled & in_scope & ((F.col("outcome") != "expired") | _overdue(scanned)))
    )


def _overdue(scanned: Scanned) -> Column:
    return (F.col("expires_at") > 0) & (F.col("expires_at") < scanned.began_at - scanned.grace_ms)


def plan(lost: DataFrame, bodies: DataFrame, scanned: Scanned) -> DataFrame:
    """What `missing` and `bodies_of` answer -> PLAN."""
    overdue = _overdue(scanned)
    return (
        lost.join(bodies, on=list(KEY), how="left")
        .withColumns(
            {
                "action": F.when(F.col("outcome") == REPLACED, SUPERSEDE).when(overdue, EXPIRE).otherwise(PUSH),
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


def bodies_of(events: DataFrame, lost: DataFrame) -> DataFrame:
    """(KEY, body, attributes) from the latest entry of each job that carries a body.

    The attributes are JSON: a column of maps, even an empty one, takes Spark as long as everything else.
    """
    begins = events.where(F.col("event").isin(*(event.value for event in BEGINS)) & F.col("body").isNotNull())
    wanted = begins.join(lost.select(*KEY), on=list(KEY), how="left_semi")
    carried = F.struct("body", F.to_json("attributes").alias("attributes"))
    latest = F.max_by(carried, F.struct("attempt", "ts")).alias("latest")
    return wanted.groupBy(*KEY).agg(latest).select(*KEY, "latest.body", "latest.attributes")


def body_days(lost: DataFrame) -> set[str]:
    """The days on which these jobs were accepted, as far as `jobs` says."""
    at = F.explode(F.array("born", "accepted_at"))
    days = lost.select(at.alias("at")).select(F.to_date(F.timestamp_millis("at")).alias("day")).distinct()
    return {str(row["day"]) for row in days.collect()}


def adoptable(findings: DataFrame, scanned: Scanned) -> DataFrame:
    """FINDING -> PLAN for the jobs in the store that no entry accepted."""
    held = scanned.jobs.select(*audit.STORE_KEY)
    found = findings.where(F.col("kind") == UNANSWERED).select(*KEY)
    return found.join(held, on=list(audit.STORE_KEY), how="left_semi").select(F.lit(ADOPT).alias("action"), *KEY)

"""The demo's table of members: some reminders fall due within a short window, most within a month.

The executors make it; the same arguments make the same table.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

DAY_MS = 86_400_000
NOTICE_MS = 3 * DAY_MS
"""A member is reminded three days before the membership ends."""
MONTH_MS = 30 * DAY_MS
SOONEST = 50
"""One member in this many is due within the window, but at most MOST_SOON."""
MOST_SOON = 20_000


@dataclass(frozen=True)
class DemoMembers:
    """`rows` members, `soon` of them due evenly over `window_ms` from `window_at`, the others in the month after."""

    rows: int
    window_at: int
    window_ms: int

    @property
    def soon(self) -> int:
        return min(max(self.rows // SOONEST, 1), MOST_SOON)


def members_table(spark: SparkSession, members: DemoMembers) -> DataFrame:
    """The columns are member_id, email, plan and expires_at (timestamp)."""
    number = F.col("id")
    soon = F.lit(members.window_at) + F.floor(number * members.window_ms / members.soon)
    later = F.lit(members.window_at + DAY_MS) + F.pmod(F.xxhash64(number), F.lit(MONTH_MS))
    due = F.when(number < members.soon, soon).otherwise(later)
    plan = F.element_at(F.array(F.lit("pro"), F.lit("free"), F.lit("team")), (number % 3 + 1).cast("int"))
    return spark.range(members.rows).select(
        number.alias("member_id"),
        F.format_string("member%d@example.org", number).alias("email"),
        plan.alias("plan"),
        F.timestamp_millis(due + NOTICE_MS).alias("expires_at"),
    )


def reminders(members: DataFrame) -> DataFrame:
    """The columns that `schedule` takes: id, due_at, body."""
    return members.select(
        F.concat(F.lit("recall-"), F.col("member_id").cast("string")).alias("id"),
        (F.col("expires_at") - F.expr("interval 3 days")).alias("due_at"),
        F.struct("member_id", "email").alias("body"),
    )

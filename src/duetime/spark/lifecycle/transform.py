"""Events -> jobs: one row per job, whatever order its events come in.

An event becomes a small *state* (`states.py`), two states of a job merge into one, and a job's row is finished
from the merged state. Files come by modification time, so the result must not depend on the order in which events
arrive: a job counts as ended only when its begin has been seen, too, and events are put in order by their attempt
first. The same merge takes new events into the rows of an earlier run. All columns of a state are numbers, which keeps
Spark's aggregation in its hash tables. DataFrame -> DataFrame on the executors.
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duetime.model.job import Event, State
from duetime.spark.lifecycle.states import (
    ACKED_AGAIN_BIT,
    ACKS_BITS,
    ADOPTED_BIT,
    ATTEMPT_BITS,
    ATTEMPTS_BITS,
    ENDS,
    GIVEN_BACKS_BITS,
    LEASED_RANK,
    MAX_ATTEMPT,
    REASONS,
    TRIES_BITS,
    event_states,
)
from duetime.spark.schemas import JOBS, KEY

DAY_MS = 86_400_000

MERGED: Mapping[str, str] = {
    "accepted_at": "min(accepted_at)",
    "priority": "max(priority)",
    "batch_hash": "max(batch_hash)",
    "first_due_at": "max_by(first_due_at, first_due_order)",
    "first_due_order": "max(first_due_order)",
    "due_at": "max_by(due_at, due_order)",
    "due_order": "max(due_order)",
    "expires_at": "max_by(expires_at, expires_order)",
    "expires_order": "max(expires_order)",
    "first_delivered_at": "min(first_delivered_at)",
    "last_delivered_at": "max(last_delivered_at)",
    "acked_at": "min(acked_at)",
    "ended_at": "min(ended_at)",
    "attempt": "max(attempt)",
    "last_at": "max(last_at)",
    "flags": "bit_or(flags)",  # ENDS and ADOPTED_BIT
    "seen": "sum(seen)",  # history, and attempts from bit 32 up
    "counted": "sum(counted)",  # accepts, acks from bit 16 up, given_backs from bit 32 up
    "end_attempt": "max(end_attempt)",
    "acked_again": "max(acked_again)",  # an order
    "dead_order": "max(dead_order)",
    "revived_order": "max(revived_order)",
    "place": "max(place)",
    "tries_rank": "max(tries_rank)",
    "reason_rank": "max(reason_rank)",
    "delivered_bits": "bit_or(delivered_bits)",
    "early_ms": "max(early_ms)",
}
"""Every column of a state and how the values of several states become one. Null means that nothing was seen."""


def job_states(jobs: DataFrame) -> DataFrame:
    """JOBS -> the states that its rows were finished from. They leave out purges, which `finish` looks for anew."""
    return jobs.withColumns(
        {
            "batch_hash": F.when(F.col("batch") != "", F.xxhash64("batch")),
            "acked_at": F.when(F.col("ends") != ACKED_AGAIN_BIT, F.col("acked_at")),
            "ended_at": F.when(F.col("ends").bitwiseAND(ADOPTED_BIT - 1) != 0, F.col("ended_at")),
            "expires_order": F.greatest("dead_order", "revived_order"),
            "flags": F.col("ends").bitwiseAND(ADOPTED_BIT - 1) + F.col("adopted") * ADOPTED_BIT,
            "seen": F.expr(f"history + shiftleft(cast(attempts as long), {ATTEMPTS_BITS})"),
            "counted": F.expr(
                f"accepts + shiftleft(acks, {ACKS_BITS}) + shiftleft(cast(given_backs as long), {GIVEN_BACKS_BITS})"
            ),
        }
    ).select(*KEY, *MERGED)


def merge(states: DataFrame) -> DataFrame:
    """Many states of a job -> one."""
    return states.groupBy(*KEY).agg(*(F.expr(how).alias(name) for name, how in MERGED.items()))


def batch_names(*tables: DataFrame) -> DataFrame:
    """(batch_hash, batch) of all batches in tables that have a column `batch`."""
    first, *others = (table.select("batch").where("batch != ''") for table in tables)
    for other in others:
        first = first.union(other)
    # One name per hash, so that a join with this can never double a job. A plain minimum would make Spark forget that
    # the names are distinct, and sort every row.
    one_name = F.array_min(F.collect_list("batch")).alias("batch")
    return first.distinct().groupBy(F.xxhash64("batch").alias("batch_hash")).agg(one_name)


def purges_by_queue(events: DataFrame) -> DataFrame:
    """EVENTS -> (pool, namespace, queue, purges): each purge of a queue, with its time and states."""
    return (
        events.where(F.col("event") == Event.PURGED)
        .groupBy("pool", "namespace", "queue")
        .agg(F.array_sort(F.collect_set(F.struct("ts", F.col("reason").alias("states")))).alias("purges"))
    )


def finish(states: DataFrame, batches: DataFrame, purges: DataFrame) -> DataFrame:
    """Merged states -> JOBS. `batches` is from `batch_names`, `purges` from `purges_by_queue`."""
    unpacked = states.withColumns(_unpacked()).transform(_acked_again)
    joined = unpacked.join(F.broadcast(batches), on="batch_hash", how="left")
    joined = joined.join(F.broadcast(purges), on=["pool", "namespace", "queue"], how="left")
    begun, ended = F.col("accepted_at").isNotNull(), F.col("ends") != 0
    end = F.when(F.col("ends") == ACKED_AGAIN_BIT, Event.ACKED.value)
    for event, bit in reversed(list(ENDS.items())):
        end = F.when(F.col("ends").bitwiseAND(bit) != 0, event.value).otherwise(end)
    reset_attempt = F.coalesce(F.shiftright("revived_order", ATTEMPT_BITS).cast("int"), F.lit(0))
    used = F.col("attempt") - reset_attempt - F.col("given_backs")
    return (
        joined.withColumn("place_name", place_name())
        .withColumn("purged_at", F.when(~ended, F.expr(PURGED_AT)))
        .withColumns(
            {
                "outcome": F.when(~begun, "")
                .when(ended, end)
                .when(F.col("purged_at").isNotNull(), Event.PURGED.value)
                .otherwise(F.col("place_name")),
                "reason": F.element_at(
                    F.array(*map(F.lit, REASONS)), (F.coalesce("reason_rank", F.lit(0)) % 8 + 1).cast("int")
                ),
                "batch": F.coalesce("batch", F.lit("")),
                "expires_at": F.coalesce("expires_at", F.lit(0).cast("long")),
                "ended_at": F.coalesce("ended_at", "purged_at"),
                "used": F.greatest(used, F.lit(0)),
                "tries": (F.coalesce("tries_rank", F.lit(0)) % (1 << TRIES_BITS)).cast("int"),
                "lateness_ms": F.col("first_delivered_at") - F.col("first_due_at"),
                "run_ms": F.col("acked_at") - F.col("last_delivered_at"),
                "date": F.expr(f"date_from_unix_date(cast(born div {DAY_MS} as int))"),
            }
        )
        .select(*JOBS.names)
    )


def _acked_again(states: DataFrame) -> DataFrame:
    """An ack that found the job gone is its end if there is no other, and nothing happened at a later attempt."""
    attempt = F.least("attempt", F.lit(MAX_ATTEMPT))
    ends = (F.col("ends") == 0) & (F.shiftright("acked_again", ATTEMPT_BITS) >= attempt)
    at = F.when(ends, acked_again_at())
    return states.withColumns(
        {
            "ends": F.when(ends, ACKED_AGAIN_BIT).otherwise(F.col("ends")),
            "acked_at": F.coalesce("acked_at", at),
            "ended_at": F.coalesce("ended_at", at),
        }
    )


def acked_again_at() -> Column:
    """When an ack last found the job gone."""
    return F.col("acked_again").bitwiseAND((1 << ATTEMPT_BITS) - 1)


def _unpacked() -> dict[str, Column]:
    parts = {
        "ends": f"flags & {ADOPTED_BIT - 1}",
        "adopted": f"flags div {ADOPTED_BIT}",
        "history": f"seen & {(1 << ATTEMPTS_BITS - 1) - 1}L",
        "attempts": f"shiftright(seen, {ATTEMPTS_BITS})",
        "accepts": f"counted & {(1 << ACKS_BITS) - 1}",
        "acks": f"shiftright(counted, {ACKS_BITS}) & {(1 << GIVEN_BACKS_BITS - ACKS_BITS) - 1}",
        "given_backs": f"shiftright(counted, {GIVEN_BACKS_BITS})",
    }
    return {name: F.expr(part).cast("int") for name, part in parts.items()}


PURGED_AT = """
    array_min(transform(
        filter(purges, purge ->
            last_at <= purge.ts and born <= purge.ts
            and contains(concat(',', purge.states, ','), concat(',',
                if(place_name != 'waiting', place_name, if(coalesce(due_at, 0) > purge.ts, 'delayed', 'ready')), ','))),
        purge -> purge.ts))
"""
"""When the job was purged: it has no entry after that purge, and was in one of the states that were purged."""


def place_name() -> Column:
    """Where a job that has not ended is, as far as the journal knows: waiting, leased or dead."""
    return (
        F.when(F.col("dead_order") > F.coalesce("revived_order", F.lit(0)), State.DEAD.value)
        .when(F.col("place") % 16 == LEASED_RANK, State.LEASED.value)
        .otherwise("waiting")
    )


def lifecycle(events: DataFrame) -> DataFrame:
    """EVENTS -> JOBS in one go, from all events."""
    return finish(merge(event_states(events)), batch_names(events), purges_by_queue(events))

"""Events -> jobs: one row per job, whatever order its events come in.

An event becomes a small *state*, two states of a job merge into one, and a job's row is finished from the merged state.
Merging is commutative and blind to the order of arrival: files come by modification time, nodes have their own clocks;
so a job is closed only when both its begin and its end have been seen, and what comes first within a job is decided by
(attempt, kind). The same merge takes new events into the rows of an earlier run. All columns of a state are numbers,
which keeps Spark's aggregation in its hash tables. DataFrame -> DataFrame on the executors.
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duetime.job import Event, Reason, State
from duetime.spark.schemas import JOBS, KEY

BEGINS = (Event.ACCEPTED, Event.ADOPTED, Event.REPLACED)
ENDS: Mapping[Event, int] = {
    Event.ACKED: 1,
    Event.CANCELLED: 2,
    Event.DELETED: 4,
    Event.EXPIRED: 8,
    Event.REPLACED: 16,
}
"""The bit of each end in `ends`. Purged is no bit: one entry ends many jobs, and `finish` finds which."""
WAITS_AGAIN = (Event.RELEASED, Event.LEASE_EXPIRED, Event.GIVEN_BACK)
REASONS = ("", Reason.TRIES, Reason.KILLED, Reason.EXPIRED, "running", "other")
UNFENCED = "unfenced"
"""The reason of an ack by id alone: such acks may be repeated."""
NOT_ABOUT_JOBS = (Event.HEARTBEAT, Event.CLOSED, Event.PURGED)

MAX_ATTEMPT = 1 << 19
ATTEMPT_STEP = 1 << 43
"""An order is attempt * step + ts: a long that compares like (attempt, ts)."""
BITS = 63
LEASED_RANK = 2

MERGED: Mapping[str, str] = {
    "accepted_at": "min(accepted_at)",
    "adopted": "max(adopted)",
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
    "attempts": "cast(sum(attempts) as int)",
    "attempt": "max(attempt)",
    "history": "cast(sum(history) as int)",
    "last_at": "max(last_at)",
    "accepts": "cast(sum(accepts) as int)",
    "acks": "cast(sum(acks) as int)",
    "ends": "bit_or(ends)",
    "end_attempt": "max(end_attempt)",
    "dead_order": "max(dead_order)",
    "revived_order": "max(revived_order)",
    "given_backs": "cast(sum(given_backs) as int)",
    "reset_attempt": "max(reset_attempt)",
    "place": "max(place)",
    "tries_rank": "max(tries_rank)",
    "reason_rank": "max(reason_rank)",
    "delivered_bits": "bit_or(delivered_bits)",
    "early_ms": "max(early_ms)",
}
"""Every column of a state and how two of them become one. Null means nothing seen."""


def event_states(events: DataFrame) -> DataFrame:
    """EVENTS -> a state per event; an entry that names what it took the place of is an event of that one, too."""
    about_jobs = events.where(~F.col("event").isin(*NOT_ABOUT_JOBS) & (F.col("id") != ""))
    return about_jobs.transform(_own_states).unionByName(about_jobs.where("was > 0").transform(_ended_states))


def _own_states(events: DataFrame) -> DataFrame:
    begins, order = _is(*BEGINS), _order()
    delivered, acked, respawned = _is(Event.DELIVERED), _is(Event.ACKED), _is(Event.RESPAWNED)
    waits_again = _is(*WAITS_AGAIN)
    ended = _is(*(event for event in ENDS if event is not Event.REPLACED))
    due = (begins | waits_again | respawned | _is(Event.RESCHEDULED)) & (F.col("due_at") > 0)
    first_due = due & (F.col("attempt") == 0)
    expires = begins | respawned | _is(Event.DEAD)
    lasts = (F.col("ttl") > 0) & ~_is(Event.DEAD)
    tries = begins | (respawned & (F.col("tries") > 0))
    attempt, ts = F.least("attempt", F.lit(MAX_ATTEMPT)).cast("long"), F.col("ts")
    states: dict[str, Column] = {
        "accepted_at": F.when(begins, ts),
        "adopted": _one_if(_is(Event.ADOPTED)),
        "priority": F.when(begins, F.col("priority")).otherwise(0),
        "batch_hash": F.when(F.col("batch") != "", F.xxhash64("batch")),
        "first_due_at": F.when(first_due, F.col("due_at")),
        "first_due_order": F.when(first_due, ts),
        "due_at": F.when(due, F.col("due_at")),
        "due_order": F.when(due, order),
        "expires_at": F.when(expires, F.when(lasts, ts + F.col("ttl")).otherwise(0)),
        "expires_order": F.when(expires, order),
        "first_delivered_at": F.when(delivered, ts),
        "last_delivered_at": F.when(delivered, ts),
        "acked_at": F.when(acked, ts),
        "ended_at": F.when(ended, ts),
        "attempts": _one_if(delivered),
        "attempt": F.col("attempt"),
        "history": F.lit(1),
        "last_at": ts,
        "accepts": _one_if(_is(Event.ACCEPTED, Event.REPLACED) & (F.col("attempt") == 0)),
        "acks": _one_if(acked & (F.col("reason") != UNFENCED)),
        "ends": _end_bit(),
        "end_attempt": F.when(acked | _is(Event.CANCELLED, Event.DELETED), F.col("attempt")),
        "dead_order": F.when(_is(Event.DEAD), order),
        "revived_order": F.when(begins | respawned, order),
        "given_backs": _one_if(_is(Event.GIVEN_BACK)),
        "reset_attempt": F.when(begins | respawned, F.col("attempt")).otherwise(0),
        "place": F.when(begins, attempt * 16 + 1)
        .when(delivered, attempt * 16 + LEASED_RANK)
        .when(waits_again, attempt * 16 + 3)
        .when(respawned | _is(Event.RESCHEDULED), attempt * 16 + 4),
        "tries_rank": F.when(tries, attempt * (1 << 17) + F.col("tries")),
        "reason_rank": F.when(_is(Event.DEAD, Event.CANCELLED), attempt * 8 + _reason_code()),
        "delivered_bits": F.when(delivered, F.expr(f"shiftleft(1L, attempt % {BITS})")),
        "early_ms": F.when(delivered & (F.col("due_at") > 0), F.col("due_at") - ts),
    }
    return events.select(*KEY, *(column.alias(name) for name, column in states.items()))


def _ended_states(events: DataFrame) -> DataFrame:
    """What an entry says about the incarnation `was`: replaced by it, or found expired."""
    bit = F.when(_is(Event.REPLACED), ENDS[Event.REPLACED]).otherwise(ENDS[Event.EXPIRED])
    known: dict[str, Column] = {
        "ended_at": F.col("ts"),
        "last_at": F.col("ts"),
        "ends": bit,
        "history": F.lit(1),
    }
    zeros = ("adopted", "priority", "attempts", "attempt", "accepts", "acks", "given_backs")
    zero = dict.fromkeys((*zeros, "reset_attempt"), F.lit(0))
    types = {field.name: field.dataType for field in JOBS.fields}
    columns = [{**zero, **known}.get(name, F.lit(None)).cast(types.get(name, "long")).alias(name) for name in MERGED]
    return events.withColumn("born", F.col("was")).select(*KEY, *columns)


def job_states(jobs: DataFrame) -> DataFrame:
    """JOBS -> the states that its rows were finished from. A purge is no part of them: it is looked for anew."""
    return jobs.withColumns(
        {
            "batch_hash": F.when(F.col("batch") != "", F.xxhash64("batch")),
            "ended_at": F.when(F.col("ends") != 0, F.col("ended_at")),
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
    # One name per hash, so that a join with this can never double a job.
    return first.distinct().groupBy(F.xxhash64("batch").alias("batch_hash")).agg(F.min("batch").alias("batch"))


def purges_by_queue(events: DataFrame) -> DataFrame:
    """EVENTS -> (pool, namespace, queue, purges): each purge of a queue, with its time and states."""
    return (
        events.where(F.col("event") == Event.PURGED)
        .groupBy("pool", "namespace", "queue")
        .agg(F.array_sort(F.collect_set(F.struct("ts", F.col("reason").alias("states")))).alias("purges"))
    )


def finish(states: DataFrame, batches: DataFrame, purges: DataFrame) -> DataFrame:
    """Merged states -> JOBS. `batches` is from `batch_names`, `purges` from `purges_by_queue`."""
    joined = states.join(batches, on="batch_hash", how="left").join(
        F.broadcast(purges), on=["pool", "namespace", "queue"], how="left"
    )
    begun, ended = F.col("accepted_at").isNotNull(), F.col("ends") != 0
    purged_at = F.expr(PURGED_AT)
    end = F.lit(None).cast("string")
    for event, bit in reversed(list(ENDS.items())):
        end = F.when(F.col("ends").bitwiseAND(bit) != 0, event.value).otherwise(end)
    used = F.col("attempt") - F.col("reset_attempt") - F.col("given_backs")
    return (
        joined.withColumn("place_name", place_name())
        .withColumn("purged_at", F.when(~ended, purged_at))
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
                "tries": (F.coalesce("tries_rank", F.lit(0)) % (1 << 17)).cast("int"),
                "lateness_ms": F.col("first_delivered_at") - F.col("first_due_at"),
                "run_ms": F.col("acked_at") - F.col("last_delivered_at"),
                "date": F.to_date(F.timestamp_millis("born")),
            }
        )
        .select(*JOBS.names)
    )


PURGED_AT = """
    array_min(transform(
        filter(purges, purge ->
            last_at <= purge.ts and born <= purge.ts
            and contains(concat(',', purge.states, ','), concat(',',
                if(place_name != 'waiting', place_name, if(coalesce(due_at, 0) > purge.ts, 'delayed', 'ready')), ','))),
        purge -> purge.ts))
"""
"""The purge that removed the job: it had no entry after that, and was in one of the states that were purged."""


def place_name() -> Column:
    """Where a job that has not ended is, as far as the journal knows: waiting, leased or dead."""
    return (
        F.when(F.col("dead_order") > F.coalesce("revived_order", F.lit(0)), State.DEAD.value)
        .when(F.col("place") % 16 == LEASED_RANK, State.LEASED.value)
        .otherwise("waiting")
    )


def lifecycle(events: DataFrame) -> DataFrame:
    """EVENTS -> JOBS, whole."""
    return finish(merge(event_states(events)), batch_names(events), purges_by_queue(events))


def _is(*events: Event) -> Column:
    return F.col("event").isin(*(event.value for event in events))


def _one_if(condition: Column) -> Column:
    return F.when(condition, 1).otherwise(0)


def _order() -> Column:
    return F.least("attempt", F.lit(MAX_ATTEMPT)).cast("long") * ATTEMPT_STEP + F.col("ts")


def _end_bit() -> Column:
    bit = F.lit(0)
    for event, value in ENDS.items():
        if event is not Event.REPLACED:  # the entry is about the new job, which begins
            bit = F.when(F.col("event") == event.value, value).otherwise(bit)
    return bit


def _reason_code() -> Column:
    code = F.lit(len(REASONS) - 1)
    for number, reason in enumerate(REASONS[:-1]):
        code = F.when(F.col("reason") == str(reason), number).otherwise(code)
    return code

"""Events -> states: what one event says about its job, in numbers that merge.

An event becomes a narrow *step*, its words turned into numbers. Steps are shuffled to where their job is put together,
and become *states* there. DataFrame -> DataFrame on the executors.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duetime.journal.events import REPEATED
from duetime.model.job import Event, Reason
from duetime.spark.schemas import KEY

BEGINS = (Event.ACCEPTED, Event.ADOPTED, Event.REPLACED)
ENDS: Mapping[Event, int] = {
    Event.ACKED: 1,
    Event.CANCELLED: 2,
    Event.DELETED: 4,
    Event.EXPIRED: 8,
    Event.REPLACED: 16,
}
"""The bit of each end in `ends`. Purged has none: one entry ends many jobs, and `finish` finds out which."""
WAITS_AGAIN = (Event.RELEASED, Event.LEASE_EXPIRED, Event.GIVEN_BACK)
REASONS = ("", Reason.TRIES, Reason.KILLED, Reason.EXPIRED, "running", "other")
UNFENCED = "unfenced"
"""The reason of an ack by id alone: such acks may be repeated."""
NOT_ABOUT_JOBS = (Event.HEARTBEAT, Event.CLOSED, Event.PURGED)

MAX_ATTEMPT = 1 << 19
ATTEMPT_BITS = 43
"""An order is attempt * 2^43 + ts: a long that compares like (attempt, ts)."""
TRIES_BITS = 17
BITS = 63
LEASED_RANK = 2

KINDS: Mapping[Event, int] = {
    event: 1 << place
    for place, event in enumerate(
        sorted(
            (event for event in Event if event not in NOT_ABOUT_JOBS),
            key=lambda event: event not in (Event.ACCEPTED, Event.DELIVERED, Event.ACKED),
        )
    )
}
"""The bit of each event in a step's `kind`. The most frequent events come first, because words are compared in turn."""
REPEATED_CODE, UNFENCED_CODE = 6, 7
ADOPTED_BIT = 32
"""The bit of an adoption, above the bits of ENDS."""
ACKED_AGAIN_BIT = 64
"""In `ends` of a job's row: nothing ended it but an ack that found it gone."""
REASON_CODES: Mapping[str, int] = {
    **{str(reason): code for code, reason in enumerate(REASONS)},
    REPEATED: REPEATED_CODE,
    UNFENCED: UNFENCED_CODE,
}
OTHER_REASON = len(REASONS) - 1
WAS_REPLACED, WAS_EXPIRED = 1 << len(KINDS), 2 << len(KINDS)
"""What an entry says about the incarnation that it took the place of."""
FLAGS: Mapping[int, int] = {
    **{KINDS[event]: bit for event, bit in ENDS.items() if event is not Event.REPLACED},  # which begins a job
    WAS_REPLACED: ENDS[Event.REPLACED],
    WAS_EXPIRED: ENDS[Event.EXPIRED],
    KINDS[Event.ADOPTED]: ADOPTED_BIT,
}
"""A state's `flags` by the kind of its step."""
ATTEMPTS_BITS = 32
ACKS_BITS, GIVEN_BACKS_BITS = 16, 32


def event_states(events: DataFrame) -> DataFrame:
    """EVENTS -> a state per event; an entry that took the place of another incarnation makes a state of that one, too.

    The states come partitioned by KEY: a step is half as wide as a state, so it is the steps that are shuffled.
    """
    about_jobs = events.where((F.col("id") != "") & ~F.col("event").isin(*NOT_ABOUT_JOBS))
    steps = about_jobs.transform(_own_steps).unionByName(about_jobs.where("was > 0").transform(_ended_steps))
    return steps.repartition(*KEY).transform(_states)


def _own_steps(events: DataFrame) -> DataFrame:
    return events.select(
        *KEY,
        *("ts", "attempt", "due_at", "priority", "ttl", "tries"),
        _chosen("event", KINDS, 0).alias("kind"),
        _chosen("reason", REASON_CODES, OTHER_REASON).alias("reason_code"),
        F.when(F.col("batch") != "", F.xxhash64("batch")).alias("batch_hash"),
    )


def _ended_steps(events: DataFrame) -> DataFrame:
    """What an entry says about the incarnation `was`: it was replaced, or found expired."""
    none = {name: F.lit(0).alias(name) for name in ("attempt", "priority", "tries", "reason_code")}
    return events.select(
        *KEY[:-1],
        F.col("was").alias("born"),
        "ts",
        *none.values(),
        *(F.lit(0).cast("long").alias(name) for name in ("due_at", "ttl")),
        F.when(F.col("event") == Event.REPLACED, WAS_REPLACED).otherwise(WAS_EXPIRED).alias("kind"),
        F.lit(None).cast("long").alias("batch_hash"),
    )


def _states(steps: DataFrame) -> DataFrame:
    begins, delivered, acked, dead = _is(*BEGINS), _is(Event.DELIVERED), _is(Event.ACKED), _is(Event.DEAD)
    revives, waits_again = _is(*BEGINS, Event.RESPAWNED), _is(*WAITS_AGAIN)
    due = _is(*BEGINS, *WAITS_AGAIN, Event.RESPAWNED, Event.RESCHEDULED) & (F.col("due_at") > 0)
    first_due = due & (F.col("attempt") == 0)
    promised = _is(Event.ACCEPTED, Event.REPLACED) & (F.col("attempt") == 0) & (F.col("reason_code") != REPEATED_CODE)
    tries = begins | (_is(Event.RESPAWNED) & (F.col("tries") > 0))
    # A repeated entry is about the past, and must never win over the original entry.
    again = F.col("reason_code") == REPEATED_CODE
    acked_again = acked & again
    ts, order, rank = F.when(again, F.col("born")).otherwise(F.col("ts")), F.col("order"), F.col("rank")
    states: dict[str, Column] = {
        "accepted_at": F.when(begins, ts),
        "priority": F.when(begins, F.col("priority")).otherwise(0),
        "batch_hash": F.col("batch_hash"),
        "first_due_at": F.when(first_due, F.col("due_at")),
        "first_due_order": F.when(first_due, F.when(again, 0).otherwise(ts)),
        "due_at": F.when(due, F.col("due_at")),
        "due_order": F.when(due, order),
        "expires_at": F.when(revives & (F.col("ttl") > 0), ts + F.col("ttl")).otherwise(0),
        "expires_order": F.when(revives | dead, order),
        "first_delivered_at": F.when(delivered, ts),
        "last_delivered_at": F.when(delivered, ts),
        "acked_at": F.when(acked & ~again, ts),
        "ended_at": F.when(F.col("flags").bitwiseAND(ADOPTED_BIT - 1) != 0, ts),
        "attempt": F.col("attempt"),
        "last_at": ts,
        "flags": F.col("flags"),
        "seen": F.when(delivered, 1 + (1 << ATTEMPTS_BITS)).otherwise(F.when(acked_again, 0).otherwise(1).cast("long")),
        "counted": F.when(promised, F.lit(1).cast("long"))
        .when(acked & (F.col("reason_code") < REPEATED_CODE), 1 << ACKS_BITS)
        .when(_is(Event.GIVEN_BACK), 1 << GIVEN_BACKS_BITS)
        .otherwise(0),
        "end_attempt": F.when(_is(Event.ACKED, Event.CANCELLED, Event.DELETED) & ~again, F.col("attempt")),
        "acked_again": F.when(acked_again, F.shiftleft("rank", ATTEMPT_BITS) + F.col("ts")),
        "dead_order": F.when(dead, order),
        "revived_order": F.when(revives, order),
        "place": F.when(begins, rank * 16 + 1)
        .when(delivered, rank * 16 + LEASED_RANK)
        .when(waits_again, rank * 16 + 3)
        .when(_is(Event.RESPAWNED, Event.RESCHEDULED), rank * 16 + 4),
        "tries_rank": F.when(tries, rank * (1 << TRIES_BITS) + F.col("tries")),
        "reason_rank": F.when(_is(Event.DEAD, Event.CANCELLED), rank * 8 + F.col("reason_code")),
        "delivered_bits": F.when(delivered, F.expr(f"shiftleft(1L, attempt % {BITS})")),
        "early_ms": F.when(delivered & (F.col("due_at") > 0), F.col("due_at") - ts),
    }
    ranked = steps.withColumns(
        {
            "rank": F.least("attempt", F.lit(MAX_ATTEMPT)).cast("long"),
            "flags": F.when(acked_again, 0).otherwise(_chosen("kind", FLAGS, 0)),
        }
    ).withColumn("order", F.when(again, 0).otherwise(F.shiftleft("rank", ATTEMPT_BITS) + F.col("ts")))
    return ranked.select(*KEY, *(column.alias(name) for name, column in states.items()))


def _is(*events: Event) -> Column:
    """True for steps of these events."""
    return F.col("kind").bitwiseAND(sum(KINDS[event] for event in events)) != 0


def _chosen(column: str, choices: Mapping[Any, int], otherwise: int) -> Column:
    """The number that `choices` has for the word in the column."""
    chosen: Column | None = None
    for word, number in choices.items():
        chosen = (F.when if chosen is None else chosen.when)(F.col(column) == word, number)
    assert chosen is not None
    return chosen.otherwise(otherwise)

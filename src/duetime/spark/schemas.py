"""The tables of the lake: the names and types of their columns, which are never inferred.

A job's key in every table is (pool, namespace, queue, id, born); a namespace lives in one pool, so `KEY` leads with it.
Times are epoch milliseconds and durations milliseconds, as everywhere in Duetime; `date` is the UTC day that a table is
partitioned by. Executors and driver use these constants alike.
"""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

KEY = ("pool", "namespace", "queue", "id", "born")

_TEXT = StringType()
_LONG = LongType()
_INT = IntegerType()
_DOUBLE = DoubleType()
_BYTES = BinaryType()
_DAY = DateType()


def _table(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


JOIN = _table(name=_TEXT, of=_INT, then=_TEXT, life_ms=_LONG, seen=_INT)
"""`stores.finishes.SeenJoin`; `seen` is null for a finish that found its job gone."""

ENTRY = _table(
    ts=_LONG,
    wrote_at=_LONG,
    node=_TEXT,
    seq=_LONG,
    event=_TEXT,
    pool=_TEXT,
    namespace=_TEXT,
    queue=_TEXT,
    id=_TEXT,
    born=_LONG,
    attempt=_INT,
    due_at=_LONG,
    priority=_INT,
    ttl=_LONG,
    tries=_INT,
    reason=_TEXT,
    body=_TEXT,
    body_b64=_TEXT,
    attributes=MapType(_TEXT, _TEXT),
    batch=_TEXT,
    was=_LONG,
    status=_INT,
    ms=_LONG,
    join=JOIN,
)
"""One line of the journal as it is written: `journal.events.Entry`. What is absent there is null here."""

EVENTS = _table(
    ts=_LONG,  # the store's time of the event
    wrote_at=_LONG,  # the node's time when it wrote the entry
    node=_TEXT,
    seq=_LONG,  # (node, seq) is unique in the table
    event=_TEXT,  # a word of `duetime.model.job.Event`
    pool=_TEXT,
    namespace=_TEXT,
    queue=_TEXT,
    id=_TEXT,
    born=_LONG,
    attempt=_INT,
    due_at=_LONG,  # 0: none; the same for priority, ttl, tries, was, status and ms
    priority=_INT,
    ttl=_LONG,
    tries=_INT,
    reason=_TEXT,  # "": none; the same for batch
    body=_BYTES,  # null except for accepted, adopted and replaced
    attributes=MapType(_TEXT, _TEXT),  # null where there are none
    batch=_TEXT,
    was=_LONG,
    status=_INT,
    ms=_LONG,
    join=JOIN,  # null except for acked jobs of a task group
    date=_DAY,  # partition: the day of ts, or of wrote_at if ts is 0
)
"""`events`: every entry of the journal once, typed. Numbers and words are never null; absent is 0 or ""."""

JOBS = _table(
    pool=_TEXT,
    namespace=_TEXT,
    queue=_TEXT,
    id=_TEXT,
    born=_LONG,
    outcome=_TEXT,  # waiting, leased, dead, acked, cancelled, expired, replaced, purged, deleted; "": not begun yet
    reason=_TEXT,  # why it is dead, or how it was cancelled; "": none
    batch=_TEXT,  # "": none
    priority=_INT,
    accepted_at=_LONG,  # null: its begin (accepted, adopted, replaced) has not been seen
    adopted=_INT,  # 1: found in the store by reconcile; with accepts = 0 no entry ever accepted it
    due_at=_LONG,  # as it stands after every reschedule and release
    first_due_at=_LONG,  # as it stood before the first delivery
    expires_at=_LONG,  # 0: never
    first_delivered_at=_LONG,  # null: never delivered
    last_delivered_at=_LONG,
    acked_at=_LONG,
    ended_at=_LONG,  # null while it lives
    attempts=_INT,  # deliveries seen
    attempt=_INT,  # the highest attempt seen
    used=_INT,  # deliveries that count against tries
    tries=_INT,  # 0: unlimited
    lateness_ms=_LONG,  # first delivery - first_due_at
    run_ms=_LONG,  # ack - last delivery
    history=_INT,  # entries about this job
    last_at=_LONG,  # ts of its latest entry
    # What a later run needs to go on from here (see lifecycle/transform.py); other readers do not need it.
    accepts=_INT,  # times that it began anew; putting a lost job back does not count
    acks=_INT,
    ends=_INT,  # a bit per end seen; or ACKED_AGAIN_BIT alone: only an ack that found the job gone
    end_attempt=_INT,  # the attempt at which it was acked, cancelled or deleted
    acked_again=_LONG,  # null, or attempt and time of the last ack that found it gone
    dead_order=_LONG,
    revived_order=_LONG,
    given_backs=_INT,
    place=_LONG,  # attempt and kind of its latest move
    due_order=_LONG,
    first_due_order=_LONG,
    tries_rank=_LONG,
    reason_rank=_LONG,
    delivered_bits=_LONG,  # bit (attempt mod 63) per delivery
    early_ms=_LONG,  # how much too early its earliest delivery was; negative: late
    purged_at=_LONG,  # null, or the purge that removed it
    date=_DAY,  # partition: the day of born
)
"""`jobs`: one row per job. Everything but `outcome` can be merged from parts that come in any order."""

STATS = _table(
    pool=_TEXT,
    namespace=_TEXT,
    queue=_TEXT,
    minute_at=_LONG,
    accepted=_LONG,  # a count per event of `duetime.model.job.Event`
    adopted=_LONG,
    kept=_LONG,
    replaced=_LONG,
    delivered=_LONG,
    given_back=_LONG,
    acked=_LONG,
    released=_LONG,
    lease_expired=_LONG,
    dead=_LONG,
    cancelled=_LONG,
    rescheduled=_LONG,
    expired=_LONG,
    purged=_LONG,
    deleted=_LONG,
    respawned=_LONG,
    notified=_LONG,
    notify_failed=_LONG,
    lateness_p50_ms=_LONG,
    lateness_p95_ms=_LONG,
    lateness_p99_ms=_LONG,
    lateness_max_ms=_LONG,
    lateness_sketch=_BYTES,  # KLL, merges over time
    run_p50_ms=_LONG,
    run_p95_ms=_LONG,
    run_p99_ms=_LONG,
    run_max_ms=_LONG,
    run_sketch=_BYTES,
    retry_rate=_DOUBLE,  # released and lapsed per delivery
    dead_rate=_DOUBLE,  # dead per delivery
    date=_DAY,  # partition: the day of minute_at
)
"""`stats`: one row per queue and minute in which something happened."""


CLOSED = _table(
    file=_TEXT,  # the file of `jobs` that this is about
    kind=_TEXT,  # "": a count of the law; else a finding
    pool=_TEXT,
    namespace=_TEXT,
    queue=_TEXT,
    id=_TEXT,  # null for a count, and so is born
    born=_LONG,
    batch=_TEXT,
    adopts=_INT,
    outcome=_TEXT,
    detail=_TEXT,
    jobs=_LONG,  # how many jobs a count stands for
    date=_DAY,  # partition: that of the file
)
"""`closed`: what audit found in files of `jobs` in which every job has ended, so that it need not read them again."""


def ddl(schema: StructType) -> str:
    """The schema as text, for casts and readers that take one."""
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema.fields)


def frame(spark: SparkSession, rows: Iterable[Any], schema: StructType) -> DataFrame:
    """A few rows, which must fit into a list, as a DataFrame."""
    session: Any = spark  # createDataFrame's own annotations are incomplete
    if known := list(rows):
        return session.createDataFrame(known, schema)
    # While it plans, Spark sees that this is empty, and simplifies joins and unions with it.
    columns = (F.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields)
    return spark.range(1).where(F.lit(False)).select(*columns)

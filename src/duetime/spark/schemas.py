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

TEXT = StringType()
LONG = LongType()
INT = IntegerType()
DOUBLE = DoubleType()
BYTES = BinaryType()
DAY = DateType()


def columns(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


JOIN = columns(name=TEXT, of=INT, then=TEXT, life_ms=LONG, seen=INT)
"""`stores.finishes.SeenJoin`; `seen` is null for a finish that found its job gone."""

ENTRY = columns(
    ts=LONG,
    wrote_at=LONG,
    node=TEXT,
    seq=LONG,
    event=TEXT,
    pool=TEXT,
    namespace=TEXT,
    queue=TEXT,
    id=TEXT,
    born=LONG,
    attempt=INT,
    due_at=LONG,
    priority=INT,
    ttl=LONG,
    tries=INT,
    reason=TEXT,
    body=TEXT,
    body_b64=TEXT,
    attributes=MapType(TEXT, TEXT),
    batch=TEXT,
    was=LONG,
    status=INT,
    ms=LONG,
    join=JOIN,
)
"""One line of the journal as it is written: `journal.events.Entry`. What is absent there is null here."""

EVENTS = columns(
    ts=LONG,  # the store's time of the event
    wrote_at=LONG,  # the node's time when it wrote the entry
    node=TEXT,
    seq=LONG,  # (node, seq) is unique in the table
    event=TEXT,  # a word of `duetime.model.job.Event`
    pool=TEXT,
    namespace=TEXT,
    queue=TEXT,
    id=TEXT,
    born=LONG,
    attempt=INT,
    due_at=LONG,  # 0: none; the same for priority, ttl, tries, was, status and ms
    priority=INT,
    ttl=LONG,
    tries=INT,
    reason=TEXT,  # "": none; the same for batch
    body=BYTES,  # null except for accepted, adopted and replaced
    attributes=MapType(TEXT, TEXT),  # null where there are none
    batch=TEXT,
    was=LONG,
    status=INT,
    ms=LONG,
    join=JOIN,  # null except for acked jobs of a task group
    date=DAY,  # partition: the day of ts, or of wrote_at if ts is 0
)
"""`events`: every entry of the journal once, typed. Numbers and words are never null; absent is 0 or ""."""

JOBS = columns(
    pool=TEXT,
    namespace=TEXT,
    queue=TEXT,
    id=TEXT,
    born=LONG,
    outcome=TEXT,  # waiting, leased, dead, acked, cancelled, expired, replaced, purged, deleted; "": not begun yet
    reason=TEXT,  # why it is dead, or how it was cancelled; "": none
    batch=TEXT,  # "": none
    priority=INT,
    accepted_at=LONG,  # null: its begin (accepted, adopted, replaced) has not been seen
    adopted=INT,  # 1: found in the store by reconcile; with accepts = 0 no entry ever accepted it
    due_at=LONG,  # as it stands after every reschedule and release
    first_due_at=LONG,  # as it stood before the first delivery
    expires_at=LONG,  # 0: never
    first_delivered_at=LONG,  # null: never delivered
    last_delivered_at=LONG,
    acked_at=LONG,
    ended_at=LONG,  # null while it lives
    attempts=INT,  # deliveries seen
    attempt=INT,  # the highest attempt seen
    used=INT,  # deliveries that count against tries
    tries=INT,  # 0: unlimited
    lateness_ms=LONG,  # first delivery - first_due_at
    run_ms=LONG,  # ack - last delivery
    history=INT,  # entries about this job
    last_at=LONG,  # ts of its latest entry
    # What a later run needs to go on from here (see lifecycle/transform.py); other readers do not need it.
    accepts=INT,  # times that it began anew; putting a lost job back does not count
    acks=INT,
    ends=INT,  # a bit per end seen; or ACKED_AGAIN_BIT alone: only an ack that found the job gone
    end_attempt=INT,  # the attempt at which it was acked, cancelled or deleted
    acked_again=LONG,  # null, or attempt and time of the last ack that found it gone
    dead_order=LONG,
    revived_order=LONG,
    given_backs=INT,
    place=LONG,  # attempt and kind of its latest move
    due_order=LONG,
    first_due_order=LONG,
    tries_rank=LONG,
    reason_rank=LONG,
    delivered_bits=LONG,  # bit (attempt mod 63) per delivery
    early_ms=LONG,  # how much too early its earliest delivery was; negative: late
    purged_at=LONG,  # null, or the purge that removed it
    date=DAY,  # partition: the day of born
)
"""`jobs`: one row per job. Everything but `outcome` can be merged from parts that come in any order."""

STATS = columns(
    pool=TEXT,
    namespace=TEXT,
    queue=TEXT,
    minute_at=LONG,
    accepted=LONG,  # a count per event of `duetime.model.job.Event`
    adopted=LONG,
    kept=LONG,
    replaced=LONG,
    delivered=LONG,
    given_back=LONG,
    acked=LONG,
    released=LONG,
    lease_expired=LONG,
    dead=LONG,
    cancelled=LONG,
    rescheduled=LONG,
    expired=LONG,
    purged=LONG,
    deleted=LONG,
    respawned=LONG,
    notified=LONG,
    notify_failed=LONG,
    lateness_p50_ms=LONG,
    lateness_p95_ms=LONG,
    lateness_p99_ms=LONG,
    lateness_max_ms=LONG,
    lateness_sketch=BYTES,  # KLL, merges over time
    run_p50_ms=LONG,
    run_p95_ms=LONG,
    run_p99_ms=LONG,
    run_max_ms=LONG,
    run_sketch=BYTES,
    retry_rate=DOUBLE,  # released and lapsed per delivery
    dead_rate=DOUBLE,  # dead per delivery
    date=DAY,  # partition: the day of minute_at
)
"""`stats`: one row per queue and minute in which something happened."""


CLOSED = columns(
    file=TEXT,  # the file of `jobs` that this is about
    kind=TEXT,  # "": a count of the law; else a finding
    pool=TEXT,
    namespace=TEXT,
    queue=TEXT,
    id=TEXT,  # null for a count, and so is born
    born=LONG,
    batch=TEXT,
    adopts=INT,
    outcome=TEXT,
    detail=TEXT,
    jobs=LONG,  # how many jobs a count stands for
    date=DAY,  # partition: that of the file
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

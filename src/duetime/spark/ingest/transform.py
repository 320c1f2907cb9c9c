"""Lines of the journal -> typed events: what the table `events` is made of.

Everything here is a DataFrame -> DataFrame transform in Spark's own functions, so it runs on the JVM of the executors
and no row passes through Python. A line is either an entry or damaged: its length, its check sum and its JSON are all
checked, as `journal.events.read_line` does it.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField

from duetime.journal.events import HEAD
from duetime.model.job import Event
from duetime.model.names import DEFAULT_POOL
from duetime.spark.lake.nodes import Nodes
from duetime.spark.schemas import ENTRY, EVENTS, LONG, TEXT, columns, frame

REQUIRED = ("ts", "wrote_at", "node", "seq", "event")
UNPLAIN = ("body", "body_b64", "attributes", "join")
RANGES = columns(name=TEXT, first=LONG, last=LONG)


def read_lines(lines: DataFrame) -> DataFrame:
    """(value, file) -> (file, entry, problem): `problem` says what is wrong with the line, null if nothing is.

    `value` is the line without its newline.
    """
    raw = F.col("value").cast("binary")
    head = F.substring("value", 1, HEAD)
    text = F.expr(f"substring(cast(value as binary), {HEAD + 1})")
    return (
        lines.select("file", head.alias("head"), text.alias("text"), F.octet_length(raw).alias("size"))
        .withColumn("entry", F.from_json(F.col("text").cast("string"), ENTRY))
        .select("file", "entry", _problem().alias("problem"))
    )


def _problem() -> Column:
    lacks_head = (F.col("size") <= HEAD) | (F.substring("head", HEAD, 1) != " ")
    wrong_length = F.substring("head", 9, 8) != _hex8(F.octet_length("text"))
    wrong_sum = F.substring("head", 1, 8) != _hex8(F.crc32("text"))
    not_entry = F.col("entry").isNull()
    for name in REQUIRED:
        not_entry = not_entry | F.col(f"entry.{name}").isNull()
    return (
        F.when(lacks_head, "the line has no head, or a newer release wrote it")
        .when(wrong_length, "the line is cut or says another length")
        .when(wrong_sum, "the check sum does not fit")
        .when(not_entry, "not an entry")
    )


def _hex8(number: Column) -> Column:
    return F.lower(F.lpad(F.hex(number), 8, "0"))


def good_events(lines: DataFrame) -> DataFrame:
    """(entry, problem ...) -> EVENTS, without the damaged lines."""
    entry = lines.where(F.col("problem").isNull()).select("entry.*")
    plain = [_present(field) for field in ENTRY.fields if field.name not in UNPLAIN]
    body = F.coalesce(F.encode("body", "UTF-8"), F.unbase64("body_b64")).alias("body")
    moment = F.when(F.col("ts") > 0, F.col("ts")).otherwise(F.col("wrote_at"))
    date = F.to_date(F.timestamp_millis(moment)).alias("date")
    return entry.select(*plain, body, "attributes", "join", date).select(*EVENTS.names)


def _present(field: StructField) -> Column:
    """A column of an entry, with its default where the entry leaves it out."""
    match field.dataType:
        case StringType():
            default = F.lit(DEFAULT_POOL if field.name == "pool" else "")
        case LongType() | IntegerType():
            default = F.lit(0)
        case other:
            raise AssertionError(other)
    return F.coalesce(F.col(field.name), default.cast(field.dataType)).alias(field.name)


def bad_files() -> Column:
    """For an observation of `read_lines`: the paths of the files with damaged lines, one per line of text.

    Not an array, because Spark 4.0 does not convert observed arrays to Python; the same holds for `noted`.
    """
    return F.concat_ws("\n", F.collect_set(F.when(F.col("problem").isNotNull(), F.col("file")))).alias("bad_files")


def noted() -> list[Column]:
    """For an observation of EVENTS: the purges, as JSON, and the days on which jobs of task groups were acked."""
    purge = F.array("pool", "namespace", "queue", F.col("ts").cast("string"), "reason")
    purges = F.collect_set(F.when(F.col("event") == Event.PURGED, purge))
    days = F.collect_set(F.when(F.col("join.name").isNotNull(), F.col("date").cast("string")))
    return [F.to_json(purges).alias("purges"), F.concat_ws("\n", days).alias("group_days")]


def once(events: DataFrame) -> DataFrame:
    """Each (node, seq) once, wherever its copies were."""
    return events.dropDuplicates(["node", "seq"])


def without_known(events: DataFrame, known: Nodes) -> DataFrame:
    """EVENTS without those whose node and seq are in one of the ranges."""
    ranges = [(name, first, last) for name, node in known.items() for first, last in node.ranges]
    if not ranges:
        return events
    # A join, because Spark fails on a condition that names a few hundred ranges.
    read = F.broadcast(frame(events.sparkSession, ranges, RANGES).alias("read"))
    is_known = (events["node"] == F.col("read.name")) & events["seq"].between(F.col("read.first"), F.col("read.last"))
    return events.join(read, on=is_known, how="left_anti")


def node_extents(events: DataFrame) -> DataFrame:
    """Per node and pool: how many entries, how many distinct ones, first and last seq, first time, whether the node
    closed, and the latest heartbeat.
    """
    # A bit per seq, 64 to a group: nearly all of the counting is done before anything is shuffled.
    sixty_fours = events.groupBy("node", "pool", F.expr("seq div 64").alias("sixty_four")).agg(
        F.count("*").alias("entries"),
        F.bit_or(F.expr("shiftleft(1L, cast(seq % 64 as int))")).alias("bits"),
        F.min("seq").alias("first"),
        F.max("seq").alias("last"),
        F.min("ts").alias("first_at"),
        F.max(F.col("event") == Event.CLOSED).alias("closed"),
        F.max(F.when(F.col("event") == Event.HEARTBEAT, F.col("ts"))).alias("beat_at"),
    )
    return sixty_fours.groupBy("node", "pool").agg(
        F.sum("entries").alias("entries"),
        F.sum(F.bit_count("bits")).alias("distinct"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
        F.min("first_at").alias("first_at"),
        F.max("closed").alias("closed"),
        F.max("beat_at").alias("beat_at"),
    )


def node_ranges(events: DataFrame) -> DataFrame:
    """(node, seq) -> (node, first, last) without gaps in between."""
    island = F.expr("seq - row_number() over (partition by node order by seq)")
    return (
        events.select("node", "seq", island.alias("island"))
        .groupBy("node", "island")
        .agg(F.min("seq").alias("first"), F.max("seq").alias("last"))
        .select("node", "first", "last")
    )

"""The conservation law, and the jobs that break it.

    accepted + adopted = waiting + leased + dead + acked + cancelled + expired + replaced + purged + deleted

With a store, waiting, leased and dead jobs are looked up in its scan by their full key; a job that should be there and
is not is lost, unless its id has a later job, which has replaced it. Without a store only the journal's own entries are
compared. For a job with an entry since the scan began, the journal is believed: the scan may have come too early.
DataFrame -> DataFrame on the executors.
"""

from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duetime.model.job import State
from duetime.spark.lifecycle.states import BITS
from duetime.spark.lifecycle.transform import acked_again_at
from duetime.spark.schemas import INT, KEY, LONG, TEXT, columns

STORE_KEY = ("namespace", "queue", "id", "born")
"""A job's key without the pool: a store knows nothing of pools, and a namespace lives in one."""

PLACES = ("waiting", "leased", "dead")
ENDS = ("acked", "cancelled", "expired", "replaced", "purged", "deleted")
LAW_KEY = ("pool", "namespace", "queue", "batch")

_STORE_KEY_KINDS = {"namespace": TEXT, "queue": TEXT, "id": TEXT, "born": LONG}
JOB_KEY = columns(pool=TEXT, **_STORE_KEY_KINDS)
PLACED = columns(pool=TEXT, **_STORE_KEY_KINDS, batch=TEXT, adopts=INT, outcome=TEXT)
SCAN = columns(**_STORE_KEY_KINDS, state=TEXT)

LOST, DUPLICATED, EARLY = "lost", "duplicated", "early"
REPLACED = "replaced"
"""The place of a job that has no end in the journal, and whose id has a later job."""
ACKED_TWICE, UNANSWERED = "acked_twice", "unanswered"
KINDS = (LOST, DUPLICATED, EARLY, ACKED_TWICE, UNANSWERED)
ERRORS = (LOST, DUPLICATED, EARLY, ACKED_TWICE)

STRAY = "stray"
"""The place of a job that only the store knows, or that has ended and is in the store all the same."""

FINDING = ("kind", *KEY, "batch", "detail")


class Scanned(NamedTuple):
    """What a store holds. Times are the store's, epoch milliseconds; the scan ran from `began_at` to `ended_at`.

    `pool` is the store's name in the journal; entries of other pools are about other stores. A job with an entry later
    than `began_at - grace_ms` is left to the journal. Jobs born before `since` are from before the journal.
    """

    jobs: DataFrame
    began_at: int
    ended_at: int
    pool: str
    since: int = 0
    grace_ms: int = 0
    epoch: str = ""


def places(jobs: DataFrame, scanned: Scanned | None = None) -> DataFrame:
    """JOBS -> PLACED: every job that began and has no end of its own in the journal.

    `outcome` is where the job is: what the store says if it has the job, `lost` if it should have it and has not, else
    what follows from the journal. What the store has and no row of JOBS that has not ended knows is a STRAY, of which
    the store tells STORE_KEY alone.
    """
    begun = F.col("accepted_at").isNotNull()
    living = jobs.where("ends = 0").join(F.broadcast(_acked_by_id(jobs)), on=[*KEY[:-1]], how="left")
    acked = F.col("acked_until") >= F.col("last_at")
    if scanned is None:
        outcome = F.when(acked, "acked").otherwise(F.col("outcome"))
        return living.where(begun).select(*PLACED.names[:-2], _adopts().alias("adopts"), outcome.alias("outcome"))
    in_scope = F.col("pool") == scanned.pool
    settled = F.col("last_at") < scanned.began_at - scanned.grace_ms
    expired = (F.col("expires_at") > 0) & (F.col("expires_at") < scanned.began_at) & (F.col("outcome") == "waiting")
    outcome = (
        F.when(F.col("ends").isNull(), STRAY)
        .when(F.col("state").isNotNull(), _store_place())
        .when(acked, "acked")
        .when(F.col("outcome") == "purged", "purged")
        .when(expired, "expired")
        .when(in_scope & settled, LOST)
        .otherwise(F.col("outcome"))
    )
    held = scanned.jobs.select(*STORE_KEY, "state")
    both = living.join(held.hint("shuffle_hash"), on=list(STORE_KEY), how="full")
    known = both.where(begun | F.col("ends").isNull())
    return known.select(*PLACED.names[:-2], _adopts().alias("adopts"), outcome.alias("outcome"))


def superseded(lost: DataFrame, known: DataFrame) -> DataFrame:
    """Returns KEY of the lost jobs of which `known` (KEY) has a later job with the same id.

    Whatever became of the later job, the store accepted it in place of the earlier one. The entry about that may be
    missing: the process may have died before it wrote the entry.
    """
    later = known.select(*KEY[:-1], F.col("born").alias("later_born"))
    return lost.select(*KEY).join(later, on=[*KEY[:-1]]).where("later_born > born").select(*KEY).distinct()


def with_superseded(placed: DataFrame, ended: DataFrame) -> DataFrame:
    """PLACED, in which the jobs that `superseded` named are replaced and not lost."""
    named = ended.withColumn("is_superseded", F.lit(True))
    outcome = F.when(F.col("is_superseded"), REPLACED).otherwise(F.col("outcome"))
    return placed.join(named, on=[*KEY], how="left").withColumn("outcome", outcome).select(*PLACED.names)


def _acked_by_id(jobs: DataFrame) -> DataFrame:
    """Ids that were acked without a lease when no job had them any more: every job of that id up to then is done."""
    gone = jobs.where("born = 0 and acked_again is not null")
    return gone.select(*KEY[:-1], acked_again_at().alias("acked_until"))


def law(jobs: DataFrame, placed: DataFrame | None = None, closed: DataFrame | None = None) -> DataFrame:
    """JOBS -> both sides of the law per queue and batch; `lost` is what is missing on the right.

    `placed` has the `places` of these jobs; without it there is no store. `closed` has counts of other jobs.
    """
    placed = places(jobs) if placed is None else placed
    one_each = (*LAW_KEY, "adopts", "outcome", F.lit(1).cast("long").alias("jobs"))
    counted = _ended(jobs).select(*one_each).unionByName(placed.where(F.col("outcome") != STRAY).select(*one_each))
    if closed is not None:
        counted = counted.unionByName(closed.where("kind = ''").select(*LAW_KEY, "adopts", "outcome", "jobs"))

    def sum_of(condition: Column) -> Column:
        return F.coalesce(F.sum(F.when(condition, F.col("jobs"))), F.lit(0))

    return (
        counted.groupBy(*LAW_KEY)
        .agg(
            sum_of(F.col("adopts") == 0).alias("accepted"),
            sum_of(F.col("adopts") == 1).alias("adopted"),
            *(sum_of(F.col("outcome") == name).alias(name) for name in (*PLACES, *ENDS, LOST)),
        )
        .select(*LAW_KEY, "accepted", "adopted", *PLACES, *ENDS, LOST)
    )


def ended_counts(jobs: DataFrame, *also: str) -> DataFrame:
    """JOBS -> how many jobs of a queue and batch ended in which way; `also` are more columns to count by."""
    return _ended(jobs).groupBy(*LAW_KEY, "adopts", "outcome", *also).agg(F.count(F.lit(1)).alias("jobs"))


def _ended(jobs: DataFrame) -> DataFrame:
    return jobs.where("ends != 0 and accepted_at is not null").withColumn("adopts", _adopts())


def own_findings(jobs: DataFrame, since: int = 0, closed: DataFrame | None = None) -> DataFrame:
    """JOBS -> FINDING: what the entries of jobs born since then say, without the store. `closed` has findings about
    jobs that are not among these.
    """
    found = jobs.transform(faults, since)
    if closed is None:
        return found
    is_ours = (F.col("kind") != UNANSWERED) | (F.col("born") >= since)
    return found.unionByName(closed.where((F.col("kind") != "") & is_ours).select(*FINDING))


def findings(
    jobs: DataFrame,
    scanned: Scanned,
    placed: DataFrame | None = None,
    closed: DataFrame | None = None,
    ended_elsewhere: DataFrame | None = None,
) -> DataFrame:
    """JOBS -> FINDING: every job that breaks the law, and every job that no entry accepted.

    `placed` has the `places` of these jobs, if they are known already. `closed` has findings about jobs that are not
    among these. `ended_elsewhere` are JOBS that have ended, and among which jobs of the store are looked for that these
    do not know.
    """
    found = own_findings(jobs, scanned.since, closed)
    placed = places(jobs, scanned) if placed is None else placed
    lost = placed.where(F.col("outcome") == LOST)
    return found.unionByName(
        lost.select(
            F.lit(LOST).alias("kind"), *KEY, "batch", F.lit("accepted, not ended, not in the store").alias("detail")
        )
    ).unionByName(_strays(placed, scanned, jobs if ended_elsewhere is None else jobs.unionByName(ended_elsewhere)))


def faults(jobs: DataFrame, since: int, *also: str) -> DataFrame:
    """JOBS -> FINDING: the faults that show in a job's own entries; `also` are more columns to keep."""
    begun = F.col("accepted_at").isNotNull()
    early = F.coalesce("early_ms", F.col("first_due_at") - F.col("first_delivered_at"))
    # There is a bit per attempt up to BITS; beyond that, only more deliveries than attempts prove a double one.
    doubled = F.when(F.col("attempt") < BITS, F.col("attempts") > F.bit_count("delivered_bits")).otherwise(
        F.col("attempts") > F.col("attempt")
    )
    conditions = (
        (F.col("acks") > 1, ACKED_TWICE, F.format_string("acked %d times", "acks")),
        (early > 0, EARLY, F.format_string("delivered %d ms early", early)),
        (F.col("accepts") > 1, DUPLICATED, F.format_string("accepted %d times under one born", "accepts")),
        (doubled, DUPLICATED, F.lit("one attempt was delivered twice")),
        (F.bit_count("ends") > 1, DUPLICATED, F.lit("ended in more than one way")),
        (F.col("attempt") > F.col("end_attempt"), DUPLICATED, F.lit("delivered again after its end")),
        (
            ~begun & (F.col("born") >= since) & (F.col("history") > 0),
            UNANSWERED,
            F.lit("has entries, but none that accepted it"),
        ),
    )
    named = (
        F.when(condition, F.struct(F.lit(kind).alias("kind"), detail.alias("detail")))
        for condition, kind, detail in conditions
    )
    # Texts are only made for faulty jobs, which are few.
    is_faulty = F.lit(False)
    for condition, _, _ in conditions:
        is_faulty = is_faulty | F.coalesce(condition, F.lit(False))
    return (
        jobs.where(is_faulty)
        .select(*KEY, "batch", *also, F.explode(F.array_compact(F.array(*named))).alias("fault"))
        .select("fault.kind", *KEY, "batch", "fault.detail", *also)
    )


def strays(placed: DataFrame) -> DataFrame:
    """STORE_KEY of what the store has and of which no job is that has not ended."""
    return placed.where(F.col("outcome") == STRAY).select(*STORE_KEY)


def _strays(placed: DataFrame, scanned: Scanned, all_jobs: DataFrame) -> DataFrame:
    """What the store has and should not have: jobs that ended, and jobs that no entry knows."""
    settled = scanned.began_at - scanned.grace_ms
    stray = strays(placed)
    ended = all_jobs.where("ends != 0").join(stray, on=list(STORE_KEY), how="left_semi")
    returned = ended.where(F.col("ended_at") < settled).select(
        F.lit(DUPLICATED).alias("kind"),
        *KEY,
        "batch",
        F.concat(F.lit("still in the store after it was "), "outcome").alias("detail"),
    )
    unknown = (
        stray.where((F.col("born") >= scanned.since) & (F.col("born") < settled))
        .join(ended.select(*STORE_KEY), on=list(STORE_KEY), how="left_anti")
        .select(
            F.lit(UNANSWERED).alias("kind"),
            F.lit(scanned.pool).alias("pool"),
            *STORE_KEY,
            F.lit("").alias("batch"),
            F.lit("in the store, and no entry knows it").alias("detail"),
        )
    )
    return returned.unionByName(unknown)


def _adopts() -> Column:
    """1 if the job was adopted and no entry ever accepted it, else 0."""
    return F.when((F.col("adopted") == 1) & (F.col("accepts") == 0), 1).otherwise(0)


def _store_place() -> Column:
    return F.when(F.col("state").isin(State.LEASED.value, State.DEAD.value), F.col("state")).otherwise("waiting")

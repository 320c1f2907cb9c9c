"""The jobs that are known since a batch was first pushed, for a batch whose marks are gone. Runs on the driver.

A row that was pushed is a job in the store, or the journal tells how that job ended. The journal is read up to this
moment, because jobs that the reconcile found in the store may have been acked since. The reconcile's plan is read as
well: it names the jobs in the store of which no entry told.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duetime.client import store_calls
from duetime.client.event_loop import run
from duetime.client.store_link import AsyncStoreLink
from duetime.journal.registration import RegisteredNode
from duetime.model.ids import IdMaker
from duetime.spark.audit.journal import JournalIncomplete, JournalNow, Wait, check_complete, read_until
from duetime.spark.audit.run import WAIT_S
from duetime.spark.lake.lake import Lake
from duetime.spark.load.batch import ReconcileFirst, ReconcileRun
from duetime.spark.load.options import LoadOptions
from duetime.spark.load.task_push import ask_store


@contextmanager
def known_jobs(lake: Lake, reconcile: ReconcileRun, options: LoadOptions, since: int) -> Generator[DataFrame]:
    """(queue, id) of the namespace's jobs that were born since a time of the store's.

    Raises ReconcileFirst if the journal has become incomplete since the reconcile.
    """
    aside = IdMaker().make()
    try:
        now = _read_journal(lake, reconcile, options, aside)
        day = str(datetime.fromtimestamp(since / 1000, UTC).date())
        entries = lake.events.read(manifest=now.manifest, only=lambda file: file.date >= day).unionByName(now.late)
        known = _born_since(entries, options.namespace, since)
        plan = f"{lake.folder}/reconcile/{reconcile.run}/plan"
        if lake.files.list(plan):  # a vacuum deletes it, long after the lake has the entries of what was adopted
            known = known.unionByName(_born_since(lake.spark.read.parquet(plan), options.namespace, since))
        yield known.distinct()
    finally:
        lake.files.delete(lake.scratch(aside))


def _born_since(rows: DataFrame, namespace: str, since: int) -> DataFrame:
    born = (F.col("namespace") == namespace) & (F.col("born") >= since) & (F.col("id") != "")
    return rows.where(born).select("queue", "id")


def _read_journal(lake: Lake, reconcile: ReconcileRun, options: LoadOptions, aside: str) -> JournalNow:
    """The journal that the reconcile has read, with everything that happened in the store until now."""
    moment: int = run(ask_store(options)).now
    given_up = {one.node for one in reconcile.assumed_lost}
    now = read_until(
        lake,
        reconcile.journal,
        aside,
        registered=lambda: run(_registered(options)),
        awaited=lambda read: sorted({*read.awaited(reconcile.pool, moment)} - given_up),
        wait=Wait(WAIT_S),
    )
    # A node without entries, whose registration was removed, is known to the reconcile only.
    lost = given_up & {*now.nodes, *now.registered}
    try:
        check_complete(now, reconcile.pool, moment, lost)
    except JournalIncomplete as error:
        raise ReconcileFirst(
            f"since the reconcile {reconcile.run}: {error.message}; reconcile again, then run this again",
            batch=options.batch,
        ) from error
    return now


async def _registered(options: LoadOptions) -> Mapping[str, RegisteredNode]:
    """The nodes of the journal; a server tells them to everybody who may read the namespace."""
    async with AsyncStoreLink.open(options.store_url, options.token) as link:
        return await link.send(store_calls.journal_nodes(options.namespace))

"""A program that works over Spark Connect; what it saw is one line of JSON. Run by test_connect.py: a process that has
an ordinary session cannot have one of these.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import functions as F

from duetime.model.errors import InvalidSettings
from duetime.spark import schedule
from duetime.spark.audit.run import ComparedStore, run_audit
from duetime.spark.ingest.run import run_ingest
from duetime.spark.lake.files import LocalFiles, check_shared
from duetime.spark.lake.lake import Lake
from duetime.spark.load.schedule import BadRows
from duetime.spark.session import is_connect, open_session

ROWS = 1_200


class Elsewhere(LocalFiles):
    """A disk that Spark does not see."""

    def create(self, path: str, content: bytes) -> None: ...


def main(remote: str, url: str, folder: str) -> None:
    spark = open_session("test", remote=remote)
    lake, journal = f"{folder}/lake", f"{folder}/journal"
    frame = spark.range(0, ROWS, 1, 2).select(
        F.format_string("recall-%06d", "id").alias("id"), F.to_json(F.struct("id")).alias("body")
    )
    seen: dict[str, object] = {"connect": is_connect(spark)}

    save = frame.limit(10).write.format("duetime").options(url=url, namespace="crm", queue="saved")
    save.mode("append").save()

    def load(batch: str, body: str = "body") -> list[int]:
        rows = frame.withColumn("body", F.expr(body))
        done = schedule(
            rows, url=url, namespace="crm", queue="recall", batch=batch, lake=lake, journal=journal, spread="1h"
        )
        return [done.rows, done.accepted, done.repeated]

    seen["scheduled"] = load("b1")
    Path(f"{lake}/batches/b1/_manifest").unlink()
    seen["again"] = load("b1")
    try:
        load("b2", "if(id = 'recall-000999', null, body)")
    except BadRows as error:
        seen["bad"] = error.fields["sample"]

    try:
        check_shared(spark, Elsewhere(), f"file://{folder}/elsewhere")
    except InvalidSettings as error:
        seen["elsewhere"] = error.message.partition(" file:")[0]

    tables = Lake(spark, lake)
    ingested = run_ingest(tables, journal)
    seen["ingested"] = [ingested.events >= ROWS, ingested.segments > 0, ingested.damaged]
    audited = run_audit(tables, journal, ComparedStore(url))
    seen["audited"] = [audited.total("accepted"), audited.total("waiting"), audited.total("lost")]
    print(json.dumps(seen))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

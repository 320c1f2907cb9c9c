"""Progress of the pipelines' commands: rows, as Spark's stages go through them."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from duetime.cli.progress import ProgressDisplay


def slowly(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        time.sleep(1)
        yield batch


def test_rows_are_counted_while_spark_works(spark: SparkSession, tmp_path: Path) -> None:
    shown: list[tuple[int, int | None]] = []

    class Seen(ProgressDisplay):
        def redraw(self) -> None:
            shown.append((self.done, self.total))

    spark.range(0, 1000, 1, 2).write.parquet(str(tmp_path / "rows"))
    progress = Seen("reading", None, "rows")
    # More tasks than run at once, because the rows of a task count when it ends; Spark would join so few rows.
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        rows: Any = spark.read.parquet(str(tmp_path / "rows")).repartition(12)
        with progress.follow(spark):
            progress.begin("pushing", 1000)
            rows.mapInArrow(slowly, "id long").write.parquet(str(tmp_path / "out"))
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
    assert (0, 1000) in shown
    assert any(0 < done <= 1000 for done, _ in shown), shown
    assert max(done for done, _ in shown) <= 1000, "never more than there are"

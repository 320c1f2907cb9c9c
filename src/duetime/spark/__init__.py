"""Duetime on Apache Spark: the data source `duetime` and the pipelines around it.

Needs the extra duetime[spark] and a Java runtime; nothing else in Duetime imports this package, and it imports the
kernel, the journal, the client and the store factory only. `register` makes `format("duetime")` known to a session
whose Python path lacks the package pyspark_duetime; `schedule` turns a DataFrame into jobs, exactly once. Both are
imported when they are first asked for: a pipeline that needs neither does not wait for them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from duetime.spark.load.schedule import schedule

__all__ = ["register", "schedule"]


def register(spark: "SparkSession", *, url: str = "", journal: str = "", database: str = "duetime") -> None:
    """Make `format("duetime")` known to this session, and with a store or a journal the views `duetime.jobs` and
    `duetime.events` to its catalog. The text of the view holds the URL, with its password.
    """
    from duetime.spark.source import DuetimeSource, create_views  # noqa: PLC0415

    spark.dataSource.register(DuetimeSource)
    create_views(spark, database, {name: one for name, one in (("url", url), ("journal", journal)) if one})


def __getattr__(name: str) -> Any:
    if name == "schedule":
        from duetime.spark.load.schedule import schedule  # noqa: PLC0415

        return schedule
    raise AttributeError(name)

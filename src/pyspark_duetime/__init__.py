"""Makes the data source `duetime` known to every Spark session: Spark looks for packages that are called pyspark_*."""

from duetime.spark.source import DuetimeSource as DefaultSource

__all__ = ["DefaultSource"]

"""The data source `duetime`: `format("duetime")` for reading and writing, in batches and as a stream.

    df.write.format("duetime").option("url", ...).option("queue", ...).mode("append").save()
    spark.read.format("duetime").option("url", ...).option("namespace", ...).load()
    spark.read.format("duetime").load("/srv/journal")
    spark.readStream.format("duetime").load("/srv/journal")
    spark.readStream.format("duetime").option("url", ...).option("queue", ...).load()
    df.writeStream.format("duetime").option("url", ...)....start()
    CREATE TEMPORARY VIEW jobs USING duetime OPTIONS (url '...', queue '...')
    CREATE TABLE jobs USING duetime; SELECT ... FROM jobs WITH (url = '...', queue = '...')

Spark makes an instance per query from the options; readers and writers are pickled and sent to executors.
"""

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from duetime.model.errors import InvalidSettings
from duetime.spark.schemas import ddl
from duetime.spark.source.due import DueReader
from duetime.spark.source.reader import JOBS, StoreReader
from duetime.spark.source.stream import ENTRIES, JournalReader, JournalRows
from duetime.spark.source.writer import LoadWriter, StreamLoadWriter

__all__ = ["DuetimeSource"]


TABLE_OPTIONS = (
    "Spark hands the OPTIONS of a catalog's table to no source in Python: create the table without them and write "
    "FROM jobs WITH (url = '...'), or CREATE TEMPORARY VIEW ... USING duetime OPTIONS (...)"
)


class DuetimeSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "duetime"

    def schema(self) -> StructType:
        """With a journal: its entries. With a store or server: the jobs in it."""
        if "provider" in self.options and any(one == "url" or one.startswith("option.") for one in self.options):
            raise InvalidSettings(TABLE_OPTIONS)
        return ENTRIES if _names_journal(self.options) else JOBS

    def reader(self, schema: StructType) -> DataSourceReader:
        _refuse_no_options(self.options)
        if _names_journal(self.options):
            return JournalRows(dict(self.options), schema)
        return StoreReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        _refuse_overwrite(overwrite)
        _refuse_no_options(self.options)
        return LoadWriter(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return DueReader(dict(self.options)) if "url" in self.options else JournalReader(dict(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        _refuse_overwrite(overwrite)
        return StreamLoadWriter(dict(self.options), schema)


def create_views(spark: SparkSession, database: str, sources: Mapping[str, str]) -> None:
    """A view of each source, by its option: `url` is shown as jobs, `journal` as events.

    A table of the catalog keeps no options, so each view passes its own to one that has none.
    """
    kinds = {"url": ("jobs", JOBS), "journal": ("events", ENTRIES)}
    for option, value in sources.items():
        view, schema = kinds[option]
        text = value.replace("\\", "\\\\").replace("'", "\\'")
        spark.sql(f"CREATE DATABASE IF NOT EXISTS `{database}`")
        spark.sql(f"CREATE TABLE IF NOT EXISTS `{database}`.`{view}_source` ({ddl(schema)}) USING duetime")
        spark.sql(
            f"CREATE OR REPLACE VIEW `{database}`.`{view}` AS "  # noqa: S608 # a view has no parameters
            f"SELECT * FROM `{database}`.`{view}_source` WITH ({option} = '{text}')"
        )


def _names_journal(options: Mapping[str, str]) -> bool:
    """Whether a journal is to be read: named by its option or `load(path)`. A table's path is Spark's own."""
    return "url" not in options and ("journal" in options or ("path" in options and "provider" not in options))


def _refuse_no_options(options: Mapping[str, str]) -> None:
    if not options:
        raise InvalidSettings(f"no option was given, not even url. {TABLE_OPTIONS}")


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise InvalidSettings('a queue cannot be overwritten; write with mode("append"), or purge it first')

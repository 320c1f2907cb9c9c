"""Reads the source that was named on the command line as a DataFrame of job columns. Runs on the driver.

A source is anything that Spark reads: files (by their ending or by a format), a table, a query, a database over JDBC.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from duetime.model.errors import InvalidRequest
from duetime.spark.load.job_columns import SOURCE_PROBLEM, SOURCE_ROW

ENDINGS = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".orc": "orc"}
USUAL: Mapping[str, Mapping[str, str]] = {
    "csv": {"header": "true", "inferSchema": "true"},
    "jdbc": {"fetchsize": "10000"},
}
COLUMNS = ("delay", "queue", "ttl", "tries", "priority", "attributes", "if_exists")
"""The columns of a job that have no option of their own for an expression."""
NOT_PATHS = ("sql", "table", "jdbc")


@dataclass(frozen=True)
class Selection:
    """Where the rows are, which of them, and the SQL expressions that make jobs out of them."""

    source: str
    body: str
    format: str = ""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    id: str = ""
    due: str = ""
    where: str = ""
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    """Expressions of other columns of a job (COLUMNS), by name."""

    def describe(self) -> str:
        """A text that is the same for the same selection, and another one for a file of the same name elsewhere."""
        options = sorted(self.options.items())
        columns = sorted((name, text) for name, text in self.columns.items() if name != "if_exists")
        return repr((self._place(), self.format, options, self.body, self.id, self.due, self.where, columns))

    def _place(self) -> str:
        """The source; a path without a scheme is made absolute, because it means another file in another folder."""
        is_path = (self.format or _guess(self.source)) not in NOT_PATHS and not urlsplit(self.source).scheme
        return os.path.abspath(self.source) if is_path else self.source


def read_selection(spark: SparkSession, selection: Selection) -> DataFrame:
    """The job columns. Raises InvalidRequest with Spark's own words for what it cannot read or analyse.

    A row for which an expression fails, such as a date that cannot be parsed, does not end the query: SOURCE_PROBLEM
    names the expression and SOURCE_ROW holds the row as JSON. Both are null for all other rows.
    """
    if unknown := sorted(set(selection.columns) - set(COLUMNS)):
        raise InvalidRequest(f"--column must name one of {', '.join(COLUMNS)}, got {unknown[0]!r}")
    given = {"body": selection.body, "id": selection.id, "due_at": selection.due, **selection.columns}
    expressions = {name: f"string({text})" if name == "id" else text for name, text in given.items() if text}
    options = {"body": "--body", "id": "--id", "due_at": "--due"}
    try:
        rows = _read(spark, selection)
        problem = F.lit(None).cast("string")
        for name, text in {**expressions, "where": selection.where}.items():
            if text:
                option = "--where" if name == "where" else options.get(name, f"--column {name}")
                said = F.lit(f"{option} cannot be evaluated: {given.get(name, text)}")
                problem = F.when(_fails(rows, text), said).otherwise(problem)
        row = F.when(problem.isNotNull(), F.to_json(F.struct(*(F.col(f"`{name}`") for name in rows.columns))))
        columns = [F.when(~_fails(rows, text), F.expr(text)).alias(name) for name, text in expressions.items()]
        if selection.where:
            rows = rows.where(_fails(rows, selection.where) | F.expr(selection.where))
        return rows.select(*columns, problem.alias(SOURCE_PROBLEM), row.alias(SOURCE_ROW))
    except (AnalysisException, ParseException) as error:
        raise InvalidRequest(_first_line(error)) from None


def _fails(rows: DataFrame, expression: str) -> Column:
    """True for rows for which the expression fails. Spark has no general `try`, but try_to_binary answers null for
    any error within its argument. Hashing or printing the value makes Spark compute all parts of it.
    """
    kind = rows.select(F.expr(expression)).schema[0].dataType.simpleString()
    value = F.struct(F.expr(expression).alias("value"))
    text = F.to_json(value) if "map<" in kind or "variant" in kind else F.xxhash64(value).cast("string")
    return F.try_to_binary(text, F.lit("utf-8")).isNull()


def _read(spark: SparkSession, selection: Selection) -> DataFrame:
    kind = selection.format or _guess(selection.source)
    match kind:
        case "sql":
            return spark.sql(selection.source)
        case "table":
            return spark.table(selection.source)
        case "jdbc":
            reader = spark.read.format("jdbc").options(**USUAL["jdbc"]).option("url", selection.source)
            return reader.options(**selection.options).load()
        case _:
            options = {**USUAL.get(kind, {}), **({"sep": "\t"} if selection.source.endswith(".tsv") else {})}
            return spark.read.format(kind).options(**{**options, **selection.options}).load(selection.source)


def _guess(source: str) -> str:
    if source.startswith("jdbc:"):
        return "jdbc"
    if source.lstrip().lower().startswith(("select ", "with ", "from ")):
        return "sql"
    name = source.rstrip("/").lower().removesuffix(".gz")
    found = next((kind for ending, kind in ENDINGS.items() if name.endswith(ending)), None)
    return found or ("parquet" if "/" in source else "table")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]

"""`duetime pipeline package`: the archive for Spark's --py-files."""

from pathlib import Path
from typing import Annotated

import typer

from duetime.cli.options import AnswerForm, takes_options


@takes_options
def package(
    form: AnswerForm,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")] = Path("duetime.zip"),
) -> None:
    """Write Duetime as an archive for `spark-submit --py-files`.

    The executors' Python needs msgspec, httpx and pyarrow besides, and redis and hiredis for a Redis store.

    Examples:
        duetime pipeline package
        duetime pipeline package build/duetime.zip --json
    """
    from duetime.spark.package import write_package

    count = write_package(path)
    form.answer.show({"file": str(path), "files": count}, f"{path}: {count:,} files")

"""`duetime pipeline package`: the archive for Spark's --py-files."""

import zipfile
from importlib import import_module
from pathlib import Path
from typing import Annotated

from duetime.cli.options import AnswerForm, argument
from duetime.model.errors import InvalidSettings


def package(
    form: AnswerForm,
    path: Annotated[Path, argument("FILE", "Where to write it.")] = Path("duetime.zip"),
) -> None:
    """Write Duetime as an archive for `spark-submit --py-files`.

    The executors' Python needs msgspec, httpx and pyarrow besides, and redis and hiredis for a Redis store.

    Examples:
        duetime pipeline package
        duetime pipeline package build/duetime.zip --json
    """
    count = write_package(path)
    form.answer.show({"file": str(path), "files": count}, f"{path}: {count:,} files")


# --- the archive


PACKAGES = ("duetime", "pyspark_duetime")
LEFT_OUT = {"__pycache__"}


def write_package(target: Path) -> int:
    """Write the archive, whole or not at all; returns how many files it holds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.writing")
    count = 0
    with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in PACKAGES:
            home = import_module(name).__file__
            if home is None:
                raise InvalidSettings(f"the package {name} is not a folder of files")
            folder = Path(home).parent
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not LEFT_OUT & set(path.parts):
                    archive.write(path, f"{name}/{path.relative_to(folder)}")
                    count += 1
    aside.replace(target)
    return count

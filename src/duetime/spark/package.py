"""The archive for `--py-files`: Duetime's own code, so that executors need not have it installed.

Its dependencies (msgspec, httpx, pyarrow; redis and hiredis for Redis) are not in the archive, as some are compiled.
They have to be in the executors' Python; docs/pipelines.md says how.
"""

import zipfile
from importlib import import_module
from pathlib import Path

from duetime.model.errors import InvalidSettings

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

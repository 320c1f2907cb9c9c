"""What the lake does with files besides Spark's own reading and writing: list, read, create, rename, delete.

Local paths go through the operating system; all others go through the session's Hadoop file systems (HDFS, S3 ...),
with the credentials that Spark has. Publishing relies on `create`: the file appears whole or not at all, and never
replaces another one. Runs on the driver.
"""

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from duetime.model.errors import InvalidSettings
from duetime.model.ids import IdMaker
from duetime.spark.session import is_connect

IF_ABSENT = "fs.option.create.conditional.overwrite"
"""What Hadoop calls creating a file in one step, and only if there is none; on S3 a PUT with `If-None-Match: *`."""


class FoundFile(NamedTuple):
    """A file or folder; `changed_at` is epoch milliseconds."""

    path: str
    size: int
    changed_at: int
    is_folder: bool

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]


class Files(Protocol):
    """Paths are URIs, as `home` gives them."""

    def home(self, path: str) -> str:
        """The path as a full URI, without a slash at its end."""
        ...

    def list(self, folder: str) -> list[FoundFile]:
        """What is in a folder, sorted by name; nothing if there is no such folder."""
        ...

    def read(self, path: str, start: int = 0) -> bytes:
        """From byte `start` on. Raises FileNotFoundError."""
        ...

    def create(self, path: str, content: bytes) -> None:
        """Atomic. Raises FileExistsError."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Also makes the target's folder; the target must not exist."""
        ...

    def delete(self, path: str) -> None:
        """Deletes a folder with all that is in it; no error if there is nothing."""
        ...


def files_for(spark: SparkSession, path: str) -> Files:
    """The operating system for local paths, else the session's file systems."""
    scheme = urlsplit(path).scheme
    if scheme == "file" or (not scheme and _local_by_default(spark)):
        return LocalFiles()
    try:
        return HadoopFiles(spark)
    except Exception as error:
        raise InvalidSettings(
            f"{path}: over Spark Connect lake and journal are folders that this process shares with Spark, such as a "
            "mounted disk; HDFS, S3 and the like need --master"
        ) from error


def check_shared(spark: SparkSession, files: Files, folder: str) -> None:
    """Over Spark Connect: raise InvalidSettings unless Spark reads what is written to the folder here."""
    if not is_connect(spark):
        return
    name, said = f"{folder}/shared-{IdMaker().make()}", IdMaker().make()
    files.create(name, said.encode())
    try:
        seen = [row["value"] for row in spark.read.text(name).collect()]
    except PySparkException:
        seen = []
    finally:
        files.delete(name)
    if seen != [said]:
        raise InvalidSettings(f"Spark does not see {folder} of this machine; over Spark Connect both must share it")


def _local_by_default(spark: SparkSession) -> bool:
    try:
        hadoop = _java(spark.sparkContext).hadoopConfiguration()
    except Exception:  # Spark Connect has no context; a path without a scheme is then a local one
        return True
    return str(hadoop.get("fs.defaultFS", "file:///")).startswith("file:")


def _java(context: Any) -> Any:
    return context._jsc


class LocalFiles:
    def path(self, path: str) -> Path:
        return Path(_local(path))

    def home(self, path: str) -> str:
        return _uri(Path(_local(path)).absolute())

    def list(self, folder: str) -> list[FoundFile]:
        try:
            found = sorted(Path(_local(folder)).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        result: list[FoundFile] = []
        for path in found:
            try:
                status = path.stat()
            except FileNotFoundError:  # renamed in the meantime
                continue
            result.append(FoundFile(_uri(path), status.st_size, status.st_mtime_ns // 1_000_000, path.is_dir()))
        return result

    def read(self, path: str, start: int = 0) -> bytes:
        with open(_local(path), "rb") as file:
            file.seek(start)
            return file.read()

    def create(self, path: str, content: bytes) -> None:
        target = Path(_local(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = _aside(str(target))
        with open(aside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(aside, target)  # a rename would replace the file that another run published
        finally:
            os.unlink(aside)

    def rename(self, source: str, target: str) -> None:
        where = Path(_local(target))
        where.parent.mkdir(parents=True, exist_ok=True)
        os.rename(_local(source), where)

    def delete(self, path: str) -> None:
        where = Path(_local(path))
        if where.is_dir():
            shutil.rmtree(where, ignore_errors=True)
        else:
            where.unlink(missing_ok=True)


class HadoopFiles:
    """Through the driver's JVM.

    An object store that creates a file only if there is none (S3 since 2024, through Hadoop 3.4.2 or newer) is asked to
    do that; on any other one that has no atomic rename, two runs must not publish a table at once.
    """

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._configuration = _java(context).hadoopConfiguration()
        self._path = context._jvm.org.apache.hadoop.fs.Path

    def home(self, path: str) -> str:
        system, where = self._at(path)
        return str(system.makeQualified(where).toString()).rstrip("/")

    def list(self, folder: str) -> list[FoundFile]:
        system, where = self._at(folder)
        if not system.exists(where):
            return []
        found = [
            FoundFile(str(one.getPath().toString()), one.getLen(), one.getModificationTime(), one.isDirectory())
            for one in system.listStatus(where)
        ]
        return sorted(found)

    def read(self, path: str, start: int = 0) -> bytes:
        system, where = self._at(path)
        if not system.exists(where):
            raise FileNotFoundError(path)
        stream = system.open(where)
        try:
            stream.seek(start)
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def create(self, path: str, content: bytes) -> None:
        system, target = self._at(path)
        try:
            if system.hasPathCapability(target, IF_ABSENT):
                self._put(system.createFile(target).must(IF_ABSENT, True).recursive().build(), content)
            else:
                self._create_aside(path, content)
        except Exception as error:
            if not system.exists(target):
                raise
            # A request whose answer was lost is sent again, and then finds the file that it has made itself.
            if self.read(path) != content:
                raise FileExistsError(path) from error

    def _create_aside(self, path: str, content: bytes) -> None:
        """Atomic where a rename is, and never replaces a file: on HDFS, but not on S3."""
        system, aside = self._at(_aside(path))
        self._put(system.create(aside, False), content)
        if system.exists(self._at(path)[1]) or not system.rename(aside, self._at(path)[1]):
            system.delete(aside, False)
            raise FileExistsError(path)

    def _put(self, stream: Any, content: bytes) -> None:
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()

    def rename(self, source: str, target: str) -> None:
        system, where = self._at(target)
        system.mkdirs(where.getParent())
        if not system.rename(self._at(source)[1], where):
            raise OSError(f"cannot rename {source} to {target}")

    def delete(self, path: str) -> None:
        system, where = self._at(path)
        system.delete(where, True)

    def _at(self, path: str) -> tuple[Any, Any]:
        where = self._path(path)
        return where.getFileSystem(self._configuration), where


def _uri(path: Path) -> str:
    """A URI as Hadoop writes it, in which nothing is escaped."""
    return f"file://{path}"


def _local(path: str) -> str:
    without_scheme = path.removeprefix("file:")
    return without_scheme if without_scheme == path else "/" + without_scheme.lstrip("/")


def _aside(path: str) -> str:
    """A hidden name in the same folder; readers skip names that begin with a dot."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.{IdMaker().make()}"

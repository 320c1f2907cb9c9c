"""A Spark session with the settings that Duetime's pipelines are measured with.

Without a master the session runs on this machine: as many tasks in parallel as there are cores, on the loopback
interface, without the web page. A cluster has its own settings; there only those that the pipelines rely on are set.
Runs on the driver.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

from duetime.model.errors import InvalidSettings

try:
    import pyspark
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
except ModuleNotFoundError as missing:
    raise InvalidSettings.lacks("duetime.spark", "spark", missing) from None

SPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
"""The pipelines run on Spark 4.0 to 4.3; what needs a newer one than this says so."""

JAVA_VERSION = 17
LOCAL_MASTER = "local[*]"
LOCAL_JAVA = "-XX:+UseParallelGC -XX:CompileThresholdScaling=5"
"""The parallel garbage collector pauses, but takes a quarter less of the cores that the tasks need. The compilers took
half of the processor time of a run over a small lake. To compile code after five times as many calls saves a fifth of
the whole, and still 7 % at a million events.
"""
ARCHIVE_LOG = "-Xlog:cds*=off"
"""Java reports every class that it cannot archive, and an archive that does not fit."""
JAVA_NOTICE = b"WARNING: "
"""How Java begins what it says about its own options; Spark's log begins with another word."""
CONNECT_S = 10
CONNECT_TASKS = 8
"""A Connect server does not report how many cores it has."""
JAVA_HINT = (
    f"Spark needs a Java runtime, version {JAVA_VERSION} or newer: install Debian's openjdk-17-jre-headless "
    "(apt-get install openjdk-17-jre-headless), or set JAVA_HOME to one"
)

BOUNDED_READS: Mapping[str, str] = {"spark.sql.parquet.columnarReaderBatchSize": "64"}
"""Spark bounds what it reads of a Parquet file at a time by rows, not by bytes: with its default of 4096, rows with the
largest bodies (1 MiB) do not fit into a JVM of 2 GB.
"""
EVERYWHERE: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    **BOUNDED_READS,
}
"""The settings that the pipelines rely on, whatever the cluster says."""

ONE_FILE_PER_TASK = {"spark.sql.files.maxPartitionBytes": "1t", "spark.sql.files.openCostInBytes": "1t"}

LOCALLY: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "32",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    "spark.sql.maxConcurrentOutputFileWriters": "4",
    "spark.sql.files.openCostInBytes": "256k",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.sql.catalogImplementation": "in-memory",
}
"""Spark joins the 32 shuffle partitions to parts of 16 MiB, which a task unpacks to a few hundred MiB. 200 partitions,
or zstd for the shuffle, cost 1.5 times as much on one machine. A task writes up to 4 days at a time, instead of sorting
its rows by day. A journal of 10,000 nodes has as many small files: Spark would list them in 10,000 tasks and read 32 of
them in each.
"""


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """The program `java` of JAVA_HOME, else of PATH, else of where Debian puts it. Raises InvalidSettings."""
    found: list[str] = []
    for candidate in _java_candidates(environment):
        version = _java_version(candidate)
        if version >= JAVA_VERSION:
            return candidate
        found.append(f"{candidate} is version {version}" if version else f"{candidate} does not run")
    raise InvalidSettings("; ".join([JAVA_HINT, *found]))


def _java_candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environment.get("PATH", os.defpath)):
        yield Path(on_path)
    yield from sorted(Path("/usr/lib/jvm").glob("*/bin/java"), reverse=True)


def _java_version(java: Path) -> int:
    """The major version; 0 if it does not run."""
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    matched = re.search(r'version "(?:1\.)?(\d+)', ran.stderr)
    return int(matched[1]) if matched else 0


def open_session(
    name: str, *, master: str | None = None, remote: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on this machine, on a `master` (spark://, yarn, k8s://, local[N]) or over Spark Connect (`remote`).

    An open session is used as it is. `conf` wins over what is set here. Raises InvalidSettings where there is no Java,
    or no client for Spark Connect.
    """
    if master and remote:
        raise InvalidSettings("--master and --remote exclude each other")
    builder: Any = SparkSession.builder.appName(f"duetime {name}")
    if remote:
        _check_connect(remote)
        return _configured(builder.remote(remote), {**EVERYWHERE, **(conf or {})})
    if (active := SparkSession.getActiveSession()) is not None:
        return active
    _prepare_environment()
    master = master or os.environ.get("SPARK_MASTER") or LOCAL_MASTER
    local = is_local(master)
    java = {"spark.driver.extraJavaOptions": f"{java_options(local=local)} {class_archive_options()}".rstrip()}
    settings = {**EVERYWHERE, **java, **(LOCALLY if local else {}), **(conf or {})}
    with without_java_notices():
        session = _configured(builder.master(master), settings)
    session.sparkContext.setLogLevel("ERROR")
    return session


def is_local(master: str) -> bool:
    return master.startswith("local")


def is_connect(spark: SparkSession) -> bool:
    """Returns True over Spark Connect, which has no context and no JVM. Its streams call back in another process."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def parallelism(spark: SparkSession) -> int:
    """How many tasks can run in parallel, as far as Spark reports it."""
    return CONNECT_TASKS if is_connect(spark) else spark.sparkContext.defaultParallelism


def whole_file_session(spark: SparkSession) -> SparkSession:
    """A session like this one in which each file is read by a task of its own, from its first row to its last."""
    session = spark.newSession()
    for name, value in {**ONE_FILE_PER_TASK, **BOUNDED_READS}.items():
        session.conf.set(name, value)
    return session


def _prepare_environment() -> None:
    """Sets what the driver's JVM needs before it starts. Python workers run the interpreter that runs this."""
    java = find_java()
    if "JAVA_HOME" not in os.environ or _java_version(Path(os.environ["JAVA_HOME"]) / "bin" / "java") < JAVA_VERSION:
        os.environ["JAVA_HOME"] = str(java.resolve().parent.parent)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def java_options(*, local: bool) -> str:
    """The JVM's options: log errors only, also while it starts, unless SPARK_CONF_DIR names the user's own settings.
    On one machine also LOCAL_JAVA.
    """
    options = [LOCAL_JAVA] if local else []
    if "SPARK_CONF_DIR" not in os.environ:
        log_settings = Path(str(files("duetime.spark") / "log4j2.properties"))
        options.append(f"-Dlog4j2.configurationFile={log_settings.as_uri()}")
    return " ".join(options)


def class_archive_options() -> str:
    """The JVM's options for an archive of Spark's loaded classes, which takes half of the work out of its start.

    The second session of a user writes the archive when its JVM ends, and the next ones use it: the first one cannot
    know that the cache folder is kept, which that of a container is not. A name stands for one Java and one Spark. A
    JVM ignores an archive that does not fit, or is not complete because its writer is still at work or was killed: the
    header is written last. There is no option where the folder cannot be written.
    """
    java, spark = Path(os.environ["JAVA_HOME"]).resolve(), Path(pyspark.__file__).resolve().parent
    if not (java / "lib" / "server" / "classes.jsa").is_file():  # the archive is an addition to Java's own
        return ""
    identity = [(str(folder), folder.stat().st_mtime_ns) for folder in (java / "lib" / "server", spark / "jars")]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "duetime"
    archive = cache / f"spark-{hashlib.sha256(repr(identity).encode()).hexdigest()[:16]}.jsa"
    if re.search(r"\s", str(archive)):  # which ends an option
        return ""
    try:
        with archive.open("rb") as file:
            is_complete = any(file.read(4))
    except OSError:
        is_complete = False
    if is_complete:
        return f"{ARCHIVE_LOG} -XX:SharedArchiveFile={archive}"
    first = archive.with_suffix(".first")
    if first.exists() and os.access(cache, os.W_OK):
        return f"{ARCHIVE_LOG} -XX:ArchiveClassesAtExit={archive}"
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        first.touch()
    return ""


@contextmanager
def without_java_notices() -> Generator[None]:
    """Programs that start within the block write to standard error through a filter that drops Java's own notices.

    One such notice is about the incubator module that Spark asks for. The filter lives as long as the programs do.
    """
    standard_error = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    threading.Thread(target=_pass_on, args=(reading, standard_error), name="java-notices", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(standard_error, 2)


def _pass_on(reading: int, standard_error: int) -> None:
    with os.fdopen(reading, "rb") as lines, suppress(OSError):
        for line in lines:
            if not line.startswith(JAVA_NOTICE):
                os.write(standard_error, line)
    os.close(standard_error)


def _configured(builder: Any, settings: Mapping[str, str]) -> SparkSession:
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _check_connect(remote: str) -> None:
    """Raises InvalidSettings if no server answers within seconds: Spark's own client would try for ten minutes."""
    try:
        grpc: Any = import_module("grpc")
        connect: Any = import_module("pyspark.sql.connect.client")
    except ModuleNotFoundError:
        raise InvalidSettings("--remote needs Spark Connect's client: pip install 'duetime[spark-connect]'") from None
    if is_local(remote):
        return
    try:
        builder = connect.DefaultChannelBuilder(remote)
    except PySparkException as error:
        raise InvalidSettings(str(error)) from None
    with builder.toChannel() as channel:
        try:
            grpc.channel_ready_future(channel).result(CONNECT_S)
        except grpc.FutureTimeoutError:
            raise InvalidSettings(f"no Spark Connect server answers at {builder.endpoint}") from None

"""One Spark session for all tests of a process, and all tests that use one in two processes.

`spark` is a session on this machine with two cores, started once. Under xdist its tests run in the same
two workers (tests/plugins/side_by_side.py): a session takes seconds to start and most of a core.
"""

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duetime.client import calls, connect
from duetime.model.clock import MAX_INSTANT
from duetime.model.errors import InvalidSettings
from duetime.model.job import Delivery, Job, State
from duetime.model.names import Queue
from duetime.spark.load.options import LoadOptions
from duetime.spark.session import SPARK, find_java, java_options, open_session
from duetime.spark.source.listing import Bounds, Listing
from tests.e2e.shell import program
from tests.plugins.ci import missing_service
from tests.plugins.processes import guard, release
from tests.spark.far_storage import JARS, hdfs, s3

__all__ = ["hdfs", "s3"]


def since(major: int, minor: int) -> pytest.MarkDecorator:
    """For a test of what an older Spark does not have: `make test SPARK=4.0` leaves it out."""
    return pytest.mark.skipif((major, minor) > SPARK, reason=f"needs Spark {major}.{minor}")


FOLDER = Path(__file__).parent
TIMEOUT_S = 900
# One compiler leaves 48 MiB for compiled code, and a JVM that has filled that goes on without compiling.
FAST_START = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xshare:auto"

# A few rows are evaluated sooner than code for them is generated and compiled; --full tests the generated code.
WITHOUT_COMPILING = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


OF_OLD_SPARK = ("ignore:unclosed <socket:ResourceWarning", "ignore:'PYARROW_IGNORE_TIMEZONE':UserWarning")
"""Warnings about pyspark's own code that newer versions do not cause."""


def pytest_configure(config: pytest.Config) -> None:
    for rule in OF_OLD_SPARK if SPARK < (4, 3) else ():
        config.addinivalue_line("filterwarnings", rule)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first query of a JVM is slow, whichever test it falls to."""
    for item in items:
        if item.nodeid.startswith("tests/spark/") and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    try:
        find_java()
    except InvalidSettings as error:
        missing_service(error.message)
    folder = tmp_path_factory.mktemp("spark")
    session = open_session(
        "tests",
        master="local[2]",
        conf={
            "spark.driver.extraJavaOptions": " ".join([java_options(local=False), FAST_START]),
            "spark.driver.extraClassPath": f"{JARS / 's3'}/*",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            **({} if pytestconfig.getoption("--full") else WITHOUT_COMPILING),
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    yield session
    session.stop()


@pytest.fixture
def address_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """The address of an empty store of a kind; `http` is a real `duetime serve` in front of SQLite, `http on redis` one
    in front of Redis, and `http without journal` one whose own journal is off.
    """
    started: list[subprocess.Popen[str]] = []

    def address(kind: str) -> str:
        match kind:
            case "redis" | "postgres" | "mysql":
                return str(request.getfixturevalue(f"{kind}_url"))
            case "http":
                return _serve(f"sqlite://{tmp_path / 'served.db'}", tmp_path, started)
            case "http without journal":
                return _serve(f"sqlite://{tmp_path / 'served.db'}", tmp_path, started, DUETIME_JOURNAL="off")
            case "http on redis":
                return _serve(str(request.getfixturevalue("redis_url")), tmp_path, started)
            case _:
                return f"sqlite://{tmp_path / 'jobs.db'}"

    yield address
    for process in started:
        process.terminate()
        process.communicate(timeout=90)
        release(process.pid)


def _serve(store: str, folder: Path, started: list[subprocess.Popen[str]], **settings: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
    process = subprocess.Popen(
        [*program(), "serve", "--dev", "--store", store, "--port", "0", "--admin-port", "0"],
        env={**environment, **settings},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    guard(process.pid)
    started.append(process)
    assert process.stdout is not None
    facts: dict[str, str] = {}
    for line in process.stdout:
        label, _, value = line.strip().partition(" ")
        facts[label] = value.strip()
        if label == "stop":
            return facts["API"].split()[0]
    raise AssertionError(f"the server did not start: {facts}")


def jobs_in(url: str, namespace: str, queue: str) -> list[Job]:
    """All jobs that wait there, by due time."""

    async def look() -> list[Job]:
        jobs: list[Job] = []
        async with Listing.open(LoadOptions(url, namespace)) as listing:
            for state in (State.DELAYED, State.READY):
                async for page in listing.jobs(Queue(namespace, queue), state, Bounds(0, MAX_INSTANT)):
                    jobs += page
        return jobs

    return sorted(asyncio.run(look()), key=lambda job: (job.due_at, job.id))


@pytest.fixture
def drain() -> Callable[..., list[Delivery]]:
    """Takes and acks all ready jobs of a queue; answers them."""

    def take(url: str, namespace: str, queue: str) -> list[Delivery]:
        taken: list[Delivery] = []
        with connect(url, namespace=namespace) as client:
            while found := client.reserve([queue], limit=500):
                client.send(calls.ack(Queue(namespace, queue), found))
                taken += found
        return taken

    return take

"""One Spark session for all tests of a process, and all Spark tests in one process.

`spark` is a session on this machine with two cores, started once. Under xdist every test below this folder runs in
the same worker: a session takes seconds to start and most of a core.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duetime.errors import InvalidSettings
from duetime.spark.session import find_java, open_session, quiet
from tests.plugins.ci import missing_service

FOLDER = Path(__file__).parent
FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    try:
        find_java()
    except InvalidSettings as error:
        missing_service(error.message)
    folder = tmp_path_factory.mktemp("spark")
    session = open_session(
        "tests",
        master="local[2]",
        conf={
            "spark.driver.extraJavaOptions": " ".join([*quiet().values(), FAST_START]),
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    yield session
    session.stop()

"""A standalone Spark cluster of real processes, for tests that kill parts of it.

`Cluster` is one master and some workers on the loopback interface, stopped by their ids. Run as a program this file is
a driver on such a cluster: it schedules, says how it went in one line of JSON, and does so again for each line that it
is given.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
START_S = 240
FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Cluster:
    """Use it as a context manager."""

    def __init__(self, folder: Path, java_home: Path, workers: int) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "JAVA_HOME": str(java_home),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": FAST,
            "PYSPARK_PYTHON": sys.executable,
        }
        self._count = workers
        self._processes: list[subprocess.Popen[Any]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> "Cluster":
        from tests.plugins.processes import guard

        def launch(name: str, *arguments: str) -> subprocess.Popen[bytes]:
            with (self._folder / f"{name}.log").open("wb") as log:
                process = subprocess.Popen(
                    [str(SPARK_HOME / "bin" / "spark-class"), *arguments],
                    env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip
            guard(process.pid)
            self._processes.append(process)
            return process

        deploy = "org.apache.spark.deploy"
        launch("master", f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = self._wait_for("master", r"Starting Spark master at (spark://\S+)\n")
        for number in range(self._count):
            home = self._folder / f"worker-{number}"
            self.workers.append(
                launch(
                    home.name,
                    f"{deploy}.worker.Worker",
                    "--host",
                    "127.0.0.1",
                    "--cores",
                    "1",
                    "--memory",
                    "1g",
                    "--webui-port",
                    "0",
                    "--work-dir",
                    str(home),
                    self.url,
                )
            )
        for number in range(self._count):
            self._wait_for(f"worker-{number}", r"Successfully registered with (master)")
        return self

    def __exit__(self, *_: object) -> None:
        from tests.plugins.processes import release

        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(90)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            release(process.pid)
            for stream in (process.stdin, process.stdout):
                if stream and not stream.closed:
                    stream.close()

    def _wait_for(self, name: str, pattern: str) -> str:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if found := re.search(pattern, (self._folder / f"{name}.log").read_text(errors="replace")):
                return found[1]
            time.sleep(0.05)
        raise AssertionError(f"{name} did not start: {(self._folder / f'{name}.log').read_text(errors='replace')}")

    def kill_an_executor(self) -> int | None:
        """SIGKILL to an executor that has Python workers; its process id, or None if there is none yet."""
        for worker in self.workers:
            for executor in children(worker.pid):
                if children(executor):
                    os.kill(executor, signal.SIGKILL)
                    return executor
        return None

    def driver(self, **arguments: Any) -> subprocess.Popen[str]:
        """Ends with the cluster."""
        from tests.plugins.processes import guard

        errors = (self._folder / "driver.log").open("wb")
        driver = subprocess.Popen(
            [sys.executable, __file__, json.dumps({"master": self.url, **arguments})],
            env={**self._environment, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
        errors.close()
        guard(driver.pid)
        self._processes.append(driver)
        return driver

    def complaint(self) -> str:
        """What the driver said last."""
        return (self._folder / "driver.log").read_text(errors="replace")[-4000:]


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(one) for one in task.read_text().split()]
        except OSError:
            continue
    return found


def drive(arguments: dict[str, Any]) -> None:
    from pyspark.sql import functions as F

    from duetime.spark import schedule
    from duetime.spark.session import open_session

    conf = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": FAST,
        "spark.driver.extraJavaOptions": FAST,
        "spark.network.timeout": "60s",
    }
    spark = open_session("cluster test", master=arguments["master"], conf=conf)
    for partitions in chain([arguments["partitions"]], map(int, sys.stdin)):
        frame = spark.range(0, arguments["rows"], 1, partitions).select(
            F.format_string("job-%07d", "id").alias("id"),
            F.timestamp_millis(F.lit(1_600_000_000_000) + F.col("id")).alias("due_at"),
            F.repeat(F.lit("x"), 100).alias("body"),
        )
        done = schedule(frame, **arguments["schedule"])
        print(json.dumps({"rows": done.rows, "accepted": done.accepted, "repeated": done.repeated}), flush=True)
    spark.stop()


if __name__ == "__main__":
    drive(json.loads(sys.argv[1]))

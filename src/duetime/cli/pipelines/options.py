"""The options that every pipeline command takes: where Spark runs and where the lake is.

def stats(options: StatsOptions, spark: SparkOptions, target: Target) -> None:
    with spark.session("stats") as session:
        ...
"""

import logging
import os
import re
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duetime.cli.options import AnswerForm, option
from duetime.cli.progress import ProgressDisplay, show_progress
from duetime.journal.options import URI
from duetime.model.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from duetime.spark.lake.lake import Lake

# --- interrupts
#
# Ctrl-C and TERM while Spark works: the command and its processes end immediately, with exit code 130.
#
# Spark and py4j report every call and task that is cut short with a page of stack trace each. The person
# who pressed the keys does not need them, so they are silenced.


QUIET_S = 2.0


class Interrupts:
    """A context manager around the session's life.

    Call `install` after the session has opened: opening it sets signal handlers of its own.
    """

    def __init__(self) -> None:
        self._came = False
        self._session: SparkSession | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupts":
        return self

    def install(self, session: "SparkSession") -> None:
        self._session = session
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._interrupt)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        if self._came:
            logging.disable(logging.NOTSET)
            if isinstance(error, Exception):  # a call to Spark that was cut short, not a bug
                raise KeyboardInterrupt from None

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        logging.disable(logging.ERROR)
        # A new thread has its own connection to the JVM; this thread's may be in the middle of an answer.
        quiet = threading.Thread(target=self._quiet, daemon=True)
        quiet.start()
        quiet.join(QUIET_S)
        raise KeyboardInterrupt

    def _quiet(self) -> None:
        if self._session is not None:
            with suppress(Exception):  # Spark Connect has no context, and the server's log is not ours
                self._session.sparkContext.setLogLevel("OFF")


DEFAULT_LAKE = "lake"
MEMORY = re.compile(r"[1-9][0-9]*[kmgt]", re.IGNORECASE)


def local_file(given: str | Path) -> Path:
    """Parse the path of a file that a command writes itself, without Spark, and so on this machine.

    Typer also passes an option's default through here, which is a Path already.
    """
    text = str(given)
    if URI.match(text) and not text.startswith("file:"):
        raise typer.BadParameter(f"{text}: this file is written on this machine; copy it from there")
    return Path("/" + text.removeprefix("file:").lstrip("/") if text.startswith("file:") else text)


@dataclass(frozen=True)
class SparkOptions:
    """Where Spark runs, how, and where the lake is. None means that an option was not given."""

    PANEL = "Spark"

    master: Annotated[
        str | None,
        option(
            "URL",
            "Spark's master: spark://host:7077, yarn, k8s://... Without it this machine with all its cores.",
        ),
    ] = None
    remote: Annotated[str | None, option("URL", "A Spark Connect server, sc://host:15002.")] = None
    lake: Annotated[
        str | None,
        option(
            "DIR",
            f"The folder of the pipelines' tables; any file system of Spark's. DUETIME_LAKE, else {DEFAULT_LAKE}.",
        ),
    ] = None

    conf: Annotated[
        list[str] | None,
        option("NAME=VALUE", "A setting of Spark's, such as spark.executor.memory=4g; repeatable."),
    ] = None
    driver_memory: Annotated[
        str | None,
        option(
            "SIZE",
            "Memory of Spark's driver, which on one machine does all the work. 2g if not given.",
        ),
    ] = None

    def settings(self) -> dict[str, str]:
        """The settings of Spark that were chosen on the command line. Raises InvalidRequest."""
        chosen: dict[str, str] = {}
        for pair in self.conf or ():
            name, equals, chosen[name] = pair.partition("=")
            if not name or not equals:
                raise InvalidRequest(f"--conf must be NAME=VALUE, got {pair!r}")
        if self.driver_memory:
            if not MEMORY.fullmatch(self.driver_memory):
                raise InvalidRequest(f"--driver-memory must be a size such as 4g or 512m, got {self.driver_memory!r}")
            chosen["spark.driver.memory"] = self.driver_memory
        return chosen

    @property
    def lake_folder(self) -> str:
        return self.lake or os.environ.get("DUETIME_LAKE") or DEFAULT_LAKE

    @contextmanager
    def session(self, name: str) -> "Generator[SparkSession]":
        """A session that ends with the block, unless it was open before."""
        from pyspark.sql import SparkSession

        from duetime.spark.session import open_session

        # Spark's Python logs each error in full before it raises it; the command says it in one line.
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        was_open = SparkSession.getActiveSession() is not None
        with Interrupts() as interrupts:
            session = open_session(name, master=self.master, remote=self.remote, conf=self.settings())
            if not was_open:
                interrupts.install(session)
            try:
                yield session
            finally:
                if not was_open:
                    session.stop()

    @contextmanager
    def work_on_lake(self, name: str, form: AnswerForm) -> "Generator[tuple[Lake, ProgressDisplay]]":
        """The lake, in a session of this name, and a progress display that follows the session."""
        with self.session(name) as session:
            from duetime.spark.lake.lake import Lake

            with show_progress(name, as_json=form.json) as progress, progress.follow(session):
                yield Lake(session, self.lake_folder), progress

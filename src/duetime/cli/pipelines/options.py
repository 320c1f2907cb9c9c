"""The options that every pipeline command takes: where Spark runs and where the lake is.

@takes_options
def stats(options: StatsOptions, spark: SparkOptions, target: Target) -> None:
    with spark.session("stats") as session:
        ...
"""

import logging
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duetime.journal.options import URI
from duetime.model.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- interrupts
#
# Ctrl-C and TERM while Spark works: the command ends at once, its processes with it, with exit code 130.
#
# Spark and py4j report every call and task that is cut short with a page of stack trace each. Whoever pressed the
# keys does not need to read them, so they are silenced.


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


SPARK_PANEL = "Spark"
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

    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Spark's master: spark://host:7077, yarn, k8s://... Without it this machine with all its cores.",
            show_default=False,
            rich_help_panel=SPARK_PANEL,
        ),
    ] = None
    remote: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A Spark Connect server, sc://host:15002.",
            show_default=False,
            rich_help_panel=SPARK_PANEL,
        ),
    ] = None
    lake: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help=f"The folder of the pipelines' tables; any file system of Spark's. DUETIME_LAKE, else {DEFAULT_LAKE}.",
            show_default=False,
            rich_help_panel=SPARK_PANEL,
        ),
    ] = None

    conf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A setting of Spark's, such as spark.executor.memory=4g; repeatable.",
            show_default=False,
            rich_help_panel=SPARK_PANEL,
        ),
    ] = None
    driver_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory of Spark's driver, which on one machine does all the work. 2g if not given.",
            show_default=False,
            rich_help_panel=SPARK_PANEL,
        ),
    ] = None

    def settings(self) -> dict[str, str]:
        """The settings of Spark that were chosen on the command line. Raises InvalidRequest."""
        chosen: dict[str, str] = {}
        for pair in self.conf or ():
            name, equals, chosen[name] = pair.partition("=")
            if not name or not equals:
                raise InvalidRequest(f"--conf is written NAME=VALUE, not {pair!r}")
        if self.driver_memory:
            if not MEMORY.fullmatch(self.driver_memory):
                raise InvalidRequest(f"--driver-memory is a size such as 4g or 512m, not {self.driver_memory!r}")
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

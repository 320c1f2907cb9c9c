"""Ctrl-C and TERM while Spark works: the command ends at once, its processes with it, with exit code 130.

Spark and py4j report every call and task that is cut short with a page of stack trace each. Whoever pressed the keys
does not need to read them, so they are silenced.
"""

import logging
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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

"""Makes a fork safe for the SQLite files that are open in the process.

SQLite keeps in memory which locks the process has on a file. A forked child inherits that memory but not the locks. It
would take a file for locked that it never locked, on a new connection too; and the parent, when it closes the file,
would take itself for the last user and delete the log that the child has just committed to.

So a fork waits for the transactions that are under way, and the child closes every inherited connection before it does
anything else. SQLite forgets the locks with the last connection, and what the child opens then is locked for real.
"""

import os
import sqlite3
import threading
from collections.abc import Callable

_open: set["ForkGuard"] = set()
_changing = threading.RLock()
"""Held while a guard comes or goes, and during a fork."""


class ForkGuard:
    """Guards a connection: no other thread forks while `in_use` is held.

    The thread that holds it may: the handler of a signal runs between two statements, and if these are transactions of
    their own, nothing is under way then.
    """

    def __init__(self) -> None:
        self.in_use = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    def open(self, connect: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
        with _changing:
            _open.add(self)
        try:
            with self.in_use:
                self._connection = connect()
        except BaseException:
            self.close()
            raise
        return self._connection

    def close(self) -> None:
        with self.in_use:
            self.close_connection()
        with _changing:
            _open.discard(self)

    def close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _wait() -> None:
    _changing.acquire()
    for guard in _open:
        guard.in_use.acquire()


def _go_on() -> None:
    for guard in _open:
        guard.in_use.release()
    _changing.release()


def _close_inherited() -> None:
    for guard in _open:
        guard.close_connection()
    _go_on()
    _open.clear()


os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_close_inherited)

"""A thread for work around a SQLite file that no caller has to wait for, such as writing the reserve file.

It starts with the first piece of work and ends at `close`. Work is handed over in any thread, in a handler of a signal
too: that takes no lock which the interrupted code could hold.
"""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger("duetime.sqlite")

Work = Callable[[], None]


class BackgroundThread:
    """Does one piece of work after the other, in the order in which they were handed over."""

    def __init__(self) -> None:
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def hand_over(self, work: Work) -> bool:
        """False if it will not be done: the thread is closed, or the system starts no further threads."""
        if self._is_closed:
            return False
        if self._thread is None:
            self._thread = thread = threading.Thread(target=self._main, name="duetime-sqlite-background", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self._thread = None
                return False
        self._inbox.put(work)
        return True

    def close(self) -> None:
        """Does what was handed over, and ends. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._inbox.put(None)
        if self._thread is not None:
            self._thread.join()

    def _main(self) -> None:
        while (work := self._inbox.get()) is not None:
            try:
                work()
            except Exception:
                # Whoever needs the result does the work itself then, and hears of the error.
                log.exception("sqlite_background_work_failed")

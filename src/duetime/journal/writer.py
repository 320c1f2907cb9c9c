"""Group commit for the journal: entries gather in memory, a thread writes them, one write and one sync per group.

Callers number and encode their entries themselves, which costs about a microsecond each and keeps the thread, and with
it the interpreter's lock, out of their way. A group that cannot be written is told so to those who wait for it, and is
written again until it goes: seq has no gaps, and what happened in the store is in the journal in the end.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue

from duetime.job import Event
from duetime.journal.events import Draft
from duetime.journal.files import NodeFiles
from duetime.journal.lines import place_of, write_draft
from duetime.journal.options import Fsync, JournalOptions, node_name

log = logging.getLogger("duetime.journal")

LINGER_S = 0.05
"""How long entries that nobody waits for stay in memory."""
RETRY_S = 0.2
LOOK_S = 1.0
LOOK_BYTES = 8 * 1_048_576
"""How often, and after how many bytes at the latest, the free space is looked at."""
MAX_BACKLOG = 64 * 1_048_576
CLOSE_S = 10.0
"""How long a close tries to write what is left."""

SOON, NOW = 1, 2

Waiter = Callable[[OSError | None], None]
"""Called in the writer's thread when the group is written, or could not be."""


class Writer:
    """One node's journal. `append` and `flush` are for any thread; nothing here blocks but `close` and `flush`.

    `failure` is why the last group could not be written, `free` the bytes left on the disk, `entries` and `groups`
    what was written so far.
    """

    def __init__(
        self, options: JournalOptions, *, tell: Callable[[Sequence[Waiter], OSError | None], None] | None = None
    ) -> None:
        """`tell` brings a group's outcome to all who wait for it, from the writer's thread."""
        self.options = options
        self.node = node_name(options)
        self.seq = 0
        self.failure: OSError | None = None
        self.free = 0
        self.backlog = 0
        self.entries = 0
        self.groups = 0
        self._tell = tell or _tell_each
        self._place = place_of(0, self.node, 0).replace(b":0,", b":%d,")
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._waiters: list[Waiter] = []
        self._rung = 0
        self._bell: SimpleQueue[int] = SimpleQueue()
        self._files: NodeFiles | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False
        # The rest is the thread's own.
        self._unwritten = b""
        self._looked_at = self._synced_at = 0.0
        self._unlooked = 0
        self._dirty = False

    # --- for its users

    @property
    def is_open(self) -> bool:
        return self._thread is not None

    def open(self) -> None:
        """Make the node's folder and begin. Raises OSError."""
        durable = self.options.fsync is not Fsync.OFF
        self._files = NodeFiles.create(self.options.folder, self.node, durable=durable)
        self._look()
        self._thread = threading.Thread(target=self._run, args=[self._files], name="duetime journal", daemon=True)
        self._thread.start()

    def append(self, drafts: Iterable[Draft], waiter: Waiter | None = None, *, hurry: bool = True) -> None:
        """Number the drafts and put them in line; `waiter` is told when they are written.

        Without a waiter they are written soon; without `hurry` only with the next who has either.
        """
        with self._lock:
            self._append(drafts, waiter, hurry=hurry)

    def _append(self, drafts: Iterable[Draft], waiter: Waiter | None, *, hurry: bool = True) -> None:
        now = time.time_ns() // 1_000_000
        seq, lines = self.seq, self._lines
        for draft in drafts:
            seq += 1
            lines.append(write_draft(draft, self._place % (now, seq)))
        self.seq = seq
        if hurry:
            self._ring(waiter)

    def flush(self, timeout_s: float = CLOSE_S) -> None:
        """Wait until everything appended so far is written. Raises OSError if it is not."""
        done = threading.Event()
        outcome: list[OSError | None] = []

        def told(error: OSError | None) -> None:
            outcome.append(error)
            done.set()

        with self._lock:
            self._ring(told)
        if not done.wait(timeout_s):
            raise OSError(f"the journal was not written within {timeout_s} s")
        if outcome[0]:
            raise outcome[0]

    def close(self) -> None:
        """Write what is left and the end, seal, let go of the node. What cannot be written stays for a successor."""
        if self._thread is None:
            return
        with self._lock:
            self._stopping = True
            self._append([Draft(ts=time.time_ns() // 1_000_000, event=Event.CLOSED)], _nobody)
        self._thread.join()
        self._thread = None

    def _ring(self, waiter: Waiter | None) -> None:
        wanted = SOON
        if waiter:
            self._waiters.append(waiter)
            wanted = NOW
        if self._rung < wanted:
            self._rung = wanted
            self._bell.put(wanted)

    # --- the thread

    def _run(self, files: NodeFiles) -> None:
        give_up_at = float("inf")
        while True:
            self._wait(files)
            with self._lock:
                lines, self._lines = self._lines, []
                waiters, self._waiters = self._waiters, []
                last, stopping, self._rung = self.seq, self._stopping, 0
            self._write(files, lines, waiters, last)
            self._keep_house(files)
            if stopping:
                give_up_at = min(give_up_at, time.monotonic() + CLOSE_S)
                if not self._unwritten or time.monotonic() >= give_up_at:
                    break
        self._leave(files)

    def _wait(self, files: NodeFiles) -> None:
        try:
            if self._bell.get(timeout=self._pause(files)) == SOON:
                self._bell.get(timeout=LINGER_S)
        except Empty:
            return

    def _pause(self, files: NodeFiles) -> float | None:
        """Until the next thing that is due by the clock."""
        if self._unwritten:
            return RETRY_S
        times: list[float] = []
        if files.is_open:
            times.append(files.opened_at + self.options.segment_age_s)
        if self._dirty:
            times.append(self._synced_at + self.options.interval_s)
        if self._is_full:
            times.append(self._looked_at + LOOK_S)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _write(self, files: NodeFiles, lines: Sequence[bytes], waiters: Sequence[Waiter], last: int) -> None:
        data = b"".join([self._unwritten, *lines]) if self._unwritten else b"".join(lines)
        error: OSError | None = None
        if data:
            try:
                files.write(data, last, sync=self.options.fsync is Fsync.ALWAYS)
            except OSError as failed:
                error = failed
                self._failed(failed)
                self._unwritten, self.backlog = data, len(data)
            else:
                self._written(len(data), last)
        if waiters:
            self._tell(waiters, error)

    def _written(self, size: int, last: int) -> None:
        if self.failure:
            log.info("journal_works", extra={"node": self.node})
        self.failure = None
        self._unwritten, self.backlog = b"", 0
        self.entries, self.groups = last, self.groups + 1
        self._unlooked += size
        if self.options.fsync is Fsync.INTERVAL and not self._dirty:
            self._dirty = True
            self._synced_at = time.monotonic()

    def _failed(self, error: OSError) -> None:
        if self.failure is None:
            log.error("journal_fails", extra={"node": self.node, "error": str(error)})
        self.failure = error
        self._look()

    @property
    def _is_full(self) -> bool:
        return self.free < self.options.reserve

    def _keep_house(self, files: NodeFiles) -> None:
        now = time.monotonic()
        try:
            if self._dirty and now >= self._synced_at + self.options.interval_s:
                files.sync()
                self._dirty = False
            if files.is_open and (
                files.size >= self.options.segment_size or now >= files.opened_at + self.options.segment_age_s
            ):
                files.seal()
                self._dirty = False
        except OSError as error:
            self._failed(error)
        if now >= self._looked_at + LOOK_S or self._unlooked >= LOOK_BYTES:
            self._look()

    def _look(self) -> None:
        """How much room is there?"""
        self._looked_at, self._unlooked = time.monotonic(), 0
        try:
            found = os.statvfs(self.options.folder)
        except OSError:
            self.free = 0
        else:
            self.free = found.f_bavail * found.f_frsize

    def _leave(self, files: NodeFiles) -> None:
        try:
            if self._unwritten:
                raise OSError(f"{len(self._unwritten)} bytes could not be written")
            files.close()
        except OSError as error:
            log.error("journal_not_closed", extra={"node": self.node, "error": str(error)})
            files.desert()
        with self._lock:
            waiters, self._waiters = self._waiters, []
        if waiters:
            self._tell(waiters, OSError("the journal is closed"))


def _tell_each(waiters: Sequence[Waiter], error: OSError | None) -> None:
    for waiter in waiters:
        waiter(error)


def _nobody(error: OSError | None) -> None:
    """Wakes the writer; waits for nothing."""

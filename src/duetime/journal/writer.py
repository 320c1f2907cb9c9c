"""Group commit for the journal: entries gather in memory, a thread writes them, one write and one sync per group.

The calling thread numbers and encodes its entries itself, which costs about a microsecond each; if the writer's thread
did that, the two would compete for the interpreter's lock. Where no caller waits for the disk, the calling thread also
writes the entries: handing them to the operating system costs less than waking the thread, as long as the disk keeps
up. If a group cannot be written, the callers that wait for it get the error, and the writer tries again until it
succeeds: seq has no gaps, and every change of the store is in the journal in the end.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from duetime.journal.events import Draft, place_before_seq, write_draft
from duetime.journal.options import Fsync, JournalOptions, node_name
from duetime.journal.segments import LOCK, Lock, open_name, sealed_name, sync_folder
from duetime.model.errors import JournalFull, StoreUnavailable
from duetime.model.job import Event
from duetime.stores.base import ResultSink

log = logging.getLogger("duetime.journal")

LINGER_S = 0.05
"""How long entries stay in memory if no caller waits for them."""
RETRY_S = 0.2
CHECK_DISK_S = 1.0
CHECK_DISK_BYTES = 8 * 1_048_576
"""The free space is checked when it was last checked this long ago, or when this many bytes were written since."""
MAX_BACKLOG = 64 * 1_048_576
CLOSE_S = 10.0
"""How long `close` tries to write the rest, and how long `flush` waits by default."""

SLOW_S = 0.01
"""If a write by a calling thread takes longer than this, the disk does not keep up ..."""
REST_S = 5.0
"""... and for this long only the writer's thread writes."""

SOON, NOW = 1, 2

Numbered = Callable[[bytes, int], Sequence[bytes]]
"""Makes numbered lines. It gets the text with which every line's JSON begins, up to the seq, and the first seq."""


def send_replies(replies: Sequence[ResultSink[None]], error: Exception | None) -> None:
    for reply in replies:
        try:
            if reply.done():
                continue  # its caller was cancelled
            if error is None:
                reply.set_result(None)
            else:
                reply.set_exception(error)
        except Exception:
            log.exception("journal_reply_failed")


class Writer:
    """One node's journal. `append` and `flush` are for any thread. `open`, `flush` and `close` may wait for the disk.

    `failure` is why the last group could not be written, None if it was written. `free` is how many bytes are left on
    the disk; `backlog` how many bytes could not be written yet; `entries`, `groups` and `size` (bytes) how much was
    written so far.
    """

    def __init__(self, options: JournalOptions, *, as_error: Callable[[Exception], Exception] = lambda e: e) -> None:
        """`as_error` makes what waiting callers get from the error of a write."""
        self.options = options
        self.node = node_name(options)
        self.seq = 0
        self.failure: Exception | None = None
        self.free = 0
        self.backlog = 0
        self.entries = 0
        self.groups = 0
        self.size = 0
        self.is_open = False
        self.writes_through = options.fsync is not Fsync.ALWAYS
        """Whether `write_through` may write. Otherwise every group is synced, which only the writer's thread does."""
        self._as_error = as_error
        self._call_soon: Callable[..., object] = _call
        # The text with which the JSON of every entry begins, up to the seq; the time is filled in later.
        self._place = place_before_seq(0, self.node).replace(b":0,", b":%d,", 1)
        self._lock = threading.Lock()
        # The thread that writes to the disk holds this lock; it is always taken before `_lock`.
        self._disk = threading.Lock()
        self._trust_at = 0.0
        self._lines: list[bytes] = []
        self._replies: list[ResultSink[None]] = []
        self._wanted = 0
        self._signals: SimpleQueue[int] = SimpleQueue()
        self._files: NodeFiles | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False
        # What could not be written yet, and when the disk was last checked and synced; written data sets `_dirty`.
        self._unwritten: list[bytes] = []
        self._checked_at = self._synced_at = 0.0
        self._unchecked = 0
        self._dirty = False

    # --- for its users

    def open(self, call_soon: Callable[..., object] | None = None) -> None:
        """Make the node's folder and begin. `call_soon(function, *arguments)` has the replies sent, by default in the
        writer's thread. Raises OSError.
        """
        self._call_soon = call_soon or _call
        durable = self.options.fsync is not Fsync.OFF
        self._files = NodeFiles.create(self.options.folder, self.node, durable=durable)
        self._check_disk()
        thread = threading.Thread(target=self._run, args=[self._files], name="duetime journal", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system allows no more threads
            self._files.leave_to_successor()
            raise OSError(str(error)) from error
        self._thread, self.is_open = thread, True

    def check(self, *, is_push: bool) -> None:
        """Check before a store call that its events can be recorded. Raises StoreUnavailable, and JournalFull for a
        push if the disk is nearly full.
        """
        if self.backlog > MAX_BACKLOG or (is_push and self.failure):
            raise StoreUnavailable(f"the journal cannot be written: {self.failure}")
        if is_push and self.free < self.options.reserve:
            raise JournalFull(
                f"the disk of the journal has {self.free:,} bytes left, of which {self.options.reserve:,} are kept for "
                "deliveries and acks",
            )

    def append(self, drafts: Iterable[Draft], *, write_soon: bool) -> None:
        """Number the drafts and queue them. With `write_soon` the thread writes them within LINGER_S; otherwise the
        next write includes them.
        """

        def numbered(place: bytes, seq: int) -> list[bytes]:
            return [write_draft(draft, b"%b%d," % (place, at)) for at, draft in enumerate(drafts, seq)]

        self.append_lines(numbered, write_soon=write_soon)

    def append_lines(self, numbered: Numbered, *, write_soon: bool) -> None:
        """As `append`, for callers that make lines faster than drafts can be encoded."""
        with self._lock:
            lines = numbered(self._place % (time.time_ns() // 1_000_000), self.seq + 1)
            self._lines.extend(lines)
            self.seq += len(lines)
            is_signalled = not write_soon or self._wanted >= SOON
            self._wanted = self._wanted if is_signalled else SOON
        if not is_signalled:
            self._signals.put(SOON)

    def flush_to(self, reply: ResultSink[None]) -> None:
        """Write everything in line, and send `reply` the outcome."""
        with self._lock:
            self._replies.append(reply)
            is_signalled, self._wanted = self._wanted == NOW, NOW
        if not is_signalled:
            self._signals.put(NOW)

    def write_through(self) -> bool:
        """Hand all entries in line to the operating system in this call; False if the thread has to do it.

        The thread has to do it unless `writes_through`, while it is writing, and while the disk is slow or failing.
        """
        files = self._files
        if files is None or not self.writes_through or not self._disk.acquire(blocking=False):
            return False
        try:
            began = time.monotonic()
            if self._unwritten or began < self._trust_at:
                return False
            # A new segment and the first unsynced write give the thread something to do at a later time: wake it.
            is_first = not files.is_open or not self._dirty
            with self._lock:
                lines, self._lines = self._lines, []
                last = self.seq
            if self._write(files, lines, last):
                return False
            if (took := time.monotonic() - began) > SLOW_S:
                self._trust_at = began + took + REST_S
            if is_first or files.size >= self.options.segment_size:
                self._signals.put(NOW)
            return True
        finally:
            self._disk.release()

    def flush(self, timeout_s: float = CLOSE_S) -> None:
        """Wait until everything appended so far is written. Raises the error if it is not, mostly an OSError."""
        written: Future[None] = Future()
        self.flush_to(written)
        try:
            written.result(timeout_s)
        except TimeoutError:
            if written.done():
                raise
            raise OSError(f"the journal was not written within {timeout_s} s") from None

    def close(self) -> None:
        """Write the rest and a closed entry, seal the segment and release the lock. If that fails, the node stays as
        it is for a successor to close.
        """
        if self._thread is None:
            return
        self.append([Draft(ts=time.time_ns() // 1_000_000, event=Event.CLOSED)], write_soon=False)
        self._stopping = True
        self._signals.put(NOW)
        self._thread.join()
        self._thread, self.is_open = None, False

    # --- the thread

    def _run(self, files: "NodeFiles") -> None:
        give_up_at = float("inf")
        pause_s: float | None = None
        while True:
            with suppress(Empty):
                if self._signals.get(timeout=pause_s) == SOON:
                    self._signals.get(timeout=LINGER_S)
            with self._disk:
                with self._lock:
                    stopping = self._stopping
                    lines, self._lines = self._lines, []
                    replies, self._replies = self._replies, []
                    last, self._wanted = self.seq, 0
                error = self._write(files, lines, last)
            if replies:
                with suppress(RuntimeError):  # the event loop is closed, so no caller waits any longer
                    self._call_soon(send_replies, replies, self._as_error(error) if error else None)
            pause_s = self._maintain(files)
            if stopping:
                give_up_at = min(give_up_at, time.monotonic() + CLOSE_S)
                if not self._unwritten or time.monotonic() >= give_up_at:
                    break
        self._leave(files)

    def _write(self, files: "NodeFiles", lines: list[bytes], last: int) -> Exception | None:
        """Write these lines, after those that could not be written before. Returns the error if that failed.

        It catches every error, such as a lack of memory: if this thread ended, no push would ever be answered.
        """
        lines = [*self._unwritten, *lines] if self._unwritten else lines
        if not lines:
            return None
        try:
            data = b"".join(lines)
            files.write(data, last, sync=self.options.fsync is Fsync.ALWAYS)
        except Exception as error:
            self._failed(error)
            self._unwritten, self.backlog = lines, sum(map(len, lines))
            return error
        if self.failure:
            log.info("journal_works", extra={"node": self.node})
        self.failure = None
        self._unwritten, self.backlog = [], 0
        self.entries, self.groups, self.size = last, self.groups + 1, self.size + len(data)
        self._unchecked += len(data)
        if self._unchecked >= CHECK_DISK_BYTES:
            self._check_disk()
        if self.options.fsync is Fsync.INTERVAL and not self._dirty:
            self._dirty, self._synced_at = True, time.monotonic()
        return None

    def _maintain(self, files: "NodeFiles") -> float | None:
        """Sync, seal and check the free space when it is time. Returns the seconds until the next of these or the next
        retry; None if there is none to wait for.
        """
        options, now = self.options, time.monotonic()
        try:
            if self._dirty and now >= self._synced_at + options.interval_s:
                self._sync(files, now)
            if files.is_open and (files.size >= options.segment_size or now >= files.opened_at + options.segment_age_s):
                with self._disk:
                    files.detach()
            if files.detached:
                files.seal()
        except Exception as error:
            self._failed(error)
        if now >= self._checked_at + CHECK_DISK_S:
            self._check_disk()
        if self._unwritten:
            return RETRY_S
        times: list[float] = []
        if files.is_open:
            times.append(files.opened_at + options.segment_age_s)
        if self._dirty:
            times.append(self._synced_at + options.interval_s)
        if self.free < options.reserve:
            times.append(self._checked_at + CHECK_DISK_S)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _failed(self, error: Exception) -> None:
        if self.failure is None:
            log.error("journal_fails", extra={"node": self.node, "error": str(error) or repr(error)})
        self.failure = error
        self._check_disk()

    def _sync(self, files: "NodeFiles", now: float) -> None:
        """Sync written data. A write during it sets `_dirty` again; a failed sync is repeated after the interval."""
        self._dirty = False
        try:
            files.sync()
        except Exception:
            self._dirty, self._synced_at = True, now
            raise

    def _check_disk(self) -> None:
        """Check how many bytes are free on the disk."""
        self._checked_at, self._unchecked = time.monotonic(), 0
        try:
            found = os.statvfs(self.options.folder)
        except OSError:
            self.free = 0
        else:
            self.free = found.f_bavail * found.f_frsize

    def _leave(self, files: "NodeFiles") -> None:
        try:
            if self._unwritten:
                raise OSError(f"{self.backlog} bytes could not be written")
            files.close()
        except Exception as error:
            log.error("journal_not_closed", extra={"node": self.node, "error": str(error)})
            files.leave_to_successor()
        with self._lock:
            replies, self._replies = self._replies, []
        if replies:
            with suppress(RuntimeError):
                self._call_soon(send_replies, replies, self._as_error(OSError("the journal is closed")))


def _call(function: Callable[..., object], *arguments: object) -> None:
    function(*arguments)


class Detached(NamedTuple):
    """A segment that gets no more entries and waits to be sealed. `first` and `last` are the seqs of its entries."""

    handle: int
    first: int
    last: int


class NodeFiles:
    """A node's folder as its process writes it: one open segment, which is sealed by renaming it. `last` is the seq of
    the last entry that was written, `size` the bytes in the open segment.

    `write` and `detach` are for one thread at a time; `sync` and `seal`, which wait for the disk, may run in another
    thread meanwhile. Every method may raise OSError. After a failed write the segment is cut back to the last whole
    group, and the next write goes to a new segment, so that the caller can write the failed group again.
    """

    def __init__(self, node: Path, lock: Lock, *, durable: bool) -> None:
        self.node = node
        self.last = 0
        self.size = 0
        self.opened_at = 0.0
        self.is_open = False
        self.detached: list[Detached] = []
        self._lock = lock
        self._durable = durable
        self._handle = -1
        self._first = 0
        self._new_name = False

    @classmethod
    def create(cls, journal: Path, name: str, *, durable: bool) -> "NodeFiles":
        """Make the folder under a hidden name, lock it, then rename it: no process can see the folder without a lock
        and treat the node as dead.
        """
        journal.mkdir(0o700, parents=True, exist_ok=True)
        hidden = journal / f".{name}"
        hidden.mkdir(0o700)
        lock = Lock.acquire(hidden, create=True)
        if lock is None:
            raise OSError(f"{hidden} is locked by another process")
        node = hidden.rename(journal / name)
        if durable:
            sync_folder(journal)
        lock.path = node / LOCK
        return cls(node, lock, durable=durable)

    def write(self, data: bytes, last: int, *, sync: bool) -> None:
        """Write a group of complete lines, up to the entry `last`: all of it or none. `sync` waits for the disk."""
        try:
            if not self.is_open:
                self._open()
            written = os.write(self._handle, data)
            while written < len(data):
                written += os.write(self._handle, data[written:])
            if sync:
                os.fdatasync(self._handle)
                if self._new_name:
                    self._sync_name()
        except Exception:
            self._abandon()
            raise
        self.size += len(data)
        self.last = last

    def sync(self) -> None:
        """Wait until everything written so far is on the disk."""
        if self.is_open:
            os.fdatasync(self._handle)
        if self._new_name:
            self._sync_name()

    def _sync_name(self) -> None:
        self._new_name = False
        sync_folder(self.node)

    def detach(self) -> None:
        """Set the open segment aside to be sealed; the next write opens a new one."""
        if self.is_open:
            self.detached.append(Detached(self._handle, self._first, self.last))
            self.is_open, self._handle = False, -1

    def seal(self) -> None:
        """Seal the detached segments. If one fails, it and those behind it stay for the next call."""
        while self.detached:
            segment = self.detached[0]
            if self._durable:
                os.fsync(segment.handle)
            path = self.node / open_name(segment.first)
            path.rename(self.node / sealed_name(segment.first, segment.last))
            os.close(segment.handle)
            self.detached.pop(0)
            if self._durable:
                sync_folder(self.node)

    def close(self) -> None:
        """Seal all segments and delete the lock: nothing will be written here again."""
        self.detach()
        self.seal()
        self._lock.release(ended=True)

    def leave_to_successor(self) -> None:
        """Release a folder that cannot be closed, so that a successor can close it."""
        self.detach()
        for segment in self.detached:
            os.close(segment.handle)
        self._lock.release(ended=False)

    def _open(self) -> None:
        path = self.node / open_name(self.last + 1)
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._first, self.size, self.opened_at = self.last + 1, 0, time.monotonic()
        self.is_open, self._new_name = True, self._durable

    def _abandon(self) -> None:
        """Cut the open segment back and stop using it: after a failed write it may hold half a line, and after a
        failed sync its content is unknown.
        """
        if not self.is_open:
            return
        with suppress(OSError):
            os.ftruncate(self._handle, self.size)
        if self.size:
            self.detach()
            return
        with suppress(OSError):
            os.close(self._handle)
        self.is_open, self._handle = False, -1
        with suppress(OSError):
            (self.node / open_name(self._first)).unlink(missing_ok=True)

"""Where a worker runs its jobs: in processes, or in its own process, in threads and on the event loop.

`ProcessPool` runs plain functions, one at a time in each process, with a timeout that really ends them. A process has
an inbox with at most `depth` jobs in it. Jobs that wait behind one that takes long are taken back out of the inbox and
given to another process. A job whose time is over gets a signal, which the task sees as TimedOut; a second later its
process is killed. Either way the process is replaced. `LocalPool` is the other one.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from duetime.worker.current_job import JobLink
from duetime.worker.execution import ThreadLoop, ended_by, execute, execute_async
from duetime.worker.fork_server import (
    BUFFER,
    END,
    NUMBER,
    STOP_SOON,
    ForkServer,
    forget,
    read_answer,
    socket_pair,
    write_job,
)
from duetime.worker.runs import (
    BACK,
    DONE,
    GRACE_S,
    TIMED_OUT,
    Ended,
    Failure,
    Outcome,
    PoolHost,
    Run,
    TimedOut,
    resident_mb,
)

if TYPE_CHECKING:
    from duetime.worker.app import App

log = logging.getLogger("duetime.worker")

STUCK_S = 0.03
"""A job that runs for longer than this keeps none waiting behind it."""
CLOSE_S = 5.0
MESSAGES_PER_TURN = 256
"""Messages of one process that are read before the others get their turn."""
DIED = "duetime.ProcessDied"


class PoolChild:
    """One process and its inbox. `runs` are the jobs in it, the first one running. It takes no more when `ending`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid = 0
        self.sock, self.end = socket_pair()
        self.sock.setblocking(False)
        self.runs: deque[Run] = deque()
        self.ending = False
        self.stuck = False
        self.timed_out = False
        self.kill_at = 0.0

    def take_back(self) -> list[Run]:
        """Take jobs that the process has not read yet back out of its inbox."""
        numbers: set[int] = set()
        while True:
            try:
                message = self.end.recv(BUFFER, socket.MSG_DONTWAIT)
            except OSError:
                break
            if not message or message == END:
                break
            numbers.add(forget(message))
        taken = [run for run in self.runs if run.number in numbers]
        self.runs = deque(run for run in self.runs if run.number not in numbers)
        return taken

    def close(self) -> None:
        self.sock.close()
        self.end.close()


class ProcessPool:
    def __init__(self, host: PoolHost, fork_server: ForkServer, size: int) -> None:
        self.depth = 1
        self._host = host
        self._fork_server = fork_server
        self._size = size
        self._children: dict[int, PoolChild] = {}
        self._numbers = 0
        self._closing = False
        self._fork_server_lost = False
        self._all_gone = asyncio.Event()

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children.values() if child.pid]

    async def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._fork_server.sock, self._notes)
        for _ in range(self._size):
            self._fork()

    def _fork(self) -> None:
        self._numbers += 1
        child = self._children[self._numbers] = PoolChild(self._numbers)
        self._fork_server.fork(child.number, child.end)
        asyncio.get_running_loop().add_reader(child.sock, self._hear, child)

    def resize(self, size: int) -> None:
        self._size = size
        serving = [child for child in self._children.values() if not child.ending]
        for _ in range(size - len(serving)):
            self._fork()
        # Those that do nothing go first; a busy one goes after its job.
        for child in sorted(serving, key=lambda one: len(one.runs))[: max(0, len(serving) - size)]:
            self._retire(child)

    def _retire(self, child: PoolChild) -> None:
        """Let a process end after the job that it runs."""
        child.ending = True
        self._return(child.take_back())
        if not child.runs:
            self._end(child)

    # --- jobs

    def room(self) -> int:
        return sum(self._room_of(child) for child in self._children.values())

    def _room_of(self, child: PoolChild) -> int:
        """How many more jobs a process accepts: none while it runs a long job."""
        if child.ending or (child.stuck and child.runs):
            return 0
        return max(0, self.depth - len(child.runs))

    def submit(self, run: Run) -> bool:
        # A process from which a job was taken back is slow: others first.
        child = max(self._children.values(), key=lambda one: (self._room_of(one), not one.stuck), default=None)
        if child is None or not self._room_of(child):
            return False
        message = write_job(run.number, run.info())
        try:
            child.sock.send(message)
        except OSError:  # full, or the process has just died
            forget(message)
            return False
        child.runs.append(run)
        if len(child.runs) == 1:
            self._begin(run)
        return True

    def _begin(self, run: Run) -> None:
        run.begin()
        self._host.began(run)

    def _hear(self, child: PoolChild) -> None:
        for _ in range(MESSAGES_PER_TURN):
            try:
                message = child.sock.recv(BUFFER)
            except OSError:
                return
            if not message:
                return
            self._answer(child, message)

    def _answer(self, child: PoolChild, message: bytes) -> None:
        if len(message) == NUMBER:
            number, outcome, word = int.from_bytes(message, "big"), DONE, None
        else:
            number, outcome, word = read_answer(message)
        if not child.runs or child.runs[0].number != number:
            return
        run = child.runs[0]
        if word is not None:
            self._host.said(run, *word)
        if outcome is None:
            return
        child.runs.popleft()
        child.stuck = False
        if child.timed_out:
            self._fork_server.kill(child.number, signal.SIGKILL)
        elif child.runs:
            self._begin(child.runs[0])
        elif child.ending:
            self._end(child)
        if run.started_at or outcome.ended is Ended.DONE:
            self._host.ended(run, outcome)
        else:  # the signal for the job before it hit this one
            self._host.returned(run)

    def check(self, now: float) -> None:
        for child in list(self._children.values()):
            if not child.runs:
                continue
            run = child.runs[0]
            if child.kill_at and now > child.kill_at:
                self._fork_server.kill(child.number, signal.SIGKILL)
                child.kill_at = now + GRACE_S
            elif run.deadline and now > run.deadline and not child.timed_out:
                self._time_out(child, now)
            elif now - run.started_at > STUCK_S and not child.stuck:
                child.stuck = True
                self._return(child.take_back())

    def _time_out(self, child: PoolChild, now: float) -> None:
        self._hear(child)
        if not child.runs or not 0 < child.runs[0].deadline < now:
            return  # the process ended in this moment
        child.ending = child.timed_out = True
        child.kill_at = now + GRACE_S
        self._return(child.take_back())
        self._fork_server.kill(child.number, signal.SIGUSR1)

    def _return(self, runs: list[Run]) -> None:
        for run in reversed(runs):
            run.take_back()
            self._host.returned(run)

    def check_memory(self, limit_mb: float) -> None:
        for child in self._children.values():
            if child.pid and not child.ending and resident_mb(child.pid) > limit_mb:
                self._retire(child)

    # --- processes

    def _end(self, child: PoolChild) -> None:
        child.ending = True
        with contextlib.suppress(OSError):
            child.sock.send(END)

    def _notes(self) -> None:
        try:
            notes = self._fork_server.read_notes()
        except ConnectionError:
            asyncio.get_running_loop().remove_reader(self._fork_server.sock)
            log.critical("fork_server_lost")
            self._fork_server_lost = True
            self._host.broken()
            return
        for kind, number, value in notes:
            child = self._children.get(number)
            if child is None:
                continue
            if kind == b"s":
                child.pid = value
            else:
                self._gone(child, value)

    def _gone(self, child: PoolChild, status: int) -> None:
        asyncio.get_running_loop().remove_reader(child.sock)
        self._hear(child)
        del self._children[child.number]
        unread = child.take_back()
        child.close()
        for run in child.runs:
            if self._closing:
                self._host.ended(run, BACK)
            elif run.started_at:
                self._host.ended(run, _death(run, status, timed_out=child.timed_out))
            else:
                unread.insert(0, run)
        self._return(unread)
        if not self._closing:
            if sum(not one.ending for one in self._children.values()) < self._size:
                self._fork()
            self._host.widened()
        elif not self._children:
            self._all_gone.set()

    def warn(self) -> None:
        for child in self._children.values():
            self._fork_server.kill(child.number, STOP_SOON)

    async def close(self, *, force: bool) -> None:
        self._closing = True
        for child in self._children.values():
            if force:
                self._fork_server.kill(child.number, signal.SIGKILL)
            else:
                self._end(child)
        if self._children and not self._fork_server_lost:  # without the fork server their ends are not reported
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._all_gone.wait()
            except TimeoutError:
                pass  # the fork server ends those that are left
        asyncio.get_running_loop().remove_reader(self._fork_server.sock)
        self._fork_server.close()


def _death(run: Run, status: int, *, timed_out: bool) -> Outcome:
    if timed_out:
        ran_s = time.monotonic() - run.started_at
        return Outcome(Ended.TIMED_OUT, Failure(TIMED_OUT, f"the job was killed {ran_s:.1f}s after it began"))
    code = os.waitstatus_to_exitcode(status)
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
    return Outcome(Ended.GONE, Failure(DIED, f"the process that ran the job ended {how}"))


# --- threads and asyncio

LATE = Outcome(Ended.TIMED_OUT, Failure(TIMED_OUT, str(TimedOut())))


class LocalSlot:
    """One running job: a task of the loop, or a thread. `leave_at` is when it is left behind."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.task: asyncio.Task[None] | None = None
        self.thread = 0
        self.leave_at = 0.0


class LocalPool:
    """A pool inside the worker's own process: async tasks on its event loop, plain ones in threads.

    Both `--pool asyncio` and `--pool threads` are this one; they differ in how many jobs run at a time by default. A
    job whose time is over is cancelled, or finds TimedOut raised in its thread at its next line of Python. What does
    not react within a second is left behind: its job goes on as timed out, and its thread ends when it ends.
    """

    def __init__(self, host: PoolHost, app: "App", size: int) -> None:
        self.depth = 1
        self._host = host
        self._app = app
        self._size = size
        self._slots: dict[int, LocalSlot] = {}
        self._inbox: SimpleQueue[LocalSlot | None] = SimpleQueue()
        self._idle_threads = 0
        self._loop = asyncio.get_running_loop()
        self._posted: deque[Callable[[], None]] = deque()
        self._is_posted = False
        self._stopping = False

    async def start(self) -> None:
        """Threads are started when they are needed."""

    def resize(self, size: int) -> None:
        self._size = size

    def room(self) -> int:
        return max(0, self._size - len(self._slots))

    def submit(self, run: Run) -> bool:
        if len(self._slots) >= self._size:
            return False
        slot = self._slots[run.number] = LocalSlot(run)
        run.begin()
        self._host.began(run)
        if self._is_async(run):
            slot.task = self._loop.create_task(self._run_async(slot))
        else:
            self._inbox.put(slot)
            if self._idle_threads:
                self._idle_threads -= 1
            else:
                threading.Thread(target=self._work, name="duetime job", daemon=True).start()
        return True

    def _is_async(self, run: Run) -> bool:
        task = self._app.find_task(run.payload.name)
        return task is not None and task.is_async

    # --- on the loop

    async def _run_async(self, slot: LocalSlot) -> None:
        run = slot.run
        try:
            link = JobLink(partial(self._host.said, run), self._is_stopping)
            outcome = await execute_async(self._app, run.info(), link, run.payload)
        except (
            asyncio.CancelledError
        ) as error:  # without a timeout the task has raised it: `close` has removed the slot
            outcome = LATE if slot.leave_at else ended_by(error)
        self._ended(slot, outcome)

    def _ended(self, slot: LocalSlot, outcome: Outcome) -> None:
        if self._slots.get(slot.run.number) is not slot:
            return  # the job timed out and was left behind
        del self._slots[slot.run.number]
        self._host.ended(slot.run, LATE if slot.leave_at and outcome.ended is not Ended.DONE else outcome)

    def check(self, now: float) -> None:
        for slot in list(self._slots.values()):
            if slot.leave_at and now > slot.leave_at:
                self._ended(slot, LATE)
            elif slot.run.deadline and now > slot.run.deadline and not slot.leave_at:
                slot.leave_at = now + GRACE_S
                self._interrupt(slot)

    def _interrupt(self, slot: LocalSlot) -> None:
        if slot.task is not None:
            slot.task.cancel()
        elif slot.thread:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(slot.thread), ctypes.py_object(TimedOut))

    def check_memory(self, limit_mb: float) -> None:
        """Nothing to do: the worker watches the memory of its own process."""

    def warn(self) -> None:
        self._stopping = True

    def _is_stopping(self) -> bool:
        return self._stopping

    async def close(self, *, force: bool) -> None:
        for slot in list(self._slots.values()) if force else []:
            if slot.task is not None:
                slot.task.cancel()
            self._ended(slot, BACK)
        for _ in range(threading.active_count()):
            self._inbox.put(None)

    # --- in a thread

    def _work(self) -> None:
        loop = ThreadLoop()
        while (slot := self._inbox.get()) is not None:
            slot.thread = threading.get_ident()
            link = JobLink(partial(self._say, slot.run), self._is_stopping)
            outcome = _guarded(self._app, slot.run, link, loop)
            slot.thread = 0
            if slot.leave_at:
                self._post(lambda slot=slot, outcome=outcome: self._ended(slot, outcome))
                return  # TimedOut may still be on its way to this thread: it must not hit another job
            self._post(lambda slot=slot, outcome=outcome: self._free(slot, outcome))

    def _free(self, slot: LocalSlot, outcome: Outcome) -> None:
        self._idle_threads += 1
        self._ended(slot, outcome)

    def _say(self, run: Run, word: str, value: Any) -> None:
        self._post(lambda: self._host.said(run, word, value))

    def _post(self, call: Callable[[], None]) -> None:
        """Run `call` on the loop; calls that are posted together wake the loop once."""
        self._posted.append(call)
        if not self._is_posted:
            self._is_posted = True
            try:
                self._loop.call_soon_threadsafe(self._run_posted)
            except RuntimeError:
                return  # the loop is closed: nothing waits for this any more

    def _run_posted(self) -> None:
        """Run what is posted by now: threads may post as fast as this runs it, and the loop has other work."""
        self._is_posted = False
        for _ in range(len(self._posted)):
            self._posted.popleft()()


def _guarded(app: "App", run: Run, link: JobLink, loop: ThreadLoop) -> Outcome:
    """TimedOut can also strike between the lines around the task."""
    try:
        return execute(app, run.info(), link, loop, run.payload)
    except TimedOut:
        return LATE

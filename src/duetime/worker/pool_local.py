"""A pool inside the worker's own process: async tasks on its event loop, plain ones in threads.

Both `--pool asyncio` and `--pool threads` are this one; they differ in how many jobs run at a time if nobody says. A
job whose time is over is cancelled, or finds TimedOut raised in its thread at its next line of Python. What does not
react within a second is left behind: its job goes on as timed out, and its thread ends when it ends.
"""

import asyncio
import ctypes
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from duetime.worker.current_job import JobLink
from duetime.worker.execution import ThreadLoop, execute, execute_async
from duetime.worker.runs import BACK, GRACE_S, TIMED_OUT, Ended, Failure, Outcome, PoolHost, Run, TimedOut

if TYPE_CHECKING:
    from duetime.worker.app import App

LATE = Outcome(Ended.TIMED_OUT, Failure(TIMED_OUT, str(TimedOut())))


class LocalSlot:
    """One running job: a task of the loop, or a thread. `leave_at` is when it is left behind."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.task: asyncio.Task[None] | None = None
        self.thread = 0
        self.leave_at = 0.0


class LocalPool:
    def __init__(self, host: PoolHost, app: "App", size: int) -> None:
        self.depth = 1
        self._host = host
        self._app = app
        self._size = size
        self._slots: dict[int, LocalSlot] = {}
        self._inbox: SimpleQueue[LocalSlot | None] = SimpleQueue()
        self._idle_threads = 0
        self._loop = asyncio.get_running_loop()
        self._news: deque[Callable[[], None]] = deque()
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
        except asyncio.CancelledError:
            outcome = LATE if slot.leave_at else BACK
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

    def _say(self, run: Run, word: str, value: int) -> None:
        self._post(lambda: self._host.said(run, word, value))

    def _post(self, news: Callable[[], None]) -> None:
        """Call it on the loop; calls that arrive together wake the loop once."""
        self._news.append(news)
        if not self._is_posted:
            self._is_posted = True
            try:
                self._loop.call_soon_threadsafe(self._hear)
            except RuntimeError:
                return  # the loop is closed: nobody is waiting for this any more

    def _hear(self) -> None:
        self._is_posted = False
        while self._news:
            self._news.popleft()()


def _guarded(app: "App", run: Run, link: JobLink, loop: ThreadLoop) -> Outcome:
    """TimedOut can also strike between the lines around the task."""
    try:
        return execute(app, run.info(), link, loop, run.payload)
    except TimedOut:
        return LATE

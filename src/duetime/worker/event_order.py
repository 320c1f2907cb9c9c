"""The order in which a worker tells what happened to a job; the sequences are Laravel's."""

import asyncio
import logging
from typing import TYPE_CHECKING

from duetime.worker.events import Listeners, TaskEvent
from duetime.worker.retry_rules import Decision
from duetime.worker.runs import Ended, Failure, Run

if TYPE_CHECKING:
    from duetime.worker.app import App

log = logging.getLogger("duetime.worker")


class EventOrder:
    def __init__(self, app: "App") -> None:
        self._app = app
        self._listeners: Listeners = app.listeners

    def tell(self, name: str, run: Run, *, failure: Failure | None = None, delay_ms: int = 0, reason: str = "") -> None:
        if self._listeners.wanted(name):
            event = TaskEvent(
                name,
                job=run.info(),
                failure=failure,
                delay_ms=delay_ms,
                duration_ms=run.duration_ms,
                reason=reason,
            )
            self._listeners.tell(event)

    def worker(self, event: TaskEvent) -> bool:
        return not self._listeners.wanted(event.name) or self._listeners.tell(event)

    def done(self, run: Run, decision: Decision) -> None:
        """The job was acked: the function returned, or the task cancelled its job."""
        if decision.by_hand:
            self.tell("cancelled", run, failure=decision.failure)
        else:
            self.tell("processed", run)
        self.tell("attempted", run)

    def back(self, run: Run, decision: Decision) -> None:
        """The job waits as if it had not been delivered: it never began, or it was postponed."""
        if decision.by_hand:
            self.tell("postponed", run, failure=decision.failure, delay_ms=decision.delay_ms)
            self.tell("attempted", run)
        else:
            self.tell("given_back", run)

    def again(self, run: Run, decision: Decision, ended: Ended, delay_ms: int) -> None:
        """The job waits for its next try."""
        failure = decision.failure
        if decision.by_hand:
            self.tell("processed", run)
            self.tell("released", run, failure=failure, delay_ms=delay_ms)
        else:
            self.tell("timed_out" if ended is Ended.TIMED_OUT else "exception_occurred", run, failure=failure)
            self.tell("released_after_exception", run, failure=failure, delay_ms=delay_ms)
        self.tell("attempted", run, failure=None if decision.by_hand else failure)

    async def over(self, run: Run, decision: Decision, ended: Ended, reason: str) -> None:
        """The job is a dead letter."""
        failure = decision.failure or Failure("duetime.Failed", reason)
        await self._hook(run, failure)
        self.tell("failed", run, failure=failure, reason=reason)
        if decision.by_hand:
            self.tell("processed", run)
        else:
            self.tell("timed_out" if ended is Ended.TIMED_OUT else "exception_occurred", run, failure=failure)
        self.tell("attempted", run, failure=failure)

    async def _hook(self, run: Run, failure: Failure) -> None:
        task = self._app.tasks.get(run.payload.name)
        if task is None or task.failed_hook is None:
            return
        try:
            await asyncio.to_thread(task.failed_hook, run.info(), failure)
        except Exception:
            log.exception("failed_hook_failed", extra={"task": run.payload.name})

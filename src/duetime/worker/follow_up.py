"""What is stored together with the ack of a job that is done: its result, and the next step of its chain."""

import logging
from typing import TYPE_CHECKING

import msgspec

from duetime.stores.base import Finish
from duetime.worker.chains import has_steps, next_job
from duetime.worker.runs import Ended, Run

if TYPE_CHECKING:
    from duetime.worker.app import App

log = logging.getLogger("duetime.worker")


def finish_of(app: "App", run: Run) -> Finish | None:
    """None if a plain ack will do."""
    if run.outcome.ended is not Ended.DONE:
        return None
    lease, result = run.delivery.lease, run.outcome.result
    task = app.find_task(run.payload.name)
    kept_ms = task.result_ms if task is not None else 0
    following = None
    if has_steps(run.delivery.body):
        try:
            following = next_job(lease.queue, run.delivery.body, result)
        except msgspec.MsgspecError as error:
            log.error("chain_not_readable", extra={"job": lease.id, "error": str(error)})
    if following is None and (result is None or not kept_ms):
        return None
    return Finish(lease, [following] if following else (), result if kept_ms else None, kept_ms)

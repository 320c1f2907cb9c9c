"""What is stored together with the ack of a job that is done: its result, the next step of its chain, the join of
its group.
"""

import logging
from typing import TYPE_CHECKING

import msgspec

from duetime.stores.base import Finish
from duetime.worker.chains import has_steps, next_job
from duetime.worker.groups import joining_of
from duetime.worker.runs import Ended, Run

if TYPE_CHECKING:
    from duetime.worker.app import App

log = logging.getLogger("duetime.worker")


def finish_of(app: "App", run: Run) -> Finish | None:
    """None if a plain ack will do."""
    if run.outcome.ended is not Ended.DONE:
        return None
    lease, body, result = run.delivery.lease, run.delivery.body, run.outcome.result
    task = app.find_task(run.payload.name)
    kept_ms = task.result_ms if task is not None else 0
    following = joining = None
    try:
        joining = joining_of(body)
        following = next_job(lease.queue, body, result) if has_steps(body) else None
    except msgspec.MsgspecError as error:
        log.error("what_follows_not_readable", extra={"job": lease.id, "error": str(error)})
    if joining is not None:
        kept_ms = max(kept_ms, joining.results_ms)
    if following is None and joining is None and (result is None or not kept_ms):
        return None
    join = joining.join if joining is not None else None
    return Finish(lease, [following] if following else (), result if kept_ms else None, kept_ms, join)

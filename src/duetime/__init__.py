"""Duetime, a delayed job queue: push a job now, have it delivered when it is due, at least once, never early.

    import duetime

    with duetime.connect("sqlite:jobs.db") as client:
        client.queue("mail").later("10m", {"to": "ann"})

What is listed here is the public surface, with `duetime.testing` and the hooks of `duetime.worker.after_commit`;
everything else may change.
"""

from duetime.client import AsyncClient, Client, connect, connect_async
from duetime.client.collections import BlockingQueue, DelayedQueue, Taken
from duetime.client.push_in import push_in, push_in_async
from duetime.errors import DuetimeError
from duetime.job import Counts, Delivery, IfExists, Job, Lease, Moved, NewJob, Priority, State
from duetime.stores.base import QueueRules, RulesChange
from duetime.worker.app import App
from duetime.worker.current_job import current_job
from duetime.worker.events import TaskEvent
from duetime.worker.runs import Failure, JobInfo
from duetime.worker.task_exceptions import Cancel, Fail, Retry, TimedOut

__version__ = "0.1.0"

__all__ = [
    "App",
    "AsyncClient",
    "BlockingQueue",
    "Cancel",
    "Client",
    "Counts",
    "DelayedQueue",
    "Delivery",
    "DuetimeError",
    "Fail",
    "Failure",
    "IfExists",
    "Job",
    "JobInfo",
    "Lease",
    "Moved",
    "NewJob",
    "Priority",
    "QueueRules",
    "Retry",
    "RulesChange",
    "State",
    "Taken",
    "TaskEvent",
    "TimedOut",
    "__version__",
    "connect",
    "connect_async",
    "current_job",
    "push_in",
    "push_in_async",
]

"""Duetime, a delayed job queue: push a job now, have it delivered when it is due, at least once, never early.

    import duetime

    with duetime.connect("sqlite:jobs.db") as client:
        client.queue("mail").later("10m", {"to": "ann"})

What is listed here is the public surface, with `duetime.testing` and the hooks of `duetime.worker.after_commit`;
everything else may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duetime.client import AsyncClient, Client, connect, connect_async
    from duetime.client.collections import BlockingQueue, DelayedQueue, Taken
    from duetime.client.push_in import push_in, push_in_async
    from duetime.errors import (
        BodyTooLarge,
        ClientClosed,
        Conflict,
        DuetimeError,
        ExpiresBeforeDue,
        Forbidden,
        InvalidId,
        InvalidName,
        InvalidRequest,
        InvalidSettings,
        InvalidTime,
        JobDead,
        JobExists,
        JobNotFound,
        JobRunning,
        LeaseLost,
        MarkMismatch,
        NoAnswer,
        NotFound,
        Overloaded,
        PoolNotFound,
        QueueFull,
        StoreDamaged,
        StoreFull,
        StoreUnavailable,
        TooManyRequests,
        TopicExists,
        TopicNotFound,
        TopicOffline,
        Unauthorized,
        VersionConflict,
    )
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
    "BodyTooLarge",
    "Cancel",
    "Client",
    "ClientClosed",
    "Conflict",
    "Counts",
    "DelayedQueue",
    "Delivery",
    "DuetimeError",
    "ExpiresBeforeDue",
    "Fail",
    "Failure",
    "Forbidden",
    "IfExists",
    "InvalidId",
    "InvalidName",
    "InvalidRequest",
    "InvalidSettings",
    "InvalidTime",
    "Job",
    "JobDead",
    "JobExists",
    "JobInfo",
    "JobNotFound",
    "JobRunning",
    "Lease",
    "LeaseLost",
    "MarkMismatch",
    "Moved",
    "NewJob",
    "NoAnswer",
    "NotFound",
    "Overloaded",
    "PoolNotFound",
    "Priority",
    "QueueFull",
    "QueueRules",
    "Retry",
    "RulesChange",
    "State",
    "StoreDamaged",
    "StoreFull",
    "StoreUnavailable",
    "Taken",
    "TaskEvent",
    "TimedOut",
    "TooManyRequests",
    "TopicExists",
    "TopicNotFound",
    "TopicOffline",
    "Unauthorized",
    "VersionConflict",
    "__version__",
    "connect",
    "connect_async",
    "current_job",
    "push_in",
    "push_in_async",
]

_MODULES = (
    "duetime.errors",
    "duetime.job",
    "duetime.stores.base",
    "duetime.client",
    "duetime.client.collections",
    "duetime.client.push_in",
    "duetime.worker.app",
    "duetime.worker.current_job",
    "duetime.worker.events",
    "duetime.worker.runs",
    "duetime.worker.task_exceptions",
)
"""Where the names are, the quickest to import first."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that nobody waits for what they do not use."""
    if name in __all__:
        for module in map(import_module, _MODULES):
            if hasattr(module, name):
                globals()[name] = found = getattr(module, name)
                return found
    raise AttributeError(f"module 'duetime' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""Duetime, a delayed job queue: push a job now, have it delivered when it is due, at least once, never early.

    import duetime

    with duetime.connect("sqlite:jobs.db") as client:
        client.queue("mail").later("10m", {"to": "ann"})

What is listed here is the public surface, with `duetime.testing` and the hooks of `duetime.worker.after_commit`;
everything else may change.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duetime.client import AsyncClient, Client, connect, connect_async
    from duetime.client.async_client import AsyncLeasedJob
    from duetime.client.async_collections import AsyncBlockingQueue, AsyncDelayedQueue, AsyncTaken
    from duetime.client.client import LeasedJob
    from duetime.client.collections import BlockingQueue, DelayedQueue, Taken
    from duetime.client.connections import connections
    from duetime.client.push_in import push_in, push_in_async
    from duetime.client.reliable_queue import (
        MessageOptions,
        ProcessingMode,
        QueueEvent,
        QueueSettings,
        ReliableFanout,
        ReliableQueue,
    )
    from duetime.model.errors import (
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
    from duetime.model.job import Counts, Delivery, IfExists, Job, Lease, Moved, NewJob, Priority, State
    from duetime.stores.base import QueueRules, RulesChange
    from duetime.stores.finishes import Finish, Finished, Join, KeptResult
    from duetime.worker.app import App
    from duetime.worker.arguments import PREVIOUS
    from duetime.worker.batches import BatchStatus, TaskBatch
    from duetime.worker.chains import chain
    from duetime.worker.current_job import JobLogHandler, current_job
    from duetime.worker.events import TaskEvent
    from duetime.worker.groups import GroupHandle, group
    from duetime.worker.handle import TaskFailed, TaskHandle, TaskStatus
    from duetime.worker.runs import Cancel, Fail, Failure, JobInfo, Postpone, Retry, TimedOut

__version__ = "0.1.0"

__all__ = [
    "PREVIOUS",
    "App",
    "AsyncBlockingQueue",
    "AsyncClient",
    "AsyncDelayedQueue",
    "AsyncLeasedJob",
    "AsyncTaken",
    "BatchStatus",
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
    "Finish",
    "Finished",
    "Forbidden",
    "GroupHandle",
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
    "JobLogHandler",
    "JobNotFound",
    "JobRunning",
    "Join",
    "KeptResult",
    "Lease",
    "LeaseLost",
    "LeasedJob",
    "MarkMismatch",
    "MessageOptions",
    "Moved",
    "NewJob",
    "NoAnswer",
    "NotFound",
    "Overloaded",
    "PoolNotFound",
    "Postpone",
    "Priority",
    "ProcessingMode",
    "QueueEvent",
    "QueueFull",
    "QueueRules",
    "QueueSettings",
    "ReliableFanout",
    "ReliableQueue",
    "Retry",
    "RulesChange",
    "State",
    "StoreDamaged",
    "StoreFull",
    "StoreUnavailable",
    "Taken",
    "TaskBatch",
    "TaskEvent",
    "TaskFailed",
    "TaskHandle",
    "TaskStatus",
    "TimedOut",
    "TooManyRequests",
    "TopicExists",
    "TopicNotFound",
    "TopicOffline",
    "Unauthorized",
    "VersionConflict",
    "__version__",
    "chain",
    "connect",
    "connect_async",
    "connections",
    "current_job",
    "group",
    "push_in",
    "push_in_async",
]

_MODULES = (
    "duetime.model.errors",
    "duetime.model.job",
    "duetime.stores.base",
    "duetime.stores.finishes",
    "duetime.client",
    "duetime.client.async_collections",
    "duetime.client.collections",
    "duetime.client.connections",
    "duetime.client.async_client",
    "duetime.client.client",
    "duetime.client.push_in",
    "duetime.client.reliable_queue",
    "duetime.worker.app",
    "duetime.worker.arguments",
    "duetime.worker.batches",
    "duetime.worker.chains",
    "duetime.worker.current_job",
    "duetime.worker.events",
    "duetime.worker.groups",
    "duetime.worker.handle",
    "duetime.worker.runs",
)
"""Where the names are, the quickest to import first."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that nobody waits for what they do not use."""
    if name in __all__:
        for module in map(import_module, _MODULES):
            found = getattr(module, name, None)
            if found is not None and not isinstance(found, ModuleType):  # a package has its modules as attributes
                globals()[name] = found
                return found
    raise AttributeError(f"module 'duetime' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

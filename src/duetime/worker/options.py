"""The options of a worker, as read from the options of `duetime work`."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from duetime.model.backoff import Backoff, Exponential
from duetime.model.errors import InvalidSettings
from duetime.worker.task import Task


class PoolKind(StrEnum):
    PROCESSES = "processes"
    THREADS = "threads"
    ASYNCIO = "asyncio"


DEFAULT_BACKOFF = Exponential(base_ms=1_000, cap_ms=600_000)
DEFAULT_ASYNCIO = 100
DEFAULT_THREADS = 10


@dataclass(frozen=True)
class WorkerOptions:
    """0 means no limit, and for `timeout_s` none. `lease_s` is how long a dead worker's jobs wait for another one;
    while a worker lives it renews the lease. With `max_concurrency` the worker runs up to that many jobs at a time,
    instead of `concurrency`, when jobs are late. `sleep_s` is the length of one wait on empty queues, not a delay: a
    job that is pushed or falls due meanwhile starts immediately.
    """

    queues: tuple[str, ...]
    pool: PoolKind
    concurrency: int
    timeout_s: float = 60.0
    tries: int = 5
    backoff: Backoff = DEFAULT_BACKOFF
    lease_s: float = 30.0
    sleep_s: float = 3.0
    rest_s: float = 0.0
    memory_mb: float = 0.0
    max_jobs: int = 0
    max_time_s: float = 0.0
    once: bool = False
    stop_when_empty: bool = False
    stop_when_empty_for_s: float = 0.0
    max_concurrency: int = 0

    def __post_init__(self) -> None:
        if not self.queues:
            raise InvalidSettings("worker must have at least one queue")
        if self.concurrency < 1:
            raise InvalidSettings(f"concurrency must be at least 1, got {self.concurrency}")
        if self.max_concurrency and self.max_concurrency < self.concurrency:
            raise InvalidSettings(
                f"concurrency range must begin with the smaller number, got {self.concurrency}..{self.max_concurrency}"
            )
        for name, value in (("tries", self.tries), ("max_jobs", self.max_jobs), ("memory_mb", self.memory_mb)):
            if not value >= 0:
                raise InvalidSettings(f"{name.removesuffix('_mb')} must be at least 0, got {value}")
        if self.lease_s < 1:
            raise InvalidSettings(f"lease must be at least 1s, got {self.lease_s:g}s")

    @property
    def most_jobs(self) -> int:
        return 1 if self.once else self.max_jobs


def choose_pool(tasks: Iterable[Task[..., Any]]) -> PoolKind:
    """Processes, unless every task is async: only a process can be ended when its time is over."""
    found = list(tasks)
    return PoolKind.ASYNCIO if found and all(task.is_async for task in found) else PoolKind.PROCESSES


def default_concurrency(pool: PoolKind) -> int:
    match pool:
        case PoolKind.PROCESSES:
            return os.cpu_count() or 1
        case PoolKind.THREADS:
            return DEFAULT_THREADS
        case PoolKind.ASYNCIO:
            return DEFAULT_ASYNCIO


def queues_of(tasks: Iterable[Task[..., Any]], default: str) -> tuple[str, ...]:
    """All queues that tasks name, the app's own first, then in the order of the code."""
    return tuple(dict.fromkeys([default, *(task.defaults.queue for task in tasks)]))

"""The defaults of a worker's options, and wrong options."""

import os

import pytest

import duetime
from duetime.model.errors import InvalidSettings
from duetime.worker.options import PoolKind, WorkerOptions, choose_pool, default_concurrency, queues_of


def plain() -> None: ...


async def gentle() -> None: ...


def test_processes_unless_every_task_is_async() -> None:
    app = duetime.App("memory:")
    assert choose_pool(app.tasks.values()) is PoolKind.PROCESSES
    app.task(gentle)
    assert choose_pool(app.tasks.values()) is PoolKind.ASYNCIO
    app.task(plain)
    assert choose_pool(app.tasks.values()) is PoolKind.PROCESSES


def test_as_many_jobs_as_fit_the_pool() -> None:
    assert [default_concurrency(pool) for pool in PoolKind] == [os.cpu_count(), 10, 100]


def test_the_queues_of_all_tasks_the_apps_own_first() -> None:
    app = duetime.App("memory:", queue="main")
    app.task(queue="mail")(plain)
    app.task(gentle)
    assert queues_of(app.tasks.values(), app.default_queue) == ("main", "mail")


def test_wrong_options_are_refused() -> None:
    for wrong in (
        {"queues": ()},
        {"concurrency": 0},
        {"lease_s": 0.5},
        {"tries": -1},
        {"max_jobs": -1},
        {"memory_mb": -1.0},
        {"memory_mb": float("nan")},
    ):
        with pytest.raises(InvalidSettings):
            WorkerOptions(**{"queues": ("a",), "pool": PoolKind.THREADS, "concurrency": 1, **wrong})

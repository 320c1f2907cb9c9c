"""Starts a worker: loads the App that `module:app` names, and runs its jobs."""

import asyncio
import importlib
import os
import sys
from typing import TYPE_CHECKING

from duetime.model.errors import InvalidSettings
from duetime.worker.app import App
from duetime.worker.daemon import Worker
from duetime.worker.fork_server import start_fork_server
from duetime.worker.options import PoolKind, WorkerOptions
from duetime.worker.pool_local import LocalPool
from duetime.worker.pool_processes import ProcessPool
from duetime.worker.thread_loop import NEW_LOOP

if TYPE_CHECKING:
    from duetime.worker.pool import PoolHost, WorkerPool


def load_app(place: str) -> App:
    """`module:app`, found from the current folder as `python -m` would; `app` if no name follows."""
    module_name, _, path = place.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name and not module_name.startswith(f"{error.name}."):
            raise
        raise InvalidSettings(f"there is no module {module_name!r} here; write module:app") from None
    for part in (path or "app").split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        raise InvalidSettings(f"{place} is no duetime.App but {found!r}")
    return found


def work(app: App, options: WorkerOptions) -> int:
    """Run a worker in this process until it stops; answers the exit code. Processes are forked first of all."""
    fork_server = start_fork_server(app) if options.pool is PoolKind.PROCESSES else None

    def make_pool(host: "PoolHost") -> "WorkerPool":
        if fork_server is not None:
            return ProcessPool(host, fork_server, options.concurrency)
        return LocalPool(host, app, options.concurrency)

    async def run() -> int:
        return await Worker(app, options, make_pool).run()

    with asyncio.Runner(loop_factory=NEW_LOOP) as runner:
        return runner.run(run())

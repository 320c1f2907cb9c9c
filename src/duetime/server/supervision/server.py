"""A whole server, from settings to its end: one process, or a supervisor with several."""

import asyncio
import os

from duetime.server.process import run
from duetime.server.supervision.pid_file import pid_file
from duetime.server.supervision.program import Program, count_workers
from duetime.server.supervision.single_process import SingleProcess
from duetime.server.supervision.supervisor import Supervisor
from duetime.server.supervision.systemd import Notifier
from duetime.settings import Settings


def run_server(settings: Settings, program: Program) -> None:
    """Serve until told to stop. Raises InvalidSettings for settings with which no server can start."""
    notifier = Notifier(os.environ)
    workers = count_workers(settings)
    with pid_file(settings.pid_file):
        if workers == 1:
            run(_single(settings, program, notifier))
        else:
            asyncio.run(_supervised(settings, workers, program, notifier))


async def _single(settings: Settings, program: Program, notifier: Notifier) -> None:
    await SingleProcess(settings, program, notifier).run()


async def _supervised(settings: Settings, workers: int, program: Program, notifier: Notifier) -> None:
    await Supervisor(settings, workers, program, notifier).run()

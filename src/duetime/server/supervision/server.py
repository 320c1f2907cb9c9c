"""Runs a server: one process, or a supervisor with several."""

import asyncio
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from duetime.model.errors import InvalidSettings
from duetime.model.settings import Settings
from duetime.server.process import run
from duetime.server.supervision.program import Program, count_workers
from duetime.server.supervision.single_process import SingleProcess
from duetime.server.supervision.supervisor import Supervisor
from duetime.server.supervision.systemd import Notifier


def run_server(settings: Settings, program: Program) -> None:
    """Serves until it is stopped. Raises InvalidSettings if it cannot start with these settings."""
    notifier = Notifier(os.environ)
    workers = count_workers(settings)
    with pid_file(settings.pid_file):
        if workers == 1:
            run(_started(lambda: SingleProcess(settings, program, notifier)))
        else:
            asyncio.run(_started(lambda: Supervisor(settings, workers, program, notifier)))


async def _started(make: Callable[[], SingleProcess | Supervisor]) -> None:
    """Constructs the server inside the event loop, because its constructor installs signal handlers."""
    await make().run()


@contextmanager
def pid_file(path: str) -> Generator[None]:
    """Keeps the file while the block runs; replaces one that a dead process left behind. Raises InvalidSettings."""
    if not path:
        yield
        return
    pid_file, mine = Path(path), f"{os.getpid()}\n"
    fresh = pid_file.with_name(f".{pid_file.name}.{os.getpid()}")
    try:
        fresh.write_text(mine)
        fresh.replace(pid_file)
    except OSError as error:
        raise InvalidSettings(f"cannot write the pid file {path}: {error.strerror}") from None
    try:
        yield
    finally:
        with suppress(OSError):
            if pid_file.read_text() == mine:
                pid_file.unlink()

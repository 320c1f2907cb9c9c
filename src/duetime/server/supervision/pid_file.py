"""The file with the server's process id, for those who signal it by file."""

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from duetime.errors import InvalidSettings


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

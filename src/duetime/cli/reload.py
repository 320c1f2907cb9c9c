"""`duetime work --reload`: run the same command in a process of its own, and start it anew when the program changes.

For developing. The worker gets a TERM, so it finishes the jobs in its hands before it goes; a program that cannot be
imported stays down until the next change.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

RELOADED = "_DUETIME_RELOADED"
LOOK_S = 0.5
STOP_S = 30
SKIPPED = {"__pycache__", "node_modules", "site-packages"}

Snapshot = dict[Path, int]


def run_reloading(folder: Path) -> int:
    """Runs until INT or TERM; answers the exit code."""
    stopping: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stopping.append(number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    seen = snapshot(folder)
    child = _start()
    while not stopping:
        time.sleep(LOOK_S)
        now = snapshot(folder)
        if now != seen:
            changed = sorted(str(path.relative_to(folder)) for path, _ in now.items() ^ seen.items())
            sys.stderr.write(f"{changed[0]} has changed, starting anew\n")
            seen = now
            _end(child)
            child = _start()
    _end(child)
    return 0


def snapshot(folder: Path) -> Snapshot:
    """When each Python file below the folder was last written. Hidden folders and packages of others are left out."""
    return dict(_files(folder))


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    for root, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in SKIPPED and not Path(root, name, "pyvenv.cfg").exists()
        ]
        for name in names:
            path = Path(root, name)
            if path.suffix == ".py":
                try:
                    yield path, path.stat().st_mtime_ns
                except OSError:
                    continue  # it has just gone


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from duetime.cli.main import main; main()", *sys.argv[1:]]
    return subprocess.Popen(command, env={**os.environ, RELOADED: "1"}, start_new_session=True)


def _end(child: subprocess.Popen[bytes]) -> None:
    """The first signal lets jobs finish, the second gives them back."""
    for wait_s in (STOP_S, STOP_S):
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(wait_s)
            except subprocess.TimeoutExpired:
                continue
    if child.poll() is None:
        child.kill()
        child.wait()

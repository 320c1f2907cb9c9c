"""No server outlives the tests that started it, and no folder of one, even when they are killed.

A fixture stops its process by its id. Should the test process die before it can (SIGKILL, SIGTERM, a crashed worker), a
small guardian process notices that its pipe closed and ends what is left:

    process = subprocess.Popen(...)
    guard(process.pid)
    ...
    process.wait()
    release(process.pid)

`make_folder(prefix)` is a temporary folder that goes with the tests, too.
"""

import atexit
import functools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

GUARDIAN = """
import os, shutil, signal, sys, time
guarded = set()
for line in sys.stdin:
    action, what = line[0], line[1:-1]
    guarded.add(what) if action == "+" else guarded.discard(what)
folders = {what for what in guarded if what.startswith("/")}
for pid in guarded - folders:
    try:
        os.kill(int(pid), signal.SIGKILL)
    except ProcessLookupError:
        pass
for _ in range(100):  # the children of those that were killed end a moment later
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    folders = set(filter(os.path.exists, folders))
    if not folders:
        break
    time.sleep(0.1)
"""


@functools.cache
def guardian() -> IO[str]:
    # A session of its own: the Ctrl-C or hang-up that ends the tests must not end their guardian first.
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", GUARDIAN], stdin=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdin is not None
    atexit.register(process.communicate)
    return process.stdin


def guard(pid: int) -> None:
    """End this process should the current one die without calling release()."""
    print(f"+{pid}", file=guardian(), flush=True)


def release(pid: int) -> None:
    """The process has ended; call it after waiting for it, because its id may be used again from then on."""
    print(f"-{pid}", file=guardian(), flush=True)


def make_folder(prefix: str) -> Path:
    """A temporary folder that every user may enter, unlike pytest's. It is removed when this process has ended."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    print(f"+{folder}", file=guardian(), flush=True)
    folder.chmod(0o755)
    return folder

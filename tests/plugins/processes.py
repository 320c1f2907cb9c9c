"""No server outlives the tests that started it, even when they are killed.

A fixture stops its process by its id. Should the test process die before it can (SIGKILL, SIGTERM, a crashed worker), a
small guardian process notices that its pipe closed and ends what is left:

    process = subprocess.Popen(...)
    guard(process.pid)
    ...
    process.wait()
    release(process.pid)
"""

import atexit
import functools
import subprocess
import sys
from typing import IO

GUARDIAN = """
import os, signal, sys
guarded = set()
for line in sys.stdin:
    pid = int(line)
    if pid > 0:
        guarded.add(pid)
    else:
        guarded.discard(-pid)
for pid in guarded:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
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
    print(pid, file=guardian(), flush=True)


def release(pid: int) -> None:
    """The process has ended; call it after waiting for it, because its id may be used again from then on."""
    print(-pid, file=guardian(), flush=True)

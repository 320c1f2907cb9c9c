import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.processes import guard, release
from tests.plugins.until import until

ROOT = Path(__file__).parents[2]

# Starts two processes, releases one, prints both ids and its folder and waits to be killed.
VICTIM = """
import subprocess, sys, time
from tests.plugins.processes import guard, make_folder, release
kept, released = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
guard(kept.pid)
guard(released.pid)
release(released.pid)
folder = make_folder("duetime-test-")
(folder / "file").touch()
print(kept.pid, released.pid, folder, flush=True)
time.sleep(60)
"""


def has_ended(pid: int) -> bool:
    """Wait for the end of a process that is not our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 10)[0])
    finally:
        os.close(descriptor)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_what_is_guarded_dies_with_the_tests_and_what_is_released_does_not() -> None:
    with subprocess.Popen([sys.executable, "-c", VICTIM], cwd=ROOT, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        *pids, folder = victim.stdout.readline().split()
        kept, released = map(int, pids)
        guard(released)  # should this test itself be killed
        victim.send_signal(signal.SIGKILL)

    try:
        assert has_ended(kept)
        os.kill(released, 0)
        asyncio.run(until(lambda: not Path(folder).exists()))
    finally:
        os.kill(released, signal.SIGKILL)
        release(released)

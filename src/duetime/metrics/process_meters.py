"""The metrics of this process itself: CPU, memory, open files.

Memory and open files are read from /proc; where there is none (macOS) they are not shown.
"""

import os
import resource
import time
from pathlib import Path

from duetime import __version__
from duetime.metrics.meters import Meters

PER_WORKER = ("worker",)

_STATUS = Path("/proc/self/statm")
_FILES = Path("/proc/self/fd")


def watch_process(meters: Meters, worker: str) -> None:
    """From now on every snapshot has this process's figures, under the name of its worker."""
    cpu = meters.counter("duetime_process_cpu_seconds_total", "CPU time used, user and system.", PER_WORKER)
    memory = meters.level("duetime_process_resident_memory_bytes", "Memory in use.", PER_WORKER)
    files = meters.level("duetime_process_open_fds", "Open files and sockets.", PER_WORKER)
    most_files = meters.level("duetime_process_max_fds", "How many may be open.", PER_WORKER)
    started = meters.level("duetime_process_start_time_seconds", "When the process began to serve.", PER_WORKER)
    meters.level("duetime_build_info", "Always 1; says which version runs.", ("version",), shared=True).of(
        __version__
    ).value = 1
    started.of(worker).value = time.time()

    def look() -> None:
        cpu.of(worker).value = time.process_time()
        if (used := resident_bytes()) is not None:
            memory.of(worker).value = used
        if (opened := open_files()) is not None:
            files.of(worker).value = opened
        most_files.of(worker).value = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    meters.before_snapshot(look)


def resident_bytes() -> int | None:
    try:
        return int(_STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def open_files() -> int | None:
    try:
        # Newer kernels give the number as the folder's size, without listing thousands of names.
        return _FILES.stat().st_size or len(os.listdir(_FILES))
    except OSError:
        return None

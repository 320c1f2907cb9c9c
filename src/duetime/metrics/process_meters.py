"""The metrics of a process: its CPU, memory and open files, its HTTP listeners, its journal.

Memory and open files are read from /proc; where there is none (macOS) they are not shown.
"""

import os
import resource
import time
from pathlib import Path

from duetime import __version__
from duetime.http.service import Budget, Service
from duetime.journal.journal import Journal
from duetime.metrics.meters import Meters

PER_WORKER = ("worker",)
PER_LISTENER = ("listener",)

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

    def update() -> None:
        cpu.of(worker).value = time.process_time()
        if (used := resident_bytes()) is not None:
            memory.of(worker).value = used
        if (opened := open_files()) is not None:
            files.of(worker).value = opened
        most_files.of(worker).value = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    meters.before_snapshot(update)


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


def watch_listener(meters: Meters, name: str, listener: Service) -> None:
    """From now on every snapshot has this listener's numbers."""
    answers = meters.counter(
        "duetime_http_responses_total", "Answers to HTTP requests by status.", (*PER_LISTENER, "code")
    )
    connections = meters.level("duetime_http_connections", "Open HTTP connections.", PER_LISTENER)

    def update() -> None:
        for status, count in listener.answers.items():
            answers.of(name, str(status)).value = count
        connections.of(name).value = len(listener.connections)

    meters.before_snapshot(update)


def watch_budget(meters: Meters, budget: Budget) -> None:
    held = meters.level("duetime_http_buffered_bytes", "Bytes of requests and unread answers that are held.")
    refused = meters.counter("duetime_http_overload_refusals_total", "Requests refused because too much was held.")

    def update() -> None:
        held.of().value = budget.held
        refused.of().value = budget.refused

    meters.before_snapshot(update)


def watch_journal(meters: Meters, journal: Journal) -> None:
    """From now on every snapshot has the journal's numbers."""
    entries = meters.counter("duetime_journal_entries_total", "Entries written to the journal.").of()
    groups = meters.counter("duetime_journal_groups_total", "Groups of entries written to the journal.").of()
    size = meters.counter("duetime_journal_bytes_total", "Bytes written to the journal.").of()
    backlog = meters.level("duetime_journal_backlog_bytes", "Bytes that could not be written to the journal yet.").of()
    failing = meters.level("duetime_journal_failing", "Processes whose journal cannot be written.").of()
    free = meters.level(
        "duetime_journal_free_bytes", "Room on the journal's disk; pushes end at journal_reserve.", shared=True
    ).of()
    lag = meters.level(
        "duetime_journal_ship_lag_seconds", "Age of the oldest sealed segment without a verified copy.", shared=True
    ).of()

    def update() -> None:
        writer = journal.writer
        entries.value, groups.value, size.value = writer.entries, writer.groups, writer.size
        backlog.value, failing.value = writer.backlog, float(writer.failure is not None)
        free.value, lag.value = writer.free, journal.ship_lag_s

    meters.before_snapshot(update)

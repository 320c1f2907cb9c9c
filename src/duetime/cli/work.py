"""`duetime work`: run the jobs of an App's tasks.

With `--reload`, for development, the worker runs in a process of its own, which is restarted when a file changes: it
gets a TERM, so running jobs finish. A program that cannot be imported stays down until the next change.
"""

import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from duetime.cli.config import read_settings
from duetime.cli.options import argument, flag, option
from duetime.cli.process_title import set_process_title
from duetime.model.backoff import parse
from duetime.model.clock import duration_ms
from duetime.model.errors import DuetimeError, InvalidSettings
from duetime.model.logs import set_up_logging
from duetime.model.names import check_queue
from duetime.worker.app import App
from duetime.worker.daemon import load_app
from duetime.worker.daemon import work as run_worker
from duetime.worker.events import report
from duetime.worker.options import PoolKind, WorkerOptions, choose_pool, default_concurrency, queues_of

log = logging.getLogger("duetime.worker")


@dataclass(frozen=True)
class What:
    queue: Annotated[str, option("A,B", "Queues in strict order; those of all tasks if not given.")] = ""
    concurrency: Annotated[
        str,
        option(
            "N",
            "Jobs at a time; 0: as many as cores, 10 threads or 100 async. 2..8: more while jobs are late.",
            "--concurrency",
            "-c",
        ),
    ] = "0"
    pool: Annotated[PoolKind | None, option(None, "Processes, unless every task is async.")] = None
    verbose: Annotated[bool, flag("A line for every job, not only for failures.", "--verbose", "-v")] = False


@dataclass(frozen=True)
class Until:
    once: Annotated[bool, flag("One job, then exit.", "--once")] = False
    stop_when_empty: Annotated[bool, flag("Exit when nothing is ready.", "--stop-when-empty")] = False
    stop_when_empty_for: Annotated[str, option("TIME", "Exit after this time without a job.")] = "0"
    max_jobs: Annotated[int, option(None, "Exit after this number of jobs; 0: never.")] = 0
    max_time: Annotated[str, option("TIME", "Exit after this time; 0: never.")] = "0"
    memory: Annotated[float, option("MB", "Replace a process that holds more, exit if it is the worker; 0: off.")] = 0


@dataclass(frozen=True)
class Each:
    timeout: Annotated[str, option("TIME", "For jobs whose task has none; 0: no limit.")] = "60s"
    tries: Annotated[int, option(None, "For jobs that do not set it; 0: no limit.")] = 5
    backoff: Annotated[str, option("TIMES", "For tasks without: 10s, 1s,5s,1m or exponential:1s:10m.")] = (
        "exponential:1s:10m"
    )
    sleep: Annotated[str, option("TIME", "One wait on empty queues; never delays a job.")] = "3s"
    rest: Annotated[str, option("TIME", "A pause after each job.")] = "0"
    lease: Annotated[str, option("TIME", "A dead worker's jobs come back after this; renewed while it lives.")] = "30s"


def work(
    app: Annotated[str, argument("MODULE:APP", "Where the App is; app if only a module is named.")],
    what: What,
    until: Until,
    each: Each,
    as_json: Annotated[bool, flag("One JSON line per event of a job.", "--json")] = False,
    reload: Annotated[bool, flag("For development: restart when a file changes.", "--reload")] = False,
) -> None:
    """Run the jobs of an App's tasks.

    TERM, INT (Ctrl-C) and QUIT stop the worker after its running jobs; a second signal gives these jobs back. USR2
    pauses, CONT resumes. Exit codes: 0 stopped, 1 error, 2 wrong options, 12 memory limit.

    Examples:
        duetime work shop.tasks:app
        duetime work shop.tasks --queue urgent,mail --concurrency 8 --memory 500
        duetime work shop.tasks --stop-when-empty --json
    """
    if reload and RELOADED not in os.environ:
        raise typer.Exit(run_reloading(Path.cwd()))
    set_process_title("duetime-work")
    loaded = _load(app)
    pool = what.pool or choose_pool(loaded.tasks.values())
    named = tuple(name for name in what.queue.split(",") if name)
    queues = tuple(check_queue(loaded.namespace, name).name for name in named)
    least, most = _range(what.concurrency)
    options = WorkerOptions(
        queues=queues or queues_of(loaded.tasks.values(), loaded.default_queue),
        pool=pool,
        concurrency=least or default_concurrency(pool),
        timeout_s=duration_ms(each.timeout) / 1000,
        tries=each.tries,
        backoff=parse(each.backoff),
        lease_s=duration_ms(each.lease) / 1000,
        sleep_s=duration_ms(each.sleep) / 1000,
        rest_s=duration_ms(each.rest) / 1000,
        memory_mb=until.memory,
        max_jobs=until.max_jobs,
        max_time_s=duration_ms(until.max_time) / 1000,
        once=until.once,
        stop_when_empty=until.stop_when_empty,
        stop_when_empty_for_s=duration_ms(until.stop_when_empty_for) / 1000,
        max_concurrency=most,
    )
    set_up_logging(read_settings({"log_format": "json" if as_json else None}, None))
    report(loaded, as_json=as_json, verbose=what.verbose)
    if not as_json:
        places = what.concurrency if most else options.concurrency
        sys.stdout.write(f"working on {', '.join(options.queues)} with {places} {pool.value}\n")
        sys.stdout.flush()
    try:
        code = run_worker(loaded, options)
    except DuetimeError:
        raise
    except Exception:
        log.critical("worker_failed", exc_info=True)
        code = 1
    raise typer.Exit(code)


def _range(text: str) -> tuple[int, int]:
    """`4`, or `2..8`; 0 as the second number says that there is none."""
    least, dots, most = text.partition("..")
    try:
        return int(least), int(most) if dots else 0
    except ValueError:
        raise InvalidSettings(f"concurrency must be a number or a range like 2..8, got {text!r}") from None


def _load(place: str) -> App:
    """An error while the program is imported is shown with its traceback."""
    try:
        return load_app(place)
    except DuetimeError:
        raise
    except Exception:
        traceback.print_exc()
        raise typer.Exit(1) from None


RELOADED = "_DUETIME_RELOADED"
CHECK_EVERY_S = 0.5
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
        time.sleep(CHECK_EVERY_S)
        now = snapshot(folder)
        if now != seen:
            changed = sorted(str(path.relative_to(folder)) for path, _ in now.items() ^ seen.items())
            sys.stderr.write(f"{changed[0]} changed, restarting\n")
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

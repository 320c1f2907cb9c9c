"""Who is measured, and how each is started: its producer, its worker, on one Redis, with one concurrency."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.report import ROOT, peer_python

PEERS = ROOT / "bench" / "peers"
STOP_S = 10
PUSH = "import work_peer; work_peer.main()"
"""Imported, not run: some take the names of their tasks from the name of their module."""


@dataclass(frozen=True)
class Contender:
    """`of` is ours to compare it with: the one with the same kind of concurrency."""

    name: str
    of: str
    worker: tuple[str, ...]
    extra: tuple[str, ...] = ()
    """A second process that delayed tasks need."""

    @property
    def is_ours(self) -> bool:
        return self.name == self.of


OURS = ("processes", "asyncio")


def contenders(concurrency: int) -> Sequence[Contender]:
    """C is the number of jobs at a time, for all."""
    at_a_time = str(concurrency)
    work = ("duetime", "work", "bench.work_parts.tasks:app")
    quietly = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR")
    return [
        Contender("processes", "processes", (*work, "--queue", "bench", "--pool", "processes", "-c", at_a_time)),
        Contender(
            "celery", "processes", ("celery", "-A", "work_peer", "worker", "-P", "prefork", "-c", at_a_time, *quietly)
        ),
        Contender("rq", "processes", ("rq", "worker-pool", "bench", "-n", at_a_time, "-q")),
        Contender("dramatiq", "processes", ("dramatiq", "work_peer", "--processes", at_a_time, "--threads", "1")),
        Contender("huey", "processes", ("huey_consumer", "work_peer.app", "-w", at_a_time, "-k", "process")),
        Contender("asyncio", "asyncio", (*work, "--queue", "bench-async", "--pool", "asyncio", "-c", at_a_time)),
        Contender("arq", "asyncio", ("arq", "work_peer.WorkerSettings")),
        Contender("saq", "asyncio", ("saq", "work_peer.settings")),
        Contender(
            "taskiq",
            "asyncio",
            ("taskiq", "worker", "work_peer:broker", "--workers", "1", "--max-async-tasks", at_a_time),
            ("taskiq", "scheduler", "work_peer:scheduler", "--skip-first-run"),
        ),
    ]


class Stand:
    """One contender's place: a Redis and a log that counts what is done."""

    def __init__(self, contender: Contender, url: str, log: Path, concurrency: int) -> None:
        self._contender = contender
        self._log = log
        self._python = sys.executable if contender.is_ours else str(peer_python())
        self._folder = ROOT if contender.is_ours else PEERS
        self._environment = {
            **os.environ,
            "BENCH_PEER": contender.name,
            "BENCH_REDIS": url,
            "BENCH_LOG": str(log),
            "BENCH_CONCURRENCY": str(concurrency),
            "RQ_REDIS_URL": url,
            "PYTHONPATH": str(self._folder),
        }

    def push(self, kind: str, count: int) -> None:
        name = f"{kind}_async" if self._contender.name == "asyncio" else kind
        program = ["-m", "bench.work_parts.tasks", name] if self._contender.is_ours else ["-c", PUSH, kind]
        subprocess.run(
            [self._python, *program, str(count)], cwd=self._folder, env=self._environment, check=True, timeout=300
        )

    @contextmanager
    def working(self) -> Iterator[None]:
        """The worker, and whatever it needs beside it; all of their processes are gone afterwards."""
        commands = [self._contender.worker, *([self._contender.extra] if self._contender.extra else [])]
        if self._contender.name == "rq":
            commands[0] = (*commands[0], "--url", self._environment["BENCH_REDIS"])
        running = [self._start(command) for command in commands]
        try:
            yield
        finally:
            for process in running:
                _end(process)

    def _start(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [str(Path(self._python).with_name(command[0])), *command[1:]],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def done(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def lateness(self) -> list[float]:
        return [float(line) for line in self._log.read_text().split()] if self._log.exists() else []


def _end(process: "subprocess.Popen[bytes]") -> None:
    """The whole group: some of them leave children behind."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait(STOP_S)

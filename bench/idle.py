"""What idle processes cost: CPU and context switches of an embedded SQLite client and of a server, by thread.

    make bench ARGS=idle          or: make bench ARGS="idle --seconds 60"

Before, a job was pushed, reserved and acked in both. The server has a journal and `--dev`. The switches are voluntary
ones, from /proc; other work on the machine hardly changes their number. The first thread is the main thread.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duetime
from bench.http_parts.servers import cpu_s
from bench.report import ROOT, table
from tests.plugins.served import ANY_PORT, launch_server

WARM_UP_S = 15.0
"""Longer than what a process does once after its last call."""


def be_idle(url: str) -> None:
    """In a process of its own: work, then wait until standard input ends."""
    with duetime.Client(url, namespace="bench") as client:
        queue = client.queue("jobs")
        queue.push(b"job")
        if job := queue.pop():
            job.ack()
        print("ready", flush=True)
        sys.stdin.read()


@contextmanager
def idle_client() -> Iterator[int]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.idle", f"sqlite:{folder}/jobs.db"]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdout.readline()
                yield process.pid
            finally:
                process.stdin.close()


@contextmanager
def idle_server() -> Iterator[int]:
    with tempfile.TemporaryDirectory() as folder:
        server = launch_server(Path(folder), *ANY_PORT, "--dev", DUETIME_LOG_LEVEL="warning")
        try:
            with duetime.Client(server.api, namespace="bench") as client:
                queue = client.queue("jobs")
                queue.push(b"job")
                if job := queue.pop():
                    job.ack()
            yield server.process.pid
        finally:
            server.stop()


def switches(pid: int) -> dict[int, int]:
    """Voluntary context switches so far, by thread."""
    found: dict[int, int] = {}
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        found[int(fields["Pid"])] = int(fields["voluntary_ctxt_switches"])
    return dict(sorted(found.items()))


def measured(pid: int, seconds: float) -> list[str]:
    time.sleep(WARM_UP_S)
    before, busy = switches(pid), cpu_s([pid])
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    each = [(count - before.get(thread, 0)) / took for thread, count in switches(pid).items()]
    return [f"{(cpu_s([pid]) - busy) / took:.3%}", f"{sum(each):.2f}", " ".join(f"{one:.2f}" for one in each)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench idle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    rows: list[list[str]] = []
    for name, start in (("embedded SQLite client", idle_client), ("server on SQLite", idle_server)):
        with start() as pid:
            rows.append([name, *measured(pid, options.seconds)])
    print(table(["process", "of a core", "switches/s", "by thread"], rows))


if __name__ == "__main__":
    be_idle(sys.argv[1])

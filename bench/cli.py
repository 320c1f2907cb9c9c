"""How long a command takes from its start to its end: ours beside the CLIs of celery, rq and huey.

    make bench ARGS=cli          or: make bench ARGS="cli --rounds 9"

Each row is a whole process: CPU (user and system) and wall time, medians over rounds that take turns. A push goes to a
server on this machine; the peers' rows are the least that their programs can be asked for. A ratio below 1 means that
ours is quicker than the quickest peer.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.report import interleave, median, peer_python, ratio, spread, table

WHERE = ("--store", "memory:", "--journal", "off", "--port", "0", "--admin-port", "0")
BIN = Path(sys.executable).parent


class Start(NamedTuple):
    command: Sequence[str]
    environment: Mapping[str, str] = {}


class Took(NamedTuple):
    cpu_s: float
    wall_s: float


def run(start: Start) -> Took:
    began = time.perf_counter()
    process = subprocess.Popen(
        start.command, env={**os.environ, **start.environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(start.command)} ended with {process.returncode}")
    return Took(usage.ru_utime + usage.ru_stime, wall_s)


@contextmanager
def server() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [str(BIN / "duetime"), "serve", "--dev", *WHERE],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            yield next(line.split()[1] for line in process.stdout if line.strip().startswith("API"))
        finally:
            process.terminate()
            process.wait(60)


def ours(url: str) -> dict[str, Start]:
    program = str(BIN / "duetime")
    tab = {"_DUETIME_COMPLETE": "complete_bash", "COMP_WORDS": "duetime re", "COMP_CWORD": "1"}
    return {
        "python -c 'import duetime'": Start([sys.executable, "-c", "import duetime"]),
        "duetime version": Start([program, "version"]),
        "duetime, a completion": Start([program], tab),
        "duetime push, to a server": Start([program, "push", "mail", "hello", "--url", url]),
        "duetime --help": Start([program, "--help"]),
    }


def peers() -> dict[str, Start]:
    folder = peer_python().parent
    return {
        "celery --version": Start([str(folder / "celery"), "--version"]),
        "rq --version": Start([str(folder / "rq"), "--version"]),
        "huey_consumer --help": Start([str(folder / "huey_consumer"), "--help"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench cli")
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with server() as url:
        mine, theirs = ours(url), peers()
        took: dict[str, list[Took]] = {name: [] for name in (*mine, *theirs)}

        def measured(name: str, start: Start) -> float:
            took[name].append(run(start))
            return took[name][-1].cpu_s

        everybody = {**mine, **theirs}
        cpu = interleave(
            {name: lambda name=name, start=start: measured(name, start) for name, start in everybody.items()},
            rounds=rounds,
        )
    wall = {name: [one.wall_s for one in some[-rounds:]] for name, some in took.items()}
    best_cpu = min(median(cpu[name]) for name in theirs)
    best_wall = min(median(wall[name]) for name in theirs)
    rows = [
        [
            name,
            f"{median(cpu[name]):.3f}",
            spread(cpu[name]),
            f"{median(wall[name]):.3f}",
            ratio(median(cpu[name]), best_cpu),
            ratio(median(wall[name]), best_wall),
        ]
        for name in everybody
    ]
    print(table(["start to end", "CPU s", "", "wall s", "CPU / best peer", "wall / best peer"], rows))

"""Workers end to end beside celery, rq, dramatiq, huey, arq, saq and taskiq on the same Redis.

    make bench ARGS=work         or with sizes: make bench ARGS="work --jobs 2000 --rounds 1"

One Redis without persistence, the same concurrency for all. Jobs are pushed first, then a worker is started by its own
command; the rate is that between a tenth of the jobs and all of them, or what was done when the time was over, so
start-up does not count. Lateness: delayed tasks, spread over 5 s, due while the worker is idle. Those that run tasks in
processes are compared with our processes, asyncio ones with our asyncio.

With --results it measures no-op tasks whose results are kept for a day, chains of ten of them, and groups of a thousand
with a callback that gets all results (celery's chord), beside celery with its results in the same Redis; the rate of
chains is that of their steps, that of groups counts the callback as one more task.
"""

import argparse
import itertools
import tempfile
import time
from pathlib import Path

from bench.core_parts.setting import a_redis, meter
from bench.report import median, number, ratio, table
from bench.work_parts.contenders import Contender, Stand, contenders

SAMPLE_S = 0.002
START_S = 40.0
WHOLE = {"chain": 10, "group": 1001}
"""Tasks that are pushed together; a group's callback is one of them."""


def rate(contender: Contender, kind: str, options: argparse.Namespace) -> float:
    """Jobs a second."""
    with a_redis() as server, tempfile.TemporaryDirectory() as folder:
        stand = Stand(contender, server.url, Path(folder) / "log", options.concurrency)
        jobs = min(options.jobs, options.concurrency * 500) if kind == "nap" else options.jobs
        jobs -= jobs % WHOLE.get(kind, 1)
        stand.push(kind, jobs)
        with stand.working():
            wait_for(stand, jobs // 10, START_S)
            first, began = stand.done(), time.perf_counter()
            wait_for(stand, jobs, options.seconds)
            last, ended = stand.done(), time.perf_counter()
    return (last - first) / (ended - began) if last > first else 0.0


def wait_for(stand: Stand, done: int, seconds: float) -> None:
    deadline = time.perf_counter() + seconds
    while stand.done() < done and time.perf_counter() < deadline:
        time.sleep(SAMPLE_S)


def lateness(contender: Contender, options: argparse.Namespace) -> list[float]:
    """Milliseconds, sorted; of those that came."""
    with a_redis() as server, tempfile.TemporaryDirectory() as folder:
        stand = Stand(contender, server.url, Path(folder) / "log", options.concurrency)
        stand.push("late", options.delayed)
        with stand.working():
            deadline = time.perf_counter() + options.patience
            while len(stand.lateness()) < options.delayed and time.perf_counter() < deadline:
                time.sleep(0.1)
        meter(server).close()
        return sorted(stand.lateness())


def with_results(options: argparse.Namespace) -> None:
    chosen = [one for one in contenders(options.concurrency) if one.is_ours or one.name == "celery"]
    kinds = ("result", "chain", "group")
    rates: dict[tuple[str, str], list[float]] = {}
    for turn in range(options.rounds):
        for kind in kinds:
            for contender in chosen[turn % len(chosen) :] + chosen[: turn % len(chosen)]:
                rates.setdefault((contender.name, kind), []).append(rate(contender, kind, options))
    theirs = {kind: median(rates["celery", kind]) for kind in kinds}
    rows: list[list[str]] = []
    for one in chosen:
        found = {kind: median(rates[one.name, kind]) for kind in kinds}
        cells = [(number(found[kind]), ratio(found[kind], theirs[kind]) if theirs[kind] else "-") for kind in kinds]
        rows.append([f"duetime, {one.name}" if one.is_ours else one.name, *itertools.chain(*cells)])
    heads = ("results/s", "steps of chains/s", "tasks of groups/s")
    print(table(["", *itertools.chain(*((head, "of celery") for head in heads))], rows))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench work")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--delayed", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="at most, for one rate")
    parser.add_argument("--patience", type=float, default=25.0, help="how long delayed tasks may take in all")
    parser.add_argument("--only", help="names, with commas between them")
    parser.add_argument("--results", action="store_true", help="results, chains and groups, beside celery alone")
    options = parser.parse_args()
    if options.results:
        print(
            f"{options.jobs} jobs, {options.concurrency} at a time, {options.rounds} rounds, results kept for a day\n"
        )
        with_results(options)
        return
    chosen = [one for one in contenders(options.concurrency) if not options.only or one.name in options.only.split(",")]
    print(f"{options.jobs} jobs, {options.concurrency} at a time, {options.rounds} rounds, no results kept\n")
    rates: dict[tuple[str, str], list[float]] = {}
    for turn in range(options.rounds):
        for kind in ("noop", "nap"):
            for contender in chosen[turn % len(chosen) :] + chosen[: turn % len(chosen)]:
                rates.setdefault((contender.name, kind), []).append(rate(contender, kind, options))
    late = {one.name: lateness(one, options) for one in chosen}
    rows = []
    for one in chosen:
        found = {kind: median(rates[one.name, kind]) for kind in ("noop", "nap")}
        ours = {kind: median(rates.get((one.of, kind), [0.0])) for kind in found}
        name = f"duetime, {one.name}" if one.is_ours else one.name
        compared = (
            ["", ""] if one.is_ours else [ratio(ours[kind], found[kind]) if found[kind] else "-" for kind in found]
        )
        rows.append(
            [
                name,
                number(found["noop"]),
                compared[0],
                number(found["nap"]),
                compared[1],
                *_shown(late[one.name], options),
            ]
        )
    print(table(["", "no-op/s", "ours", "10 ms/s", "ours", "late p50", "p99 ms", "came"], rows))


def _shown(late: list[float], options: argparse.Namespace) -> list[str]:
    if not late:
        return ["-", "-", f"0/{options.delayed}"]
    return [
        f"{late[len(late) // 2]:.1f}",
        f"{late[min(len(late) - 1, len(late) * 99 // 100)]:.1f}",
        f"{len(late)}/{options.delayed}",
    ]


if __name__ == "__main__":
    main()

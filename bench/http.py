"""The server under wrk: publish, consume + ack, CPU per request beside an application that does nothing, memory.

make bench ARGS=http                                    everything at full size (about half an hour)
make bench ARGS="http --seconds 1 --rounds 1 --memory-requests 20000"     the same, small
make bench ARGS="http publish --stores redis --workers 1 --journals none"  only this
make bench ARGS="http --before ../old"                  each line also with the code of another checkout

lmstfy's protocol and the native API (v1) in turns: 64 connections over loopback, jobs of 100 bytes, a token with every
request; medians over rounds. CPU is what the processes that serve have used, not the clients; what Redis used is next
to it. The goal: publish, and consume + ack, with one worker and the journal on cost at most 2.2 times what the empty
application does, and v1 at most 1.15 times what lmstfy's protocol does.
"""

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence

from bench.core_parts.setting import a_redis, new_jobs, push_all, with_engine
from bench.http_parts.load import Measured, wrk
from bench.http_parts.servers import EMPTY_KINDS, NAMESPACE, QUEUE, Case, running_duetime, running_empty
from bench.report import interleave, median, number, ratio, spread, table
from duetime.model.names import Queue

GOAL = 2.2
WARM_UP_S = 1
STEPS = 10
SHORTEST_S = 1
"""wrk counts whole seconds."""


@contextlib.contextmanager
def a_store(kind: str) -> Generator[tuple[str, Sequence[int]]]:
    """The URL of an empty store, and its processes."""
    if kind == "redis":
        with a_redis() as server:
            yield server.url, [server.pid]
    elif kind == "memory":
        yield "memory:", []
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:{folder}/jobs.db", []


def measure_publish(case: Case, seconds: float) -> Measured:
    with a_store(case.store) as (url, store), running_duetime(case, url) as server:
        wrk(server, "publish", WARM_UP_S)
        measured = wrk(server, "publish", seconds, store)
    if measured.failed:
        raise SystemExit(f"{case.name}: {measured.failed} of {measured.requests} publishes failed")
    return measured


def measure_consume(case: Case, seconds: float, jobs: int) -> Measured:
    """Half of the requests are acks; a poll of the empty queue, should it come to that, is one that failed."""
    queue = Queue(NAMESPACE, QUEUE)
    with a_store(case.store) as (url, store):
        with_engine(url, lambda engine: push_all(engine, new_jobs(jobs, delay_ms=0, spread_ms=0), queue))
        with running_duetime(case, url) as server:
            measured = wrk(server, "consume", seconds, store)
    if measured.failed > measured.requests // 100:
        raise SystemExit(f"{case.name}: {measured.failed} of {measured.requests} failed; more --jobs are needed")
    return measured


def measure_empty(kind: str, seconds: float) -> Measured:
    with running_empty(kind) as server:
        wrk(server, "publish", WARM_UP_S)
        return wrk(server, "publish", seconds)


def compare(contenders: Mapping[str, Callable[[], Measured]], rounds: int) -> str:
    """A table with one line per contender; the first one is what the others are measured by."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    stores: dict[str, list[float]] = {name: [] for name in contenders}

    def measure(name: str) -> Callable[[], float]:
        def once() -> float:
            measured = contenders[name]()
            rates[name].append(measured.rate)
            stores[name].append(measured.store_cpu_us)
            return measured.cpu_us

        return once

    results = interleave({name: measure(name) for name in contenders}, rounds=rounds, warmups=0)
    floor = median(next(iter(results.values())))
    rows: list[list[object]] = []
    for name, cpu in results.items():
        figures = [median(rates[name]), spread(rates[name]), median(cpu), ratio(median(cpu), floor)]
        rows.append([name, *figures, median(stores[name])])
    return table(["", "requests/s", "spread", "CPU µs per request", "beside empty", "Redis µs"], rows)


def empties(seconds: float) -> dict[str, Callable[[], Measured]]:
    return {kind: lambda kind=kind: measure_empty(kind, seconds) for kind in EMPTY_KINDS}


def publish(options: argparse.Namespace) -> str:
    contenders = empties(options.seconds)
    for case in cases(options):
        contenders[case.name] = lambda case=case: measure_publish(case, options.seconds)
    return compare(contenders, options.rounds) + f"\n\nthe goal for one worker with a journal is {GOAL:.1f}x"


def consume(options: argparse.Namespace) -> str:
    contenders = empties(options.seconds)
    for case in cases(options):
        contenders[case.name] = lambda case=case: measure_consume(case, options.seconds, options.jobs)
    return compare(contenders, options.rounds)


def memory(options: argparse.Namespace) -> str:
    """Resident memory of one worker on Redis, while it publishes: after each tenth of the requests, and in small
    runs, in which a second of load is more than a tenth, after each second.
    """
    rows: list[list[object]] = []
    with a_store("redis") as (url, _), running_duetime(Case("redis"), url) as server:
        served = 0
        while served < options.memory_requests:
            next_row_at = served + options.memory_requests // STEPS
            while served < next_row_at:
                served += wrk(server, "publish", SHORTEST_S).requests
            rows.append([number(served), server.rss() / 1_048_576])
    first, last = float(str(rows[0][1])), float(str(rows[-1][1]))
    return table(["requests so far", "MiB"], rows) + f"\n\nfrom the first line to the last: {last - first:+.1f} MiB"


PARTS = {"publish": publish, "consume": consume, "memory": memory}


def cases(options: argparse.Namespace) -> Sequence[Case]:
    return [
        Case(store, workers, journal, source, protocol)
        for protocol in options.protocols
        for store in options.stores
        for workers in options.workers
        for journal in options.journals
        for source in ("", options.before)[: 2 if options.before else 1]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="which parts, default all")
    parser.add_argument("--seconds", type=float, default=5.0, help="of load per measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--protocols", type=lambda text: text.split(","), default=["lmstfy", "v1"])
    parser.add_argument("--stores", type=lambda text: text.split(","), default=["redis", "sqlite"])
    parser.add_argument("--workers", type=lambda text: [int(one) for one in text.split(",")], default=[1, 2])
    parser.add_argument("--journals", type=lambda text: text.split(","), default=["none", "interval", "always"])
    parser.add_argument("--jobs", type=int, default=100_000, help="that wait to be consumed")
    parser.add_argument("--before", default="", help="the folder of another checkout to measure beside this one")
    parser.add_argument("--memory-requests", type=int, default=1_000_000)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    for name in options.parts or PARTS:
        print(f"## {name}")
        print(PARTS[name](options), end="\n\n", flush=True)

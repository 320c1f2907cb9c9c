"""A wiped Redis filled again from the journal: reconcile's steps, beside the rate at which schedule() pushes.

    make bench ARGS=reconcile       or: make bench ARGS="reconcile --jobs 100000"

A batch is loaded into one queue with its journal. The store is audited while it is whole, wiped, audited again, which
names every job as lost, reconciled, and audited once more, which must find nothing. Each step of a run is timed from
what the run itself says, and printed when it ends. "repair" is from the first push to the last entry on the disk, so it
is compared with the push phase of a schedule() that writes its journal, too. The session is open, and a small round has
been made before.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.core_parts.setting import a_redis, meter
from bench.report import number, table
from bench.spark import QUEUE, write_table
from duetime.spark import schedule
from duetime.spark.audit.run import Audited, ComparedStore, read_findings, run_audit
from duetime.spark.lake.lake import Lake
from duetime.spark.reconcile.run import run_reconcile
from duetime.spark.session import open_session

GOAL = 0.6
REPAIR = ("repairing", "writing the journal")


class Stopwatch:
    """How long each step took, by what the run says when it begins one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.seconds: dict[str, float] = {}
        self._step, self._since = "", 0.0

    def told(self, step: str) -> None:
        now = time.perf_counter()
        if self._step:
            self.seconds[self._step] = self.seconds.get(self._step, 0.0) + now - self._since
            print(f"{self._name}: {self._step} {now - self._since:.1f} s", flush=True)
        self._step, self._since = "repairing" if step.startswith("repairing") else step, now

    def time(self, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        done = work()
        self.told("")
        self.seconds["all"] = time.perf_counter() - started
        return done


def one_round(spark: Any, server: Any, client: Any, folder: Path, source: Path, jobs: int) -> dict[str, Any]:
    """Load, audit, wipe, audit, reconcile, audit; what each took."""
    client.flushall()
    shutil.rmtree(folder, ignore_errors=True)
    lake, journal = Lake(spark, str(folder / "lake")), str(folder / "journal")
    compared = ComparedStore(server.url)
    loaded = schedule(
        spark.read.parquet(str(source)),
        url=server.url,
        namespace=QUEUE.namespace,
        queue=QUEUE.name,
        batch="bench",
        lake=lake.folder,
        journal=journal,
    )
    assert loaded.accepted == jobs, loaded
    print(f"schedule: pushed {number(jobs)} jobs in {loaded.seconds:.1f} s", flush=True)
    watches = {name: Stopwatch(name) for name in ("audit, whole", "audit, wiped", "reconcile", "audit, repaired")}

    def audited(name: str) -> Audited:
        watch = watches[name]
        return watch.time(lambda: run_audit(lake, journal, compared, on_step=watch.told))

    assert audited("audit, whole").is_sound
    client.flushall()
    lost = audited("audit, wiped")
    assert lost.found == {"lost": jobs}, lost.found
    started = time.perf_counter()
    assert sum(1 for _ in read_findings(lake, lost)) == jobs
    named_s = time.perf_counter() - started
    watch = watches["reconcile"]
    done = watch.time(lambda: run_reconcile(lake, journal, compared, on_step=watch.told))
    assert done.counts == {"pushed": jobs}, done
    assert audited("audit, repaired").is_sound
    return {"loaded": loaded, "named_s": named_s, "watches": watches}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench reconcile", description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1_000_000)
    jobs = parser.parse_args().jobs
    spark = open_session("bench reconcile", master="local[2]")
    with a_redis() as server, tempfile.TemporaryDirectory() as name, meter(server) as client:
        folder = Path(name)
        small = min(jobs, 20_000)
        write_table(spark, folder / "small", small)
        write_table(spark, folder / "table", jobs)
        one_round(spark, server, client, folder / "warm", folder / "small", small)
        made = one_round(spark, server, client, folder / "timed", folder / "table", jobs)
    spark.stop()
    watches: dict[str, Stopwatch] = made["watches"]
    steps = dict.fromkeys(step for watch in watches.values() for step in watch.seconds)
    rows = [
        [step, *(f"{watch.seconds[step]:.1f}" if step in watch.seconds else "" for watch in watches.values())]
        for step in steps
    ]
    print(f"{number(jobs)} jobs, seconds by step:\n")
    print(table(["step", *watches], rows))
    push = jobs / made["loaded"].seconds
    repair = jobs / sum(watches["reconcile"].seconds.get(step, 0.0) for step in REPAIR)
    print(f"\nreading {number(jobs)} findings, sorted: {made['named_s']:.1f} s")
    print(f"schedule() pushed {number(push)} jobs/s with its journal; repair {number(repair)} jobs/s: ", end="")
    print(f"{repair / push:.2f} (goal {GOAL:.2f})")
    return 0

"""A run after a small day, when there is a lake already: what each step takes beside a short and a long history.

The jobs of the first day have all ended, as nearly all jobs of a real history have. Its steps are run once, untimed.
Then comes a day of 10,000 jobs, of which some still wait, and every step is timed that a round of the pipelines takes.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.audit_parts.history import DAY_MS, START, add_day, held, make
from duetime.model.ids import IdMaker
from duetime.spark.audit.journal import JournalNow
from duetime.spark.audit.run import follow, weigh
from duetime.spark.audit.transform import SCAN, Scanned
from duetime.spark.lake.lake import Lake
from duetime.spark.lifecycle.run import run_lifecycle
from duetime.spark.stats.run import refresh_stats

LATER_JOBS = 10_000
ACKED = "i % 100 between 2 and 92"
LATER = START + 2 * DAY_MS
SCANNED_AT = LATER + DAY_MS


def measure_later(spark: Any, folder: Path, jobs: int) -> tuple[int, dict[str, float]]:
    """How many events the first day has, and the seconds of each step after the second day."""
    lake = Lake(spark, str(folder))
    events = make(spark, lake, jobs, only=ACKED)
    held(spark, LATER_JOBS, start=LATER).write.parquet(f"{lake.folder}/held")
    scan = spark.read.schema(SCAN).parquet(f"{lake.folder}/held")
    scanned = Scanned(scan, SCANNED_AT, SCANNED_AT, pool="default")
    steps: dict[str, Callable[[], Any]] = {
        "lifecycle": lambda: run_lifecycle(lake),
        "stats": lambda: refresh_stats(lake),
        "audit": lambda: _audit(lake, scanned),
    }
    for step in steps.values():
        step()
    add_day(spark, lake, LATER_JOBS, start=LATER)
    seconds: dict[str, float] = {}
    for name, step in steps.items():
        started = time.perf_counter()
        step()
        seconds[name] = time.perf_counter() - started
    return events, seconds


def _audit(lake: Lake, scanned: Scanned) -> None:
    """What an audit does from the point on at which store and journal have been read."""
    manifest = lake.events.manifest()
    none = lake.events.read(manifest=manifest, only=lambda file: False)
    now = JournalNow(manifest, late=none, late_rows=0, nodes={}, damage=[])
    run = IdMaker().make()
    audited = weigh(lake, follow(lake, now, scanned, (), run=run), run=run)
    assert not audited.found.get("duplicated"), audited.found

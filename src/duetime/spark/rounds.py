"""`duetime pipeline run`: ingest, lifecycle, stats, audit and report, one after the other in one Spark session.

A round is all of them once. A `Round` says what it did, how long each step took and what went wrong. It becomes a
health file (JSON) and a metrics file (Prometheus' text format, for node_exporter's textfile collector): both are
replaced whole. A step that fails ends its round, because the next ones build on it; the next round begins anew, and
each step goes on from what the lake says. Runs on the driver.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from duetime.model.clock import SystemClock
from duetime.model.errors import DuetimeError
from duetime.spark.audit.run import Audited, ComparedStore, run_audit
from duetime.spark.ingest.run import run_ingest
from duetime.spark.lake.lake import Lake
from duetime.spark.lifecycle.run import run_lifecycle
from duetime.spark.report.run import Asked, NothingToReport, make_report, summary, write_file
from duetime.spark.stats.run import refresh_stats

OnStep = Callable[[str], None]
METRIC = "duetime_pipeline"
WHOLE = "round"
"""What a watcher hears of as the step that holds all others."""


@dataclass(frozen=True)
class RoundPlan:
    """`compared` is the store to audit, None for the journal alone. Without `report`, no report is written."""

    journal: str
    compared: ComparedStore | None
    report: Path | None = None
    last_ms: int = 7 * 86_400_000
    assume_lost: Sequence[str] = ()


class RoundStep(Struct):
    """`numbers` is what the step counted."""

    seconds: float = 0.0
    numbers: dict[str, int] = field(default_factory=dict[str, int])


class Round(Struct):
    """`ok`: every step ran, no line of the journal is damaged and the audit is sound. `problem` says why not."""

    number: int
    started_at: int
    ended_at: int = 0
    ok: bool = False
    problem: str = ""
    steps: dict[str, RoundStep] = field(default_factory=dict[str, RoundStep])


class RoundWatcher(Protocol):
    """Hears of each step of a round, and of the round itself as the step `round`. It raises nothing."""

    def began(self, step: str) -> None: ...

    def ended(self, step: str, numbers: Mapping[str, int]) -> None: ...

    def failed(self, step: str, problem: str) -> None: ...


class Unwatched:
    """A watcher that ignores what it hears."""

    def began(self, step: str) -> None:
        pass

    def ended(self, step: str, numbers: Mapping[str, int]) -> None:
        pass

    def failed(self, step: str, problem: str) -> None:
        pass


def run_round(
    lake: Lake,
    plan: RoundPlan,
    *,
    number: int = 1,
    on_step: OnStep = lambda step: None,
    ended: Callable[[Round], None] = lambda made: None,
    watcher: RoundWatcher | None = None,
) -> Round:
    """Run one round, and call `ended` with it. A DuetimeError ends the round and becomes its `problem`; so does any
    other error, which is raised after `ended` was called.
    """
    made = Round(number, SystemClock().now_ms())
    problems: list[str] = []
    unexpected: Exception | None = None
    watcher = watcher or Unwatched()
    watcher.began(WHOLE)
    for name, step in _STEPS.items():
        on_step(name)
        watcher.began(name)
        began = time.monotonic()
        try:
            numbers, problem = step(lake, plan)
        except DuetimeError as error:
            problems.append(f"{name}: {error.message}")
            watcher.failed(name, error.message)
            break
        except Exception as error:
            unexpected, first_line = error, str(error).partition("\n")[0]
            problems.append(f"{name}: {type(error).__name__}: {first_line}")
            watcher.failed(name, f"{type(error).__name__}: {first_line}")
            break
        made.steps[name] = RoundStep(round(time.monotonic() - began, 3), numbers)
        watcher.ended(name, numbers)
        problems += [f"{name}: {problem}"] if problem else []
    made.ended_at, made.problem, made.ok = SystemClock().now_ms(), "; ".join(problems), not problems
    if problems:
        watcher.failed(WHOLE, made.problem)
    else:
        watcher.ended(WHOLE, {})
    ended(made)
    if unexpected:
        raise unexpected
    return made


Counted = tuple[dict[str, int], str]
"""What a step counted, and what is wrong, empty if nothing is."""


def _ingest(lake: Lake, plan: RoundPlan) -> Counted:
    done = run_ingest(lake, plan.journal)
    numbers = {"segments": done.segments, "events": done.events, "repeated": done.repeated, "damaged": done.damaged}
    return numbers, f"{done.damaged:,} damaged lines, the first in {done.damage[0].file}" if done.damage else ""


def _lifecycle(lake: Lake, plan: RoundPlan) -> Counted:
    done = run_lifecycle(lake)
    return {"days": done.days, "jobs": done.jobs}, ""


def _stats(lake: Lake, plan: RoundPlan) -> Counted:
    return {"days": len(refresh_stats(lake).dates)}, ""


def _audit(lake: Lake, plan: RoundPlan) -> Counted:
    # Somebody who only ever runs rounds would never forget a node, and each program that uses the store adds one.
    audited = run_audit(lake, plan.journal, plan.compared, assume_lost=plan.assume_lost, forget_ended=True)
    return audit_verdict(audited)


def audit_verdict(audited: Audited) -> Counted:
    words = [f"{count:,} {kind}" for kind, count in sorted(audited.found.items())]
    words += [f"{one.kind} of {one.node}: {one.detail}" for one in audited.problems]
    problem = "" if audited.is_sound else f"{audited.verdict.lower()}: {'; '.join(words)} ({audited.folder})"
    return {"accepted": audited.total("accepted"), "problems": len(audited.problems), **audited.found}, problem


def _report(lake: Lake, plan: RoundPlan) -> Counted:
    if plan.report is None:
        return {}, ""
    now = SystemClock().now_ms()
    try:
        made = make_report(lake, Asked(now - plan.last_ms, now), written_at=now)
    except NothingToReport:  # a quiet week is no problem
        return {}, ""
    write_file(made, plan.report)
    counts: dict[str, Any] = summary(made)["counts"]
    return {name: counts[name] for name in ("accepted", "delivered", "acked", "dead")}, ""


_STEPS: dict[str, Callable[[Lake, RoundPlan], Counted]] = {
    "ingest": _ingest,
    "lifecycle": _lifecycle,
    "stats": _stats,
    "audit": _audit,
    "report": _report,
}


# --- the files for monitoring


def health_text(made: Round, every_ms: int = 0) -> bytes:
    """The round as JSON. `next_at` is when the next one begins, 0 if none does."""
    fields = msgspec.to_builtins(made) | {"next_at": made.started_at + every_ms if every_ms else 0}
    return msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"


def metrics_text(made: Round) -> bytes:
    """The round in Prometheus' text format."""
    lines = [
        f"# HELP {METRIC}_ok Whether the last round ended without a problem.",
        f"# TYPE {METRIC}_ok gauge",
        f"{METRIC}_ok {int(made.ok)}",
        f"# HELP {METRIC}_ended_timestamp_seconds When the last round ended.",
        f"# TYPE {METRIC}_ended_timestamp_seconds gauge",
        f"{METRIC}_ended_timestamp_seconds {made.ended_at / 1000}",
        f"# HELP {METRIC}_step_seconds How long a step of the last round took.",
        f"# TYPE {METRIC}_step_seconds gauge",
        *(f'{METRIC}_step_seconds{{step="{name}"}} {step.seconds}' for name, step in made.steps.items()),
        f"# HELP {METRIC}_count What a step of the last round counted.",
        f"# TYPE {METRIC}_count gauge",
        *(
            f'{METRIC}_count{{step="{name}",what="{what}"}} {count}'
            for name, step in made.steps.items()
            for what, count in sorted(step.numbers.items())
        ),
    ]
    return "\n".join(lines).encode() + b"\n"


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file in one step: readers see the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(content)
    os.replace(aside, path)

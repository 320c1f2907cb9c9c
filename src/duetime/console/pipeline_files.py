"""What the pipelines left in their lake, as far as it can be read without Spark: the small JSON files.

    <lake>/batches/<batch>/_accepted, _pushing, _manifest    how far a batch that was scheduled from Spark has come
    <lake>/batches/<batch>/_progress/*                       how many of its rows are pushed
    <lake>/audit/<run>/summary.json                          what an audit found
    <lake>/reconcile/<run>/summary.json                      what a reconcile put back
    <lake>/forecast/<run>/summary.json                       what falls due, and what will be late
    <lake>/health.json                                       the last round, by `pipeline run --health LAKE/health.json`
    <lake>/reports/*.html                                    reports, by `--report` or `--out LAKE/reports/NAME.html`

A file that cannot be read counts as absent: a pipeline may be writing it. Only local folders are read.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, field

BATCHES = 100
REPORTS = 30
LARGEST = 4 * 1_048_576
_URI = re.compile(r"[a-z][a-z0-9+.-]+:", re.IGNORECASE)
_REPORT = re.compile(r"[\w.() -]{1,200}\.html", re.ASCII)


class AcceptedRows(Struct, frozen=True):
    rows: int = 0
    bad: int = 0
    at: int = 0


class PushBegun(Struct, frozen=True):
    at: int = 0


class FileRows(Struct, frozen=True):
    rows: int = 0


class PushedBatch(Struct, frozen=True):
    namespace: str = ""
    rows: int = 0
    accepted: int = 0
    kept: int = 0
    bad: int = 0
    repeated: int = 0
    seconds: float = 0.0
    finished_at: int = 0


@dataclass(frozen=True)
class BatchProgress:
    """`state` is accepted, pushing or done. `pushed` of the good rows are pushed; it is None if nobody counts them."""

    name: str
    state: str
    rows: int
    bad: int
    since: int
    done: PushedBatch | None = None
    pushed: int | None = None

    @property
    def good(self) -> int:
        return max(self.rows - self.bad, 0)


class NodeProblem(Struct, frozen=True):
    kind: str
    node: str
    detail: str = ""


class AuditFinding(Struct, frozen=True):
    kind: str
    namespace: str
    queue: str
    id: str
    detail: str = ""
    batch: str | None = None


class AuditSummary(Struct, frozen=True):
    """`found` counts findings by kind; `findings` has the first of them. `at` is when the audit ended."""

    run: str
    at: int = 0
    is_sound: bool = False
    accepted: int = 0
    found: dict[str, int] = field(default_factory=dict[str, int])
    problems: list[NodeProblem] = field(default_factory=list[NodeProblem])
    findings: list[AuditFinding] = field(default_factory=list[AuditFinding])


class ReconcileSummary(Struct, frozen=True):
    run: str
    dry_run: bool = True
    lost: int = 0
    counts: dict[str, int] = field(default_factory=dict[str, int])
    refusals: list[str] = field(default_factory=list[str])
    scanned_at: int = 0


class ForecastTrouble(Struct, frozen=True):
    queue: str
    start_at: int
    worst_at: int
    worst_ms: float
    jobs: float = 0
    end_at: int = 0


class ForecastSummary(Struct, frozen=True):
    """`pending` and `expected` are jobs of all queues per step: waiting already, and not pushed yet."""

    written_at: int
    start_at: int
    step_ms: int
    target_ms: int = 0
    pending: list[float] = field(default_factory=list[float])
    expected: list[float] = field(default_factory=list[float])
    troubles: list[ForecastTrouble] = field(default_factory=list[ForecastTrouble])


class RoundStepSummary(Struct, frozen=True):
    seconds: float = 0.0


class RoundSummary(Struct, frozen=True):
    """The last round of `pipeline run`. `next_at` is 0 if there is no next one."""

    number: int
    started_at: int
    ended_at: int = 0
    ok: bool = False
    problem: str = ""
    next_at: int = 0
    steps: dict[str, RoundStepSummary] = field(default_factory=dict[str, RoundStepSummary])


@dataclass(frozen=True)
class ReportFile:
    name: str
    bytes: int
    changed_at: float


@dataclass(frozen=True)
class LakeSummary:
    """`batches` and `reports` are newest first."""

    batches: Sequence[BatchProgress]
    audit: AuditSummary | None
    reconcile: ReconcileSummary | None
    forecast: ForecastSummary | None
    round: RoundSummary | None
    reports: Sequence[ReportFile]


Decoded = TypeVar("Decoded", bound=Struct)


def local_lake(setting: str) -> Path | None:
    """The folder of a lake; None if it is none of this machine's."""
    if setting.startswith("file:"):
        return Path("/" + setting.removeprefix("file:").lstrip("/"))
    return None if not setting or _URI.match(setting) else Path(setting)


def read_lake(lake: Path) -> LakeSummary:
    """Reads at most a few hundred small files. Call it in a thread."""
    return LakeSummary(
        [one for one in map(_batch, _newest(lake / "batches", BATCHES)) if one is not None],
        _latest(lake / "audit", AuditSummary),
        _latest(lake / "reconcile", ReconcileSummary),
        _latest(lake / "forecast", ForecastSummary),
        _read(lake / "health.json", RoundSummary),
        _reports(lake / "reports"),
    )


def find_report(lake: Path, name: str) -> Path | None:
    """The file of a report; None unless the folder of reports has a file of exactly that name."""
    path = lake / "reports" / name
    return path if _REPORT.fullmatch(name) and path.is_file() and not path.is_symlink() else None


def _batch(folder: Path) -> BatchProgress | None:
    accepted, begun = _read(folder / "_accepted", AcceptedRows), _read(folder / "_pushing", PushBegun)
    done = _read(folder / "_manifest", PushedBatch)
    if done is not None:
        return BatchProgress(folder.name, "done", done.rows, done.bad, done.finished_at, done)
    if accepted is None:
        return None
    state, since = ("pushing", begun.at) if begun else ("accepted", accepted.at)
    return BatchProgress(folder.name, state, accepted.rows, accepted.bad, since, pushed=_pushed(folder / "_progress"))


def _pushed(folder: Path) -> int | None:
    """The rows that the tasks of a batch have pushed so far."""
    try:
        found = [_read(path, FileRows) for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError:
        return None
    return sum(one.rows for one in found if one is not None)


def _latest(folder: Path, kind: type[Decoded]) -> Decoded | None:
    """The summary of the latest run that has one. Runs are named by ids that rise with time."""
    try:
        runs = sorted((one.name for one in folder.iterdir()), reverse=True)
    except OSError:
        return None
    found = (_read(folder / run / "summary.json", kind) for run in runs[:BATCHES])
    return next((one for one in found if one is not None), None)


def _read(path: Path, kind: type[Decoded]) -> Decoded | None:
    try:
        if path.stat().st_size > LARGEST:
            return None
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def _newest(folder: Path, most: int) -> list[Path]:
    try:
        found = [(one.stat().st_mtime, one) for one in folder.iterdir()]
    except OSError:
        return []
    return [path for _, path in sorted(found, reverse=True)[:most]]


def _reports(folder: Path) -> list[ReportFile]:
    files = [path for path in _newest(folder, REPORTS) if _REPORT.fullmatch(path.name) and path.is_file()]
    return [ReportFile(path.name, path.stat().st_size, path.stat().st_mtime) for path in files]

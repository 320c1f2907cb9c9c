"""Runs the nemesis on each store and prints what the checker found: `make faults`, `make faults ARGS="--stores redis"`.

Stores are tested side by side, because most of a round is waiting. The exit code is 1 if anything is wrong. The same
result with charts is in build/faults.html.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from html import escape
from multiprocessing import get_context
from pathlib import Path

from tests.faults.blackbox.history import FAULTS, Outcome
from tests.faults.blackbox.nemesis import ACTIONS
from tests.faults.blackbox.rounds import Round, run_kind
from tests.faults.blackbox.system import FAILOVERS, STORES

PAGE = Path("build/faults.html")
COLUMNS = ("accepted", "delivered", "unknown", "restored", "undone", *FAULTS, "recovery")


def write_table(rounds: Sequence[Round]) -> str:
    width = max(len(one.action) for one in rounds)
    lines = [f"{'store':<8} {'action':<{width}} " + " ".join(f"{name:>11}" for name in COLUMNS)]
    for one in rounds:
        lines.append(f"{one.kind:<8} {one.action:<{width}} " + " ".join(f"{cell:>11}" for cell in one.cells()))
    problems = [f"{one.kind}, {one.action}, {fault}: {text}" for one in rounds for fault, texts in one.found.items()
                for text in texts[:3]]  # fmt: skip
    return "\n".join([*lines, "", *problems, summary(rounds)])


def summary(rounds: Sequence[Round]) -> str:
    accepted = sum(len(one.history.accepted) for one in rounds)
    delivered = sum(len(one.history.deliveries) for one in rounds)
    bad = sum(len(texts) for one in rounds for texts in one.found.values())
    stores = ", ".join(dict.fromkeys(one.kind for one in rounds))
    return f"{len(rounds)} rounds on {stores}; {accepted:,} accepted, {delivered:,} deliveries: {bad} wrong"


STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2rem; color: #222 } table { border-collapse: collapse }
td, th { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right }
td:nth-child(-n+2), th:nth-child(-n+2) { text-align: left; white-space: nowrap }
th { position: sticky; top: 0; background: #fff } .bad { background: #fdd; font-weight: bold }
rect.harm { fill: #f6c6c0 } path.pushed { stroke: #2563ab; fill: none } path.got { stroke: #2f9e44; fill: none }
"""
CHART_W, CHART_H, STEP_MS = 240, 36, 100


def write_page(rounds: Sequence[Round]) -> str:
    head = "".join(f"<th>{name}" for name in ("store", "action", *COLUMNS, "answers per 100 ms"))
    rows = "".join(_row(one) for one in rounds)
    problems = "".join(f"<li>{escape(one.kind)}, {escape(one.action)}, {fault}: {escape(text)}" for one in rounds
                       for fault, texts in one.found.items() for text in texts)  # fmt: skip
    return (
        f"<!doctype html><meta charset=utf-8><title>Duetime: faults</title><style>{STYLE}</style>"
        f"<h1>Faults</h1><p>{summary(rounds)}. Blue: accepted pushes; green: deliveries; red: while the nemesis acts."
        f"<table><tr>{head}{rows}</table><ul>{problems}</ul>"
    )


def _row(one: Round) -> str:
    cells = one.cells()
    is_fault = [name in FAULTS for name in COLUMNS]
    marked = "".join(f"<td{' class=bad' if fault and cell != '0' else ''}>{cell}"
                     for cell, fault in zip(cells, is_fault, strict=True))  # fmt: skip
    return f"<tr><td>{one.kind}<td>{escape(one.action)}{marked}<td>{_chart(one)}"


def _chart(one: Round) -> str:
    """Answers over time, as SVG."""
    pushed = [push.answered_at for push in one.history.pushes if push.outcome is Outcome.OK]
    got = [delivery.received_at for delivery in one.history.deliveries]
    ends_at = max([*pushed, *got, one.healed_at]) + STEP_MS
    steps = (ends_at - one.began_at) // STEP_MS + 1
    rates = [[0] * steps, [0] * steps]
    for rate, times in zip(rates, (pushed, got), strict=True):
        for at in times:
            rate[(at - one.began_at) // STEP_MS] += 1
    highest = max(map(max, rates)) or 1

    def x(at: float) -> float:
        return CHART_W * (at - one.began_at) / (ends_at - one.began_at)

    def line(rate: list[int]) -> str:
        points = (f"{CHART_W * i / steps:.1f},{CHART_H * (1 - n / highest):.1f}" for i, n in enumerate(rate))
        return "M" + "L".join(points)

    harm = (
        f"<rect class=harm x={x(one.harmed_at):.1f} width={x(one.healed_at) - x(one.harmed_at):.1f} height={CHART_H} />"
    )
    paths = f'<path class=pushed d="{line(rates[0])}" /><path class=got d="{line(rates[1])}" />'
    return f'<svg width="{CHART_W}" height="{CHART_H}">{harm}{paths}</svg>'


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make faults", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--stores", default=",".join(STORES + FAILOVERS), help="comma-separated: %(default)s")
    parser.add_argument("--due-together", type=int, default=100_000, help="jobs that are due in the same second")
    parser.add_argument("--actions", default="", help="only actions whose names contain one of these texts")
    parser.add_argument("--load", type=float, default=1.0, help="seconds of load before and after each action")
    parser.add_argument("--at-a-time", type=int, default=2, help="stores that are tested side by side: %(default)s")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    actions = [name for name in ACTIONS if any(part in name for part in given.actions.split(","))]
    rounds: list[Round] = []
    broken: list[str] = []
    given.page.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="duetime-faults-", ignore_cleanup_errors=True) as base,
        ProcessPoolExecutor(given.at_a_time, mp_context=get_context("spawn")) as pool,
    ):
        running = {
            pool.submit(run_kind, kind, actions, given.load, Path(base) / kind, given.due_together): kind
            for kind in given.stores.split(",")
        }
        for done in as_completed(running):
            try:
                rounds += done.result()
            except Exception as error:
                broken.append(f"{running[done]}: broken off: {error}")
                print(broken[-1], flush=True)
                continue
            print(write_table(done.result()), flush=True)
            given.page.write_text(write_page(rounds))
    print("\n".join(["", *broken, summary(rounds), str(given.page)]))
    return 0 if all(one.is_good for one in rounds) and not broken else 1


if __name__ == "__main__":
    sys.exit(main())

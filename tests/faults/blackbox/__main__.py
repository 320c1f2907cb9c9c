"""Runs the nemesis on each store and prints what the checker found: `make faults`, `make faults ARGS="--stores redis"`.

Each action has a queue and clients of its own: load, harm, heal, load again, then a drain until the queue is empty. At
the end the server is stopped, and the checker compares the clients' histories with the journal and the store.
The exit code is 1 if anything is wrong. The same result with charts is in build/faults.html.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import httpx
import msgspec

from duetime.journal.events import Entry
from duetime.journal.reader import read_journal
from duetime.model.job import Event
from duetime.model.names import Queue
from duetime.stores.open import open_store
from tests.faults.blackbox.clients import PATIENCE_S, Load, now_ms
from tests.faults.blackbox.history import FAULTS, Drained, History, Journaled, Outcome, check
from tests.faults.blackbox.nemesis import ACTIONS, applies
from tests.faults.blackbox.system import FAILOVERS, STORES, System
from tests.plugins.until import until

PRODUCERS, CONSUMERS = 6, 4
DRAIN_S = 90.0
NAMESPACE = "faults"
PAGE = Path("build/faults.html")
COLUMNS = ("accepted", "delivered", "unknown", "restored", "undone", *FAULTS, "recovery")


@dataclass
class Round:
    """One action on one system. Times are epoch milliseconds."""

    kind: str
    action: str
    queue: Queue
    history: History
    began_at: int = 0
    harmed_at: int = 0
    healed_at: int = 0
    left: int = -1
    totals: dict[str, int] = field(default_factory=dict[str, int])
    restored: int = 0
    """Jobs that the store had lost, and that reconcile put back."""
    undone: list[str] = field(default_factory=list[str])
    """Acks and leases that a failover undid."""
    found: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    @property
    def recovery_s(self) -> float:
        """From the end of the harm to the first answer to a push that was sent after it."""
        answers = [push.answered_at for push in self.history.pushes
                   if push.outcome is Outcome.OK and push.asked_at >= self.healed_at]  # fmt: skip
        return (min(answers) - self.healed_at) / 1000 if answers else float("inf")

    @property
    def is_good(self) -> bool:
        return not any(self.found.values())

    def cells(self) -> list[str]:
        history = self.history
        numbers = [len(history.accepted), len(history.deliveries), history.count_unknown()]
        numbers += [self.restored, len(self.undone)]
        return [*map(str, numbers), *(str(len(self.found[fault])) for fault in FAULTS), f"{self.recovery_s:.2f} s"]


async def run_store(
    kind: str, actions: Sequence[str], *, load_s: float, folder: Path, due_together: int = 0
) -> list[Round]:
    """All actions that apply to this kind of store, one after another on one system."""
    rounds: list[Round] = []
    async with System(kind, folder, due_together=due_together) as system:
        for number, name in enumerate(actions):
            if applies(name, system):
                queue = Queue(NAMESPACE, f"q{number}")
                load = Load(system.api, str(queue), seed=number)
                rounds.append(await run_round(system, name, queue, load, load_s=load_s))
        await system.stop_server()
        await _judge(system, rounds)
    return rounds


async def run_round(system: System, name: str, queue: Queue, load: Load, *, load_s: float) -> Round:
    """Load, harm, heal, load, drain; if the harm made the store lose jobs, reconcile and drain again."""
    one, action = Round(system.kind, name, queue, load.history, began_at=now_ms()), ACTIONS[name]
    system.load = load
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.run(producers=PRODUCERS, consumers=CONSUMERS))
        await asyncio.sleep(load_s)
        one.harmed_at = now_ms()
        await action.harm(system)
        one.healed_at = now_ms()
        with suppress(TimeoutError):
            await until(lambda: one.recovery_s < float("inf"), deadline_s=DRAIN_S)
        await asyncio.sleep(load_s)
        load.stop_pushing()
        one.left = await _drain(load)
        if action.forgets:
            one.restored = await system.reconcile()
            one.left = await _drain(load)
        load.is_over.set()
    store = await open_store(system.url)
    try:
        [total] = await store.totals([queue])
        one.totals = msgspec.structs.asdict(total.running)
    finally:
        await store.close()
    return one


async def _drain(load: Load) -> int:
    """Consumers go on until the queue is empty; the jobs that are left if it never is."""
    deadline, left = time.monotonic() + DRAIN_S + len(load.history.pushes) / 1000, None
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
        while left != 0 and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            left = await load.count_left(http)
    return -1 if left is None else left


async def _judge(system: System, rounds: list[Round]) -> None:
    entries = [item for item in read_journal(system.journal) if isinstance(item, Entry)]
    store = await open_store(system.url)
    try:
        unsound = tuple(await store.check())
    finally:
        await store.close()
    for one in rounds:
        drained = Drained(one.left, one.totals, unsound)
        action = ACTIONS[one.action]
        one.found = check(one.history, _journaled(entries, one.queue), drained, forgets=action.forgets)
        if action.undoes:
            one.undone = [*one.found["zombie"], *one.found["doubled"]]
            one.found |= {"zombie": [], "doubled": []}


def _journaled(entries: Iterable[Entry], queue: Queue) -> Journaled:
    own = [entry for entry in entries if entry.queue == queue.name]
    return Journaled(
        frozenset((entry.id, entry.born) for entry in own if entry.event is Event.ACCEPTED),
        frozenset((entry.id, entry.born, entry.attempt) for entry in own if entry.event is Event.ACKED),
    )


# --- the report


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
    stores = len({one.kind for one in rounds})
    return f"{len(rounds)} rounds on {stores} stores, {accepted:,} accepted, {delivered:,} deliveries: {bad} wrong"


STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2rem; color: #222 } table { border-collapse: collapse }
td, th { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right }
td:nth-child(-n+2), th:nth-child(-n+2) { text-align: left } .bad { background: #fdd; font-weight: bold }
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
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    actions = [name for name in ACTIONS if any(part in name for part in given.actions.split(","))]
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="duetime-faults-", ignore_cleanup_errors=True) as base:
        for kind in given.stores.split(","):
            folder, together = Path(base) / kind, given.due_together
            done = asyncio.run(run_store(kind, actions, load_s=given.load, folder=folder, due_together=together))
            print(write_table(done), flush=True)
            rounds += done
            given.page.parent.mkdir(parents=True, exist_ok=True)
            given.page.write_text(write_page(rounds))
    print(f"\n{summary(rounds)}\n{given.page}")
    return 0 if all(one.is_good for one in rounds) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Rounds of the nemesis on one system: load, harm, heal, load again, then a drain until the queue is empty.

Each action has a queue and clients of its own. At the end the server is stopped, and the checker compares the clients'
histories with the journal and the store.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
from tests.faults.blackbox.system import System
from tests.plugins.until import until

PRODUCERS, CONSUMERS = 6, 4
DRAIN_S = 90.0
NAMESPACE = "faults"


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
        answers = [
            push.answered_at
            for push in self.history.pushes
            if push.outcome is Outcome.OK and min(push.asked_at, push.answered_at) >= self.healed_at
        ]
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


def run_kind(kind: str, actions: Sequence[str], load_s: float, folder: Path, due_together: int) -> list[Round]:
    """In a process of its own."""
    return asyncio.run(run_store(kind, actions, load_s=load_s, folder=folder, due_together=due_together))


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

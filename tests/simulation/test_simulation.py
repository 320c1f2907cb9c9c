"""Five hundred worlds: nothing lost, nothing early, nothing doubled, nobody left waiting.

A failing seed is named with what was wrong and the end of its history. `DUETIME_SIM_SEED=123` runs that one alone, and
`DUETIME_SIM_SEEDS=100000` runs that many (`make faults`), from `DUETIME_SIM_FIRST=500` on:

    DUETIME_SIM_SEED=123 make test ARGS=tests/simulation
"""

import os

import pytest

from duetime.engine.engine import Engine
from duetime.engine.reaper import Reaper
from duetime.engine.waiters import QueueWaiters, Waiter
from tests.plugins.scale import read_scale
from tests.simulation.mutants import MUTANTS, ROOT
from tests.simulation.world import World, live

SEEDS_PER_TEST = 25
SEEDS = int(os.environ.get("DUETIME_SIM_SEEDS", 500 * read_scale()))
FIRST = int(os.environ.get("DUETIME_SIM_FIRST", "0"))
SHOWN = 40
"""How much of a failing seed's history is shown."""


def blocks() -> list[range]:
    if seed := os.environ.get("DUETIME_SIM_SEED"):
        return [range(int(seed), int(seed) + 1)]
    return [range(start, start + SEEDS_PER_TEST) for start in range(FIRST, FIRST + SEEDS, SEEDS_PER_TEST)]


def report(seed: int, world: World) -> str:
    history = [f"  {at} {event:<14} {queue} {job_id} {born}/{attempt}" for at, event, queue, job_id, born, attempt in
               world.books.history[-SHOWN:]]  # fmt: skip
    title = f"seed {seed} ({world.kind}); DUETIME_SIM_SEED={seed} runs it alone"
    return "\n".join([title, *world.books.complaints[:10], "the end of its history:", *history])


@pytest.mark.parametrize("seeds", blocks(), ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_nothing_is_lost_early_or_doubled(seeds: range) -> None:
    for seed in seeds:
        try:
            world = live(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}; DUETIME_SIM_SEED={seed} runs it alone")
            raise
        if world.books.complaints:
            pytest.fail(report(seed, world), pytrace=False)


@pytest.mark.parametrize("seed", range(8))
def test_a_seed_has_one_history(seed: int) -> None:
    assert live(seed).books.history == live(seed).books.history


@pytest.mark.parametrize("seed", [0, 1, 6, 7, 14, 15])
def test_a_world_is_full_of_life(seed: int) -> None:
    """A simulation in which little happens would find little."""
    world = live(seed)
    assert sum(world.books.events.values()) > 20
    assert len(world.received) > 5


def complaints_of(seeds: range) -> str:
    return "\n".join(complaint for seed in seeds for complaint in live(seed).books.complaints)


def test_it_notices_leases_that_nobody_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "give_back_later", lambda engine, deliveries: None)
    assert "nobody gave back" in complaints_of(range(6, 24, 8))


def test_it_notices_a_timer_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_if_due(queue: QueueWaiters, now: int | None = None) -> None:
        now = queue.waiters.time.now_ms() if now is None else now
        if queue._next_at is not None and queue._next_at <= now:
            queue.signal()

    monkeypatch.setattr(QueueWaiters, "set_timer", only_if_due)
    assert "nobody told the consumer" in complaints_of(range(0, 20, 4))


def test_it_notices_leases_that_nobody_takes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reaper, "run_within", lambda reaper, seconds: None)
    monkeypatch.setattr("duetime.engine.reaper.LONGEST_REST_S", 5.0)
    assert "nobody took back" in complaints_of(range(6, 24, 8))


def test_it_notices_queues_whose_empty_calls_set_off_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happened before a freed consumer asked whether the queue still has a job for it."""
    missed: dict[Waiter, set[QueueWaiters]] = {}
    choose = QueueWaiters._next_waiters

    def remember_the_busy(queue: QueueWaiters) -> list[Waiter]:
        for waiter in queue.parked:
            if waiter.busy:
                missed.setdefault(waiter, set()).add(queue)
        return choose(queue)

    def signal_all_that_were_missed(waiter: Waiter) -> None:
        waiter.busy = False
        for queue in [queue for queue in waiter.lists if queue in missed.get(waiter, ())]:
            queue.signal()
        missed.pop(waiter, None)

    monkeypatch.setattr(QueueWaiters, "_next_waiters", remember_the_busy)
    monkeypatch.setattr(Waiter, "free", signal_all_that_were_missed)
    assert "asks again and again" in complaints_of(range(14, 64, 16))


def test_it_notices_a_queue_that_freed_consumers_are_not_offered_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueWaiters, "on_waiter_free", lambda queue: None)
    assert "nobody told the consumer" in complaints_of(range(16, 64, 2))


def test_mutants_are_changes_of_the_code_as_it_is() -> None:
    counts = {one.name: (ROOT / "src" / "duetime" / one.file).read_text().count(one.old) for one in MUTANTS}
    assert [name for name, count in counts.items() if count != 1] == []

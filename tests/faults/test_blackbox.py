"""The checker finds what is planted in a history, and the short form of `make faults` finds nothing on any store."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.blackbox.__main__ import write_page, write_table
from tests.faults.blackbox.history import (
    FAULTS,
    Delivery,
    Drained,
    Finish,
    History,
    Journaled,
    Outcome,
    Push,
    check,
)
from tests.faults.blackbox.nemesis import ACTIONS
from tests.faults.blackbox.rounds import Round, run_store
from tests.faults.blackbox.soak import Level, find_growth
from tests.faults.blackbox.system import STORES

OK, GONE, LOST, REFUSED, UNKNOWN = Outcome
TOTALS = {"accepted": 3, "acked": 3, "delivered": 4}


def good_history() -> History:
    """Three jobs: one acked at once, one after its first lease ended, one of which nobody knows whether it exists."""
    return History(
        [
            Push("a", 1000, 1010, 500, OK, (1001,)),
            Push("b", 1000, 1020, 0, OK, (1002,)),
            Push("c", 1000, 1030, 0, UNKNOWN),
            Push("d", 1000, 1030, 0, REFUSED),
        ],
        [
            Delivery("a", 1001, 1, 1400, 1510, 3510),
            Delivery("b", 1002, 1, 1020, 1030, 3030),
            Delivery("b", 1002, 2, 3020, 3040, 5040),
            Delivery("c", 1003, 1, 1020, 1040, 3040),
        ],
        [
            Finish("ack", "a", 1001, 1, 1520, OK),
            Finish("ack", "b", 1002, 1, 3050, LOST),
            Finish("ack", "b", 1002, 2, 3060, UNKNOWN),
            Finish("ack", "b", 1002, 2, 3080, GONE),
            Finish("ack", "c", 1003, 1, 1050, OK),
        ],
    )


JOURNALED = Journaled(
    frozenset({("a", 1001), ("b", 1002), ("c", 1003)}),
    frozenset({("a", 1001, 1), ("b", 1002, 2), ("c", 1003, 1)}),
)
Plant = Callable[[History], object]

PLANTED: dict[str, tuple[str, Plant]] = {
    "accepted and never delivered": ("lost", lambda h: h.pushes.append(Push("e", 1000, 1010, 0, OK, (1005,)))),
    "delivered and never finished": ("lost", lambda h: h.finishes.pop(0)),
    "delivered before its delay is over": (
        "early",
        lambda h: h.deliveries.__setitem__(0, Delivery("a", 1001, 1, 1400, 1499, 3510)),
    ),
    "leased again before the lease ended": (
        "doubled",
        lambda h: h.deliveries.__setitem__(2, Delivery("b", 1002, 2, 3020, 3029, 5040)),
    ),
    "delivered after its ack": ("zombie", lambda h: h.deliveries.append(Delivery("a", 1001, 2, 3500, 3520, 5520))),
    "delivered after it was gone": ("zombie", lambda h: h.deliveries.append(Delivery("b", 1002, 3, 5050, 5060, 7060))),
    "an old lease is acked after a new one began": (
        "zombie",
        lambda h: h.finishes.__setitem__(1, Finish("ack", "b", 1002, 1, 3050, OK)),
    ),
    "one lease for two consumers": ("doubled", lambda h: h.deliveries.append(h.deliveries[0])),
    "two acks end one job": ("doubled", lambda h: h.finishes.append(Finish("ack", "a", 1001, 1, 1530, OK))),
    "one push makes two jobs": (
        "doubled",
        lambda h: h.pushes.__setitem__(0, Push("a", 1000, 1010, 500, OK, (1001, 1009))),
    ),
    "a refused push is delivered": ("wrong", lambda h: h.deliveries.append(Delivery("d", 1004, 1, 1040, 1050, 3050))),
    "a refused ack happened": (
        "wrong",
        lambda h: h.finishes.__setitem__(4, Finish("ack", "c", 1003, 1, 1050, REFUSED)),
    ),
    "a lease is called lost before its end": (
        "wrong",
        lambda h: h.finishes.__setitem__(1, Finish("ack", "b", 1002, 1, 3000, LOST)),
    ),
    "an accepted job that the journal does not have": (
        "unjournaled",
        lambda h: h.pushes.append(Push("e", 1000, 1010, 0, OK, (1005,))),
    ),
    "an ack that the journal does not have": (
        "unjournaled",
        lambda h: h.finishes.append(Finish("ack", "e", 1005, 1, 1050, OK)),
    ),
    "a total below what was accepted": ("counts", lambda h: h.pushes.append(Push("e", 1000, 1010, 0, OK, (1005,)))),
}


def test_a_history_without_faults_is_good() -> None:
    assert check(good_history(), JOURNALED, Drained(0, TOTALS)) == {fault: [] for fault in FAULTS}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    fault, plant = PLANTED[name]
    history = good_history()
    plant(history)
    totals = TOTALS if fault == "counts" else TOTALS | {"accepted": 9, "acked": 9}
    assert check(history, JOURNALED, Drained(0, totals))[fault]


FORGOTTEN = (
    "gone, and nobody acked it",
    "delivered after it was gone",
    "a lease is called lost before its end",
    "a total below what was accepted",
)


@pytest.mark.parametrize("name", PLANTED)
def test_a_store_that_forgets_is_held_to_the_rest(name: str) -> None:
    fault, plant = PLANTED[name]
    history = good_history()
    plant(history)
    found = check(history, JOURNALED, Drained(0, TOTALS), forgets=True)
    assert bool(found[fault]) is (name not in FORGOTTEN)


@pytest.mark.parametrize(
    "drained",
    [
        Drained(1, TOTALS),
        Drained(0, TOTALS | {"accepted": 4}),
        Drained(0, TOTALS | {"acked": 2}),
        Drained(0, TOTALS | {"delivered": 3}),
        Drained(0, TOTALS, ("a job is in two places",)),
    ],
    ids=["left", "accepted", "acked", "delivered", "unsound"],
)
def test_a_count_that_differs_is_found(drained: Drained) -> None:
    found = check(good_history(), JOURNALED, drained)
    assert [fault for fault in FAULTS if found[fault]] == ["counts"]


SHORT = {
    "sqlite": ["kill -9 a worker process"],
    "redis": ["kill -9 the store"],
    "postgres": ["swallow answers of the store"],
    "mysql": ["end all sessions of the store"],
    "group": ["cut the connections of the store"],
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.store_kind(kind)) for kind in STORES])
async def test_nothing_is_lost_early_or_doubled_while_things_break(kind: str, tmp_path: Path) -> None:
    rounds = await run_store(kind, SHORT[kind], load_s=0.2, folder=tmp_path / kind)
    assert len(rounds) == 1
    assert all(one.is_good for one in rounds), write_table(rounds)
    assert all(len(one.history.accepted) > 10 for one in rounds)


@pytest.mark.parametrize(
    ("last", "grown"),
    [
        (Level(108, 44, 12, 5), []),
        (Level(120, 40, 10, 5), ["memory_mib"]),
        (Level(100, 60, 10, 5), ["files"]),
        (Level(100, 40, 20, 5), ["threads"]),
        (Level(100, 40, 10, 6), ["entries"]),
    ],
)
def test_a_soak_names_what_grew(last: Level, grown: list[str]) -> None:
    peak = Level(500, 500, 500, 500)
    levels = [Level(90, 30, 10, 5), Level(100, 40, 9, 4), peak, last]
    assert [problem.partition(":")[0] for problem in find_growth(levels, 2)] == grown


def test_the_report_names_what_was_found() -> None:
    history = good_history()
    history.finishes.pop(0)
    one = Round("redis", next(iter(ACTIONS)), None, history, 1000, 1200, 1400)  # type: ignore[arg-type]
    one.found = check(history, JOURNALED, Drained(0, TOTALS))
    assert "('a', 1001) was accepted and never finished" in write_table([one])
    assert write_page([one]).count("class=bad") == 1
    assert dataclasses.replace(one, found={fault: [] for fault in FAULTS}).is_good

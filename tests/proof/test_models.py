"""The models hold, and each wrong variant fails."""

from functools import partial

import pytest

from tests.proof import queue_guarantees, queue_model, waiting_model
from tests.proof.checker import Checked, check


def run_queue(variant: queue_model.Variant) -> Checked[queue_model.State]:
    return check(
        queue_model.first(variant),
        partial(queue_model.actions, variant=variant),
        invariants=queue_guarantees.INVARIANTS,
        goal=queue_guarantees.is_goal,
    )


def run_waiting(variant: waiting_model.Variant) -> Checked[waiting_model.State]:
    return check(
        waiting_model.State(),
        partial(waiting_model.actions, variant=variant),
        invariants=waiting_model.INVARIANTS,
        goal=waiting_model.is_goal,
    )


@pytest.mark.parametrize(("ids", "borns", "attempts"), [(1, 2, 3), (2, 1, 2), (2, 2, 1)])
def test_the_queue_keeps_its_guarantees(ids: int, borns: int, attempts: int) -> None:
    checked = run_queue(queue_model.Variant(ids=ids, borns=borns, attempts=attempts))
    assert checked.failure is None, str(checked.failure)
    assert checked.states > 1000


def test_no_wake_up_is_lost() -> None:
    checked = run_waiting(waiting_model.Variant())
    assert checked.failure is None, str(checked.failure)
    assert checked.states > 100


@pytest.mark.parametrize(
    "rule",
    [
        "answers_after_flush",
        "is_fenced",
        "reconcile_knows_replaced",
        "reconcile_waits_for_nodes",
        "reconcile_keeps_attempts",
        "dead_nodes_are_closed",
    ],
)
def test_a_queue_without_one_of_its_rules_breaks_a_guarantee(rule: str) -> None:
    checked = run_queue(queue_model.Variant(**{rule: False}))
    assert checked.failure is not None


@pytest.mark.parametrize("rule", ["registers_first", "remembers_wakes", "has_safety_net"])
def test_waiting_without_one_of_its_rules_loses_a_wake_up(rule: str) -> None:
    loses = rule == "has_safety_net"
    variant = waiting_model.Variant(**{"has_safety_net": False, "loses_wakes": loses, rule: False})
    checked = run_waiting(variant)
    assert checked.failure is not None
    assert checked.failure.kind == "stuck"


def test_a_cycle_is_found() -> None:
    checked = check(0, lambda n: [("step", (n + 1) % 3)], invariants={}, goal=lambda _: True)
    assert checked.failure is not None
    assert checked.failure.kind == "cycle"

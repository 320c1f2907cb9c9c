"""What the real engine did in simulated worlds is something that the model can do.

The ledger of a simulation writes down every move of every job. Each job's moves are replayed as actions of the queue
model: every one of them must be possible there, lead to the same incarnation and attempt, and keep the invariants.
Moves that the model leaves out end a replay: a job killed, cancelled or expired.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from duetime.model.job import Event
from tests.proof.queue_guarantees import INVARIANTS
from tests.proof.queue_model import State, Variant, actions
from tests.simulation.world import live

SIZE = Variant()
Move = tuple[Event, int, int]
"""An event, and the born and the attempt after it. Borns are counted from 1."""

ACTIONS = {
    Event.ACCEPTED: "push",
    Event.REPLACED: "replace",
    Event.DELIVERED: "reserve",
    Event.ACKED: "ack",
    Event.RELEASED: "lapse",
    Event.LEASE_EXPIRED: "lapse",
    Event.GIVEN_BACK: "lapse",
}
NO_CHANGE = {Event.KEPT, Event.RESCHEDULED}


def act(state: State, name: str) -> State:
    """The state after the first action whose name begins so."""
    possible = dict(actions(state, SIZE))
    chosen = [after for action, after in possible.items() if action.startswith(name)]
    assert chosen, f"{name!r} is not possible in {state}, only {sorted(possible)}"
    return chosen[0]


def replay(moves: Sequence[Move]) -> Counter[str]:
    """The actions that were replayed, until a move that the model leaves out. One process does all of them."""
    state, replayed = State(), Counter[str]()
    for event, born, attempt in moves:
        if event in NO_CHANGE:
            continue
        if event not in ACTIONS or born > SIZE.borns or attempt > SIZE.attempts:
            break
        name = ACTIONS[event]
        state = act(state, f"ack {(0, born, attempt)} 0" if name == "ack" else name)
        if state.processes[0] is not None:
            state = act(act(state, "flush 0"), "answer 0")
        broken = [invariant for invariant, holds in INVARIANTS.items() if not holds(state)]
        assert not broken, (broken, state)
        if name == "ack":
            assert state.jobs[0] is None, (event, state)
        else:
            assert state.jobs[0] is not None, (event, state)
            assert state.jobs[0][:2] == (born, attempt), (event, state)
        replayed[name] += 1
    return replayed


def moves_of(seed: int) -> Iterator[list[Move]]:
    """The moves of each job id of a world."""
    by_id: dict[tuple[str, str], list[Move]] = {}
    borns: dict[tuple[str, str], dict[int, int]] = {}
    for _, event, queue, job_id, born, attempt in live(seed).books.history:
        numbers = borns.setdefault((queue, job_id), {})
        number = numbers.setdefault(born, len(numbers) + 1)
        by_id.setdefault((queue, job_id), []).append((event, number, attempt))
    yield from by_id.values()


def test_the_moves_of_the_engine_are_actions_of_the_model() -> None:
    replayed = sum((replay(moves) for seed in range(48) for moves in moves_of(seed)), Counter[str]())
    assert min(replayed[name] for name in set(ACTIONS.values())) > 20, replayed


@pytest.mark.parametrize(
    "moves",
    [
        [(Event.ACCEPTED, 1, 0), (Event.DELIVERED, 1, 2)],
        [(Event.ACCEPTED, 1, 0), (Event.DELIVERED, 1, 1), (Event.DELIVERED, 1, 2)],
        [(Event.ACCEPTED, 1, 0), (Event.ACKED, 1, 0)],
        [(Event.ACCEPTED, 1, 0), (Event.DELIVERED, 1, 1), (Event.REPLACED, 2, 0), (Event.ACKED, 1, 1)],
    ],
    ids=["a skipped attempt", "two leases", "an ack without a lease", "an ack of a replaced job"],
)
def test_moves_that_cannot_be_are_no_actions(moves: list[Move]) -> None:
    with pytest.raises(AssertionError):
        replay(moves)

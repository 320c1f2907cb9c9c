"""An explicit-state model checker: visits every state that a model can reach, and shows a shortest way to a bad one.

A model is a module-level function `actions(state)` that yields (name, next state) for everything that can happen next.
States are hashable values. `check` reports three kinds of failure, each with the trace that leads to it:

- a state that violates an invariant;
- a state without a next one that is not a goal: the system is stuck (a lost wake-up, a job that nobody delivers);
- a cycle of states. Models bound what may happen again and again (crashes, pushes), so a cycle means that the system
  can work for ever and get nowhere.

Without a cycle, every history ends in a state without a next one; that all of those are goals is then liveness.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)
Actions = Callable[[State], Iterable[tuple[str, State]]]
Invariant = Callable[[State], bool]


@dataclass(frozen=True)
class Failure(Generic[State]):
    """`trace` are the actions from the first state, and the state after each."""

    kind: str
    trace: tuple[tuple[str, State], ...]

    def __str__(self) -> str:
        steps = "\n".join(f"  {number:2}. {name:<34} {state}" for number, (name, state) in enumerate(self.trace))
        return f"{self.kind} after:\n{steps}"


@dataclass(frozen=True)
class Checked(Generic[State]):
    states: int
    steps: int
    failure: Failure[State] | None


class Exploration(Generic[State]):
    def __init__(self, first: State, actions: Actions[State]) -> None:
        self._first, self._actions = first, actions
        self._came_by: dict[State, tuple[str, State] | None] = {first: None}
        self._next: dict[State, list[State]] = {}
        self.steps = 0

    def run(
        self, invariants: Mapping[str, Invariant[State]], goal: Invariant[State], most: int
    ) -> Failure[State] | None:
        waiting = deque([self._first])
        while waiting:
            state = waiting.popleft()
            for name, holds in invariants.items():
                if not holds(state):
                    return Failure(f"invariant '{name}' is violated", self._trace(state))
            following = [one for one in self._actions(state) if one[1] != state]
            self.steps += len(following)
            self._next[state] = [after for _, after in following]
            if not following and not goal(state):
                return Failure("stuck", self._trace(state))
            for name, after in following:
                if after not in self._came_by:
                    self._came_by[after] = (name, state)
                    waiting.append(after)
            if len(self._came_by) > most:
                raise AssertionError(f"the model has over {most:,} states")
        on_cycle = self._find_cycle()
        return None if on_cycle is None else Failure("cycle", self._trace(on_cycle))

    def __len__(self) -> int:
        return len(self._came_by)

    def _trace(self, state: State) -> tuple[tuple[str, State], ...]:
        steps: list[tuple[str, State]] = []
        at = state
        while (came := self._came_by[at]) is not None:
            steps.append((came[0], at))
            at = came[1]
        return (("begin", self._first), *reversed(steps))

    def _find_cycle(self) -> State | None:
        """Removes states without a predecessor until none is left; what stays is on or behind a cycle."""
        before: dict[State, int] = dict.fromkeys(self._came_by, 0)
        for following in self._next.values():
            for state in following:
                before[state] += 1
        free = deque(state for state, count in before.items() if not count)
        left = len(before)
        while free:
            left -= 1
            for state in self._next[free.popleft()]:
                before[state] -= 1
                if not before[state]:
                    free.append(state)
        return next((state for state, count in before.items() if count), None) if left else None


def check(
    first: State,
    actions: Actions[State],
    *,
    invariants: Mapping[str, Invariant[State]],
    goal: Invariant[State],
    most: int = 2_000_000,
) -> Checked[State]:
    """Visit all states. `goal` says which states the system may end in."""
    exploration = Exploration(first, actions)
    failure = exploration.run(invariants, goal, most)
    return Checked(len(exploration), exploration.steps, failure)

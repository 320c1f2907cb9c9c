"""The waiting protocol: a consumer that waits for a job is woken, whatever the order of events.

Two processes, each with one consumer of the same queue, and a producer that pushes two jobs. It maps to the engine:

    register    Waiters.wait: the consumer joins the list of its queue BEFORE the first check
    ask         a reserve is sent to the store; `version` of the wait list is remembered
    answer      on_reserve_result: the job, or nothing and when to ask again
    push        the store has the job; wakes for both processes are sent
    wake        on_job_available: the version is raised, and a reserve is sent unless one is under way
    lose        a wake from another process gets lost (Redis PUBLISH, a datagram)
    safety net  once a second, all queues with waiting consumers are checked

Wrong variants: registering after the first check; forgetting a wake that arrives while a reserve is under way; no
safety net although wakes can be lost.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

JOBS = 2


@dataclass(frozen=True)
class Variant:
    registers_first: bool = True
    remembers_wakes: bool = True
    has_safety_net: bool = True
    loses_wakes: bool = True


class Consumer(NamedTuple):
    """`step`: new, asking (a reserve is under way), parked, served. `again`: a wake came during the reserve.

    `found` is what the store answered, before the process has read the answer: None while the reserve travels.
    """

    step: str = "new"
    registered: bool = False
    found: bool | None = None
    again: bool = False
    wakes: int = 0


class State(NamedTuple):
    pushed: int = 0
    ready: int = 0
    lost: int = 0
    consumers: tuple[Consumer, ...] = (Consumer(), Consumer())

    def but(self, number: int, consumer: Consumer, **changes: int) -> "State":
        consumers = tuple(consumer if n == number else one for n, one in enumerate(self.consumers))
        return self._replace(consumers=consumers, **changes)


def actions(state: State, variant: Variant) -> Iterator[tuple[str, State]]:
    if state.pushed < JOBS:
        yield "push", _pushed(state)
    for number, consumer in enumerate(state.consumers):
        for name, after in _consumer_actions(state, number, consumer, variant):
            yield f"{name} {number}", after
    if variant.has_safety_net:
        yield from _safety_net(state)


def _pushed(state: State) -> State:
    """A wake goes to every process whose consumer is registered."""
    woken = tuple(one._replace(wakes=min(one.wakes + 1, JOBS)) if one.registered else one for one in state.consumers)
    return state._replace(pushed=state.pushed + 1, ready=state.ready + 1, consumers=woken)


def _consumer_actions(state: State, number: int, one: Consumer, variant: Variant) -> Iterator[tuple[str, State]]:
    match one.step:
        case "new":
            yield "begin", state.but(number, one._replace(step="asking", registered=variant.registers_first))
        case "asking" if one.found is None:
            taken = state.ready > 0
            yield "store answers", state.but(number, one._replace(found=taken), ready=state.ready - taken)
        case "asking" if one.found:
            yield "job arrives", state.but(number, Consumer("served"))
        case "asking":
            step = "asking" if one.again else "parked"
            yield "nothing found", state.but(number, one._replace(step=step, registered=True, found=None, again=False))
        case _:
            pass
    if one.wakes and one.step in ("asking", "parked"):
        yield "wake", state.but(number, _woken(one, variant))
        if variant.loses_wakes and state.lost < 1:
            yield "lose a wake", state.but(number, one._replace(wakes=one.wakes - 1), lost=state.lost + 1)


def _woken(one: Consumer, variant: Variant) -> Consumer:
    one = one._replace(wakes=one.wakes - 1)
    if one.step == "parked":
        return one._replace(step="asking")
    return one._replace(again=variant.remembers_wakes)


def _safety_net(state: State) -> Iterator[tuple[str, State]]:
    """It also asks while nothing is ready; that changes nothing and is left out."""
    for number, one in enumerate(state.consumers):
        if one.step == "parked" and state.ready:
            yield f"safety net {number}", state.but(number, one._replace(step="asking"))


def is_goal(state: State) -> bool:
    """All jobs were pushed, and nobody waits while one is ready."""
    waiting = sum(one.step != "served" for one in state.consumers)
    return state.pushed == JOBS and not (state.ready and waiting)


INVARIANTS = {
    "a job is delivered once": lambda state: (
        state.ready + sum(one.step == "served" or bool(one.found) for one in state.consumers) == state.pushed
    ),
}

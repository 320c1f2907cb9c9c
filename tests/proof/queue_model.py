"""Push, reserve, ack, lapse, replace, crash, wipe and reconcile of one job id, over two processes with journals.

A process changes the store first, then writes the entry to its journal, then answers (guarantee 1). It can be killed
between any two of these; what it had not flushed is gone. The store can be wiped. Reconcile reads the journals and
pushes again what was accepted, has not ended, was not replaced, and is not in the store; it waits until every process
has flushed or is known to be dead. Maps to the code:

    push, replace   Engine.push -> Batcher -> Store.push -> JournalRecorder.after, flushed -> reply
    reserve         Store.reserve: a lease is (born, attempt)
    ack             Store.ack with the lease: the fence
    lapse           Store.reap
    flush, answer   JournalRecorder.flushed, Lane._deliver
    reconcile       spark/reconcile: lost = accepted - ended - replaced - in the store

Left out: a delivery whose entry was lost with its process. Deliveries are not flushed before the consumer gets the job,
so a wipe after such a crash can let an old lease match a new one.

Wrong variants are in `Variant`; each must violate an invariant.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

PROCESSES = 2
BORNS = (1, 2)
MAX_ATTEMPT = 3


@dataclass(frozen=True)
class Variant:
    answers_after_flush: bool = True
    is_fenced: bool = True
    reconcile_knows_replaced: bool = True
    reconcile_waits_for_nodes: bool = True
    reconcile_keeps_attempts: bool = True


class Pending(NamedTuple):
    """A change that is in the store and not answered yet: `entry` goes to the journal."""

    entry: tuple[str, int] | None
    flushed: bool = False


class Job(NamedTuple):
    """The job in the store. `lease` is the attempt of the live lease, 0 while it waits."""

    born: int
    attempt: int = 0
    lease: int = 0


class State(NamedTuple):
    """`accepted`, `acked` and `replaced` are what clients were told; `ended` is what really ended in the store."""

    job: Job | None = None
    next_born: int = 0
    processes: tuple[Pending | None, ...] = (None,) * PROCESSES
    alive: tuple[bool, ...] = (True,) * PROCESSES
    journal: frozenset[tuple[str, int]] = frozenset()
    leases: frozenset[tuple[int, int]] = frozenset()
    accepted: frozenset[int] = frozenset()
    acked: frozenset[int] = frozenset()
    replaced: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()
    delivered_after_end: bool = False
    two_holders: bool = False
    is_wiped: bool = False
    reconciled: int = 0


def actions(state: State, variant: Variant) -> Iterator[tuple[str, State]]:
    for number in range(PROCESSES):
        if state.alive[number]:
            for name, after in _process(state, number, variant):
                yield f"{name} {number}", after
    yield from _world(state, variant)


def _process(state: State, number: int, variant: Variant) -> Iterator[tuple[str, State]]:
    pending = state.processes[number]
    if pending is None:
        yield from _calls(state, number)
        for lease in state.leases:
            yield f"ack {lease}", _ack(state, number, lease, variant)
        return
    if not pending.flushed:
        written = state.journal | {pending.entry} if pending.entry else state.journal
        yield "flush", _set(state._replace(journal=written), number, pending._replace(flushed=True))
    if pending.flushed or not variant.answers_after_flush:
        answered = _answer(state, pending.entry)
        # Without the rule, the answer comes first and the entry stays to be flushed.
        left = None if pending.flushed else Pending(pending.entry)
        if pending.flushed or answered != state:
            yield "answer", _set(answered, number, left)


def _calls(state: State, number: int) -> Iterator[tuple[str, State]]:
    born = state.next_born + 1
    if born in BORNS:
        new = state._replace(next_born=born, job=Job(born))
        if state.job is None:
            yield "push", _set(new, number, Pending(("accepted", born)))
        else:
            new = new._replace(ended=state.ended | {state.job.born})
            yield "replace", _set(new, number, Pending(("replaced", born)))
    if (job := state.job) and not job.lease and job.attempt < MAX_ATTEMPT:
        leased = job._replace(attempt=job.attempt + 1, lease=job.attempt + 1)
        yield "reserve", _delivered(state._replace(job=leased), leased)


def _delivered(state: State, job: Job) -> State:
    """The consumer gets the job now. It must not be one that ended for the client."""
    ended = job.born in state.acked or job.born in state.replaced
    lease = (job.born, job.attempt)
    return state._replace(
        leases=state.leases | {lease},
        delivered_after_end=state.delivered_after_end or ended,
        two_holders=state.two_holders or lease in state.leases,
    )


def _ack(state: State, number: int, lease: tuple[int, int], variant: Variant) -> State:
    job, born = state.job, lease[0]
    matches = job is not None and (
        (job.born, job.lease) == lease if variant.is_fenced else job.lease != 0 or job.born == born
    )
    left = state._replace(leases=state.leases - {lease})
    if not matches:
        return left  # refused: lease_lost
    return _set(left._replace(job=None, ended=left.ended | {born}), number, Pending(("acked", born)))


def _answer(state: State, entry: tuple[str, int] | None) -> State:
    match entry:
        case ("accepted", born):
            return state._replace(accepted=state.accepted | {born})
        case ("replaced", born):
            return state._replace(accepted=state.accepted | {born}, replaced=state.replaced | {born - 1})
        case ("acked", born):
            return state._replace(acked=state.acked | {born})
        case _:
            return state


def _set(state: State, number: int, pending: Pending | None) -> State:
    processes = tuple(pending if n == number else one for n, one in enumerate(state.processes))
    return state._replace(processes=processes)


def _world(state: State, variant: Variant) -> Iterator[tuple[str, State]]:
    if state.job and state.job.lease:
        yield "lapse", state._replace(job=state.job._replace(lease=0))
    if all(state.alive):
        alive = (False, *state.alive[1:])
        yield "kill 0", _set(state._replace(alive=alive), 0, None)
    if not state.is_wiped:
        yield "wipe", state._replace(job=None, is_wiped=True)
    elif state.reconciled < 1:
        yield from _reconcile(state, variant)


def _reconcile(state: State, variant: Variant) -> Iterator[tuple[str, State]]:
    owes = any(one and one.entry and not one.flushed for one in state.processes)
    if owes and variant.reconcile_waits_for_nodes:
        return
    known = {born for _, born in state.journal}
    ended = {born for what, born in state.journal if what == "acked"}
    accepted = {born for what, born in state.journal if what in ("accepted", "replaced")}
    lost = accepted - ended
    if variant.reconcile_knows_replaced:
        lost = {born for born in lost if born == max(known)}
    after = state._replace(reconciled=state.reconciled + 1)
    if lost and state.job is None:
        born = max(lost) if variant.reconcile_knows_replaced else min(lost)
        given = max((attempt for lease_born, attempt in state.leases if lease_born == born), default=0)
        attempt = given if variant.reconcile_keeps_attempts else 0
        after = after._replace(job=Job(born, attempt))
    yield "reconcile", after


def is_kept(state: State) -> bool:
    """A job that was answered as accepted and has not ended is in the store or, after a wipe, in the journal."""
    for born in state.accepted - state.ended:
        in_store = state.job is not None and state.job.born == born
        journaled = not state.journal.isdisjoint({("accepted", born), ("replaced", born)})
        if not in_store and not (state.is_wiped and journaled):
            return False
    return True


INVARIANTS = {
    "accepted means kept": is_kept,
    "nothing is delivered after its end was answered": lambda state: not state.delivered_after_end,
    "a lease has one holder": lambda state: not state.two_holders,
}


def is_goal(state: State) -> bool:
    return True

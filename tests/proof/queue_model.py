"""Push, reserve, ack, lapse, replace, crash, wipe and reconcile of job ids, over two processes with journals.

A process changes the store first, then writes the entry to its journal, then answers (guarantee 1). It can be killed
between any two of these; what it had not flushed is gone. The store can be wiped. Reconcile reads the journals and
pushes again what was accepted, has not ended, was not replaced, and is not in the store; it waits until every process
has flushed or is known to be dead. In the end every accepted job has ended or is in the store, and was delivered as
often as the model allows. Maps to the code:

    push, replace   Engine.push -> Batcher -> Store.push -> JournalRecorder.after, flushed -> reply
    reserve         Store.reserve: a lease is (born, attempt)
    ack             Store.ack with the lease: the fence
    lapse           Store.reap
    flush, answer   JournalRecorder.flushed, Lane.answer
    reconcile       spark/reconcile: lost = accepted - ended - replaced - in the store

Left out: a delivery whose entry was lost with its process. Deliveries are not flushed before the consumer gets the job,
so a wipe after such a crash can let an old lease match a new one.

What must hold is in `queue_guarantees.py`. Wrong variants are in `Variant`; each must break one of these guarantees.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

PROCESSES = 2


@dataclass(frozen=True)
class Variant:
    """The rules, and the size of the model: ids, incarnations and deliveries of each."""

    answers_after_flush: bool = True
    is_fenced: bool = True
    reconcile_knows_replaced: bool = True
    reconcile_waits_for_nodes: bool = True
    reconcile_keeps_attempts: bool = True
    dead_nodes_are_closed: bool = True
    ids: int = 1
    borns: int = 2
    attempts: int = 3


Life = tuple[int, int]
"""Id and born."""


class Pending(NamedTuple):
    """A change that is in the store and not answered yet: `entry` goes to the journal."""

    entry: tuple[str, int, int]
    flushed: bool = False


class Job(NamedTuple):
    """The job in the store. `lease` is the attempt of the live lease, 0 while it waits."""

    born: int
    attempt: int = 0
    lease: int = 0


class State(NamedTuple):
    """`accepted`, `acked` and `replaced` are what clients were told; `ended` is what really ended in the store."""

    jobs: tuple[Job | None, ...] = (None,)
    last_born: tuple[int, ...] = (0,)
    processes: tuple[Pending | None, ...] = (None,) * PROCESSES
    is_killed: bool = False
    """Process 0 was."""
    journal: frozenset[tuple[str, int, int]] = frozenset()
    leases: frozenset[tuple[int, int, int]] = frozenset()
    accepted: frozenset[Life] = frozenset()
    acked: frozenset[Life] = frozenset()
    replaced: frozenset[Life] = frozenset()
    ended: frozenset[Life] = frozenset()
    delivered_after_end: bool = False
    two_holders: bool = False
    is_wiped: bool = False
    is_reconciled: bool = False


def first(variant: Variant) -> State:
    return State((None,) * variant.ids, (0,) * variant.ids)


def actions(state: State, variant: Variant) -> Iterator[tuple[str, State]]:
    for number in range(state.is_killed, PROCESSES):
        for name, after in _process(state, number, variant):
            yield f"{name} {number}", after
    yield from _world(state, variant)


def _process(state: State, number: int, variant: Variant) -> Iterator[tuple[str, State]]:
    pending = state.processes[number]
    if pending is None:
        for job_id in range(variant.ids):
            yield from _calls(state, number, job_id, variant)
        for lease in state.leases:
            yield f"ack {lease}", _ack(state, number, lease, variant)
        return
    if not pending.flushed:
        written = state._replace(journal=state.journal | {pending.entry})
        yield "flush", _set(written, number, pending._replace(flushed=True))
    if pending.flushed or not variant.answers_after_flush:
        answered = _answer(state, pending.entry)
        # Without the rule, the answer comes first and the entry stays to be flushed.
        left = None if pending.flushed else Pending(pending.entry)
        if pending.flushed or answered != state:
            yield "answer", _set(answered, number, left)


def _calls(state: State, number: int, job_id: int, variant: Variant) -> Iterator[tuple[str, State]]:
    job, born = state.jobs[job_id], state.last_born[job_id] + 1
    if born <= variant.borns:
        new = _put(state._replace(last_born=_at(state.last_born, job_id, born)), job_id, Job(born))
        if job is None:
            yield f"push {job_id}", _set(new, number, Pending(("accepted", job_id, born)))
        else:
            new = new._replace(ended=state.ended | {(job_id, job.born)})
            yield f"replace {job_id}", _set(new, number, Pending(("replaced", job_id, born)))
    if job and not job.lease and job.attempt < variant.attempts:
        leased = job._replace(attempt=job.attempt + 1, lease=job.attempt + 1)
        yield f"reserve {job_id}", _delivered(_put(state, job_id, leased), job_id, leased)


def _delivered(state: State, job_id: int, job: Job) -> State:
    """The consumer gets the job now. It must not be one that ended for the client."""
    ended = (job_id, job.born) in state.acked | state.replaced
    lease = (job_id, job.born, job.attempt)
    return state._replace(
        leases=state.leases | {lease},
        delivered_after_end=state.delivered_after_end or ended,
        two_holders=state.two_holders or lease in state.leases,
    )


def _ack(state: State, number: int, lease: tuple[int, int, int], variant: Variant) -> State:
    job_id, born, _ = lease
    job = state.jobs[job_id]
    matches = job is not None and (
        (job_id, job.born, job.lease) == lease if variant.is_fenced else job.lease != 0 or job.born == born
    )
    left = state._replace(leases=state.leases - {lease})
    if not matches:
        return left  # refused: lease_lost
    left = _put(left._replace(ended=left.ended | {(job_id, born)}), job_id, None)
    return _set(left, number, Pending(("acked", job_id, born)))


def _answer(state: State, entry: tuple[str, int, int]) -> State:
    what, job_id, born = entry
    if what == "acked":
        return state._replace(acked=state.acked | {(job_id, born)})
    replaced = {(job_id, born - 1)} if what == "replaced" else set[Life]()
    return state._replace(accepted=state.accepted | {(job_id, born)}, replaced=state.replaced | replaced)


def _at(items: tuple, place: int, item: object) -> tuple:
    return *items[:place], item, *items[place + 1 :]


def _set(state: State, number: int, pending: Pending | None) -> State:
    return state._replace(processes=_at(state.processes, number, pending))


def _put(state: State, job_id: int, job: Job | None) -> State:
    return state._replace(jobs=_at(state.jobs, job_id, job))


def _world(state: State, variant: Variant) -> Iterator[tuple[str, State]]:
    for job_id, job in enumerate(state.jobs):
        if job and job.lease:
            yield f"lapse {job_id}", _put(state, job_id, job._replace(lease=0))
    if not state.is_killed:
        yield "kill 0", _set(state._replace(is_killed=True), 0, None)
    if not state.is_wiped:
        yield "wipe", state._replace(jobs=(None,) * variant.ids, is_wiped=True)
    elif not state.is_reconciled:
        yield from _reconcile(state, variant)


def _reconcile(state: State, variant: Variant) -> Iterator[tuple[str, State]]:
    owes = any(one and not one.flushed for one in state.processes)
    if variant.reconcile_waits_for_nodes and (owes or (state.is_killed and not variant.dead_nodes_are_closed)):
        return
    after = state._replace(is_reconciled=True)
    for job_id in range(variant.ids):
        own = [(what, born) for what, one, born in state.journal if one == job_id]
        lost = {born for what, born in own if what != "acked"} - {born for what, born in own if what == "acked"}
        if variant.reconcile_knows_replaced:
            lost &= {max((born for _, born in own), default=0)}
        if lost and state.jobs[job_id] is None:
            born = min(lost)
            given = [attempt for one, of, attempt in state.leases if (one, of) == (job_id, born)]
            after = _put(after, job_id, Job(born, max(given, default=0) if variant.reconcile_keeps_attempts else 0))
    yield "reconcile", after

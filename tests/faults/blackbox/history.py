"""What clients were told, and the checker that compares it with the guarantees.

Clients append a record for each push, delivery, ack and release. Times are epoch milliseconds of this machine, which
is also the machine of the store. The checker knows nothing of Duetime's code: it reads the history, the journal
entries and the totals of the queue after everything was drained.

An outcome is one of:

    OK        it was answered, and it happened
    GONE      an ack was answered, and the job had ended before
    LOST      refused because the lease is no longer held
    REFUSED   answered that it did not happen
    UNKNOWN   no answer, or an answer that says that the outcome is unknown
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeVar

T = TypeVar("T")
Key = tuple[str, int]
"""Id and born of a job."""


class Outcome(StrEnum):
    OK = "ok"
    GONE = "gone"
    LOST = "lost"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Push(NamedTuple):
    """`asked_at` is the time of the first request if it was repeated; `borns` are those of all answers."""

    id: str
    asked_at: int
    answered_at: int
    delay_ms: int
    outcome: Outcome
    borns: tuple[int, ...] = ()


class Delivery(NamedTuple):
    id: str
    born: int
    attempt: int
    asked_at: int
    received_at: int
    lease_until: int


class Finish(NamedTuple):
    """An ack or a release of a lease."""

    verb: str
    id: str
    born: int
    attempt: int
    answered_at: int
    outcome: Outcome


@dataclass
class History:
    pushes: list[Push] = field(default_factory=list[Push])
    deliveries: list[Delivery] = field(default_factory=list[Delivery])
    finishes: list[Finish] = field(default_factory=list[Finish])

    @property
    def accepted(self) -> set[Key]:
        return {(push.id, born) for push in self.pushes for born in push.borns}

    def acked(self, *outcomes: Outcome) -> set[Key]:
        return {(one.id, one.born) for one in self.finishes if one.verb == "ack" and one.outcome in outcomes}

    def count_unknown(self) -> int:
        return sum(one.outcome is Outcome.UNKNOWN for one in [*self.pushes, *self.finishes])


@dataclass(frozen=True)
class Journaled:
    """What the journal says about the queue: jobs that were accepted, and attempts that were acked."""

    accepted: frozenset[Key]
    acked: frozenset[tuple[str, int, int]]


@dataclass(frozen=True)
class Drained:
    """The queue after the drain: jobs that are left in any state, its totals, and what the store's own check says."""

    left: int = 0
    totals: Mapping[str, int] = field(default_factory=dict[str, int])
    unsound: tuple[str, ...] = ()


FAULTS = ("lost", "early", "zombie", "doubled", "wrong", "unjournaled", "counts")
"""What the checker looks for, in the order of the report."""


def check(
    history: History, journaled: Journaled | None, drained: Drained, *, forgets: bool = False
) -> dict[str, list[str]]:
    """Everything that is wrong, by the names of FAULTS. `journaled` is None for a server without a journal.

    A store that `forgets` may have lost a job or a lease that it calls gone; its totals are not compared.
    """
    return {
        "lost": list(_lost(history)),
        "early": list(_early(history)),
        "zombie": [*_zombies(history), *([] if forgets else _zombies_after_gone(history))],
        "doubled": [*_doubled(history), *_leased_twice(history)],
        "wrong": [*_wrongly_refused(history, journaled), *([] if forgets else _wrongly_lost(history))],
        "unjournaled": list(_unjournaled(history, journaled)) if journaled else [],
        "counts": [*_left(drained), *([] if forgets else _miscounted(history, drained))],
    }


def _lost(history: History) -> Iterable[str]:
    """Accepted jobs that no consumer finished, although consumers went on until the queue was empty."""
    ended = history.acked(Outcome.OK, Outcome.GONE, Outcome.UNKNOWN)
    delivered = {(one.id, one.born) for one in history.deliveries}
    for key in sorted(history.accepted - ended):
        yield f"{key} was accepted and {'never finished' if key in delivered else 'never delivered'}"


def _early(history: History) -> Iterable[str]:
    """By the client's own view: the delay begins when the push is sent, at the earliest."""
    due = {push.id: push.asked_at + push.delay_ms for push in history.pushes}
    for one in history.deliveries:
        if one.received_at < due.get(one.id, 0):
            yield f"{one} was due at {due[one.id]}"


def _leased_twice(history: History) -> Iterable[str]:
    """A job that another consumer got before the lease of the first one ended, and that the first did not release."""
    released = {(one.id, one.born, one.attempt) for one in history.finishes if one.verb == "release"}
    by_job = _by(history.deliveries, lambda one: (one.id, one.born))
    for deliveries in by_job.values():
        deliveries.sort(key=lambda one: one.attempt)
        for before, after in itertools.pairwise(deliveries):
            if after.received_at < before.lease_until and before[:3] not in released:
                yield f"{after} while {before} was leased"


def _zombies(history: History) -> Iterable[str]:
    """Deliveries of a job after an attempt of it was acked."""
    acked = {(one.id, one.born): one.attempt for one in history.finishes if _is_ack(one, Outcome.OK)}
    for one in history.deliveries:
        if one.attempt > acked.get((one.id, one.born), one.attempt):
            yield f"{one} after an ack of attempt {acked[one.id, one.born]}"


def _zombies_after_gone(history: History) -> Iterable[str]:
    """Deliveries after an ack was told that the job had ended. That answer does not say with which attempt."""
    gone: dict[Key, int] = {}
    for one in history.finishes:
        if _is_ack(one, Outcome.GONE):
            gone[one.id, one.born] = min(one.answered_at, gone.get((one.id, one.born), one.answered_at))
    for one in history.deliveries:
        if one.asked_at > gone.get((one.id, one.born), one.asked_at):
            yield f"{one} after an ack that found no job"


def _doubled(history: History) -> Iterable[str]:
    """A lease that two consumers got, a job that two acks ended, a push that made two jobs."""
    for lease, times in Counter(one[:3] for one in history.deliveries).items():
        if times > 1:
            yield f"{lease} was delivered {times} times"
    acks = _by((one for one in history.finishes if _is_ack(one, Outcome.OK)), lambda one: (one.id, one.born))
    for key, found in acks.items():
        if len(found) > 1:
            yield f"{key} was acked {len(found)} times"
    for push in history.pushes:
        if len(set(push.borns)) > 1:
            yield f"{push} made {len(set(push.borns))} jobs"


def _wrongly_refused(history: History, journaled: Journaled | None) -> Iterable[str]:
    """Requests of which the answer said that nothing happened, although it had."""
    seen = {one.id for one in history.deliveries}
    for push in history.pushes:
        if push.outcome is Outcome.REFUSED and push.id in seen:
            yield f"{push} was refused, and the job was delivered"
    outcomes: dict[tuple[str, int, int], set[Outcome]] = defaultdict(set)
    for one in history.finishes:
        if one.verb == "ack":
            outcomes[one.id, one.born, one.attempt].add(one.outcome)
    for lease, found in outcomes.items():
        if journaled and lease in journaled.acked and found == {Outcome.REFUSED}:
            yield f"the ack of {lease} was refused, and the journal has it"


def _wrongly_lost(history: History) -> Iterable[str]:
    """Leases that were called lost before their end. A release of which the outcome is unknown can have ended one."""
    until = {one[:3]: one.lease_until for one in history.deliveries}
    maybe_ended = {one[1:4] for one in history.finishes if one.outcome is Outcome.UNKNOWN}
    for one in history.finishes:
        if one.outcome is Outcome.LOST and one.answered_at < until[one[1:4]] and one[1:4] not in maybe_ended:
            yield f"{one} although the lease ends at {until[one[1:4]]}"


def _unjournaled(history: History, journaled: Journaled) -> Iterable[str]:
    """A job whose entry was written with its end only, because the first writer died, is known by that end."""
    acked = {lease[:2] for lease in journaled.acked}
    for key in sorted(history.accepted - journaled.accepted - acked):
        yield f"{key} was accepted"
    for key in sorted(history.acked(Outcome.OK) - acked):
        yield f"{key} was acked"


def _left(drained: Drained) -> Iterable[str]:
    yield from drained.unsound
    if drained.left:
        yield f"{drained.left} jobs are left"


def _miscounted(history: History, drained: Drained) -> Iterable[str]:
    if not drained.totals:
        return
    accepted, acked = drained.totals["accepted"], drained.totals["acked"]
    seen = history.accepted | {(one.id, one.born) for one in history.deliveries}
    most = len(history.accepted) + sum(push.outcome is Outcome.UNKNOWN for push in history.pushes)
    if not len(seen) <= accepted <= most:
        yield f"total accepted is {accepted}; clients saw {len(seen)} jobs, and can have pushed {most}"
    if acked != accepted - drained.left:
        yield f"total acked is {acked}, and accepted {accepted}"
    if drained.totals["delivered"] < len(history.deliveries):
        yield f"total delivered is {drained.totals['delivered']}; clients got {len(history.deliveries)}"


def _is_ack(one: Finish, outcome: Outcome) -> bool:
    return one.verb == "ack" and one.outcome is outcome


def _by(items: Iterable[T], key: Callable[[T], Key]) -> dict[Key, list[T]]:
    grouped: dict[Key, list[T]] = defaultdict(list)
    for item in items:
        grouped[key(item)].append(item)
    return grouped

"""The lives of an id: the journal's entries about it, one list per incarnation, in the order in which things happened.

Entries of one job are ordered by what they say (its born, its attempt, what can follow what), never by the clocks of
the nodes that wrote them.
"""

from collections.abc import Sequence

from duetime.journal.events import ENDS, Entry
from duetime.model.job import Event

RANKS = {
    Event.ACCEPTED: 0,
    Event.ADOPTED: 0,
    Event.REPLACED: 0,
    Event.DELIVERED: 1,
    Event.NOTIFIED: 2,
    Event.GIVEN_BACK: 3,
    Event.RELEASED: 3,
    Event.LEASE_EXPIRED: 3,
    Event.DEAD: 4,
    Event.RESPAWNED: 5,
    Event.RESCHEDULED: 6,
    Event.KEPT: 6,
}
"""The order of a job's events within one attempt; every event that is not listed ends the job."""
LAST_RANK = 7


def lives_of(entries: Sequence[Entry]) -> list[list[Entry]]:
    """One list per incarnation, sorted by pool, namespace, queue and born. An incarnation without an end of its own
    also gets the entries without a born (purges, and acks by id of a job that was gone) that may have ended it.
    """
    purges = [entry for entry in entries if not entry.born]
    lives: dict[tuple[str, str, str, int], list[Entry]] = {}
    for entry in entries:
        if entry.born:
            lives.setdefault((entry.pool, entry.namespace, entry.queue, entry.born), []).append(entry)
        if entry.event is Event.REPLACED and entry.was:
            lives.setdefault((entry.pool, entry.namespace, entry.queue, entry.was), []).append(entry)
    found: list[list[Entry]] = []
    for (pool, namespace, queue, born), life in sorted(lives.items()):
        life.sort(key=lambda entry: _order(entry, born))
        if not any(_ends(entry, born) for entry in life):
            place = (pool, namespace, queue)
            life += [one for one in purges if (one.pool, one.namespace, one.queue) == place and one.ts >= born]
        found.append(life)
    return found


def _order(entry: Entry, born: int) -> tuple[int, int, int, str, int]:
    if _ends(entry, born):
        return (2**32, LAST_RANK, entry.ts, entry.node, entry.seq)
    return (entry.attempt, RANKS.get(entry.event, LAST_RANK), entry.ts, entry.node, entry.seq)


def _ends(entry: Entry, born: int) -> bool:
    """Whether the entry ends the incarnation. A replaced entry ends the old incarnation and begins the new one."""
    return entry.event in ENDS and (entry.event is not Event.REPLACED or entry.was == born)

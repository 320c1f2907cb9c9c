"""A pool's journal: the record that the pool has one, and the drafts made from the answers of its store.

A pool that journals has a record beside its jobs that says since when. Audit and reconcile cover all events after that
time, so from then on every engine on the pool writes a journal, or does not work on it (`journal_follower.py`).
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec
from msgspec import UNSET, Struct

from duetime.journal.engines_without_journal import WithoutJournal, engines_without_journal
from duetime.journal.events import REPEATED, Draft
from duetime.journal.registered_nodes import forget, registered
from duetime.model.clock import rfc3339
from duetime.model.errors import InvalidSettings, VersionConflict
from duetime.model.job import Event, Lease, Moved, State
from duetime.model.names import Queue
from duetime.stores.base import Reserved, Store
from duetime.stores.finishes import SeenJoin

KIND = "journal"
KEY = "pool"


class Journaling(Struct, frozen=True):
    """The record of a pool that journals: since when, in the store's time, and under which name."""

    since: int
    pool: str


async def known(store: Store) -> Journaling | None:
    """The pool's record; None if the pool does not journal."""
    record = await store.registry.get(KIND, KEY)
    return msgspec.json.decode(record.value, type=Journaling) if record else None


NOTICE_MS = 2_000
"""A journal that begins beside engines without one waits this long for them to notice, which takes them a second."""


async def begin(store: Store, pool: str) -> Journaling:
    """Make the pool one that journals, if it is not yet; answers the record. Idempotent.

    Returns when no engine works on the pool without knowing it. Raises InvalidSettings if one was told to keep no
    journal.
    """
    has_waited = False
    while True:
        if (found := await known(store)) is None:
            await _create(store, pool)
            continue
        wait_ms = found.since - (await store.ping()).now
        if wait_ms <= 0 or has_waited:
            return found
        await asyncio.sleep(min(wait_ms, NOTICE_MS) / 1000)
        has_waited = True


async def _create(store: Store, pool: str) -> None:
    now = (await store.ping()).now
    later = Journaling(now + NOTICE_MS, pool)
    try:
        record = await store.registry.put(KIND, KEY, msgspec.json.encode(later), if_version=0)
    except VersionConflict:  # somebody else was quicker
        return
    others = await engines_without_journal(store)
    if WithoutJournal.TOLD_OFF in others:
        await store.registry.delete(KIND, KEY, if_version=record.version)
        raise InvalidSettings(
            "a server or program that was told to keep no journal works on this store, or was killed within the last "
            "minute; what it does could not be audited or brought back. Stop it or let it journal, or start this one "
            "with --journal off, too"
        )
    if not others:
        with suppress(VersionConflict):
            await store.registry.put(KIND, KEY, msgspec.json.encode(Journaling(now, pool)), if_version=record.version)


async def remember(store: Store, journaling: Journaling) -> None:
    """Write the record if there is none."""
    if await known(store) is None:
        with suppress(VersionConflict):  # somebody else was quicker
            await store.registry.put(KIND, KEY, msgspec.json.encode(journaling), if_version=0)


async def end(store: Store) -> bool:
    """End the pool's journaling, so that engines may start without a journal. False if it did not journal."""
    await forget(store, await registered(store))
    return await store.registry.delete(KIND, KEY)


def refusal(journaling: Journaling) -> InvalidSettings:
    """Why an engine without a journal must not start on this pool."""
    return InvalidSettings(
        f"the pool {journaling.pool!r} has journaled since {rfc3339(journaling.since)}, and what bypasses the journal "
        "cannot be audited or brought back: name a folder with --journal, DUETIME_JOURNAL, journal in duetime.toml or "
        "journal= of the client; or end the journal of the whole pool with `duetime journal end`"
    )


# --- what happened


def delivered(pool: str, queue: Queue, reserved: Reserved) -> Iterator[Draft]:
    """The deliveries of a reserve, and the expired jobs that it ended on its way."""
    for moved in reserved.expired:
        yield _draft(pool, queue, moved, reserved.now)
    for deliveries in reserved.deliveries:
        for delivery in deliveries:
            lease = delivery.lease
            yield Draft(
                ts=reserved.now,
                event=Event.DELIVERED,
                pool=pool,
                namespace=queue.namespace,
                queue=queue.name,
                id=lease.id,
                born=lease.born,
                attempt=lease.attempt,
                due_at=delivery.due_at,
            )


def notified(pool: str, lease: Lease, ts: int, answer: tuple[int, int]) -> Draft:
    """A callback's answer: its status, which is 0 without an answer, and how many milliseconds it took."""
    return Draft(
        ts=ts,
        event=Event.NOTIFIED,
        pool=pool,
        namespace=lease.queue.namespace,
        queue=lease.queue.name,
        id=lease.id,
        born=lease.born,
        attempt=lease.attempt,
        status=answer[0],
        ms=answer[1],
    )


def moved(pool: str, queue: Queue, answers: Sequence[object], ts: int) -> list[Draft]:
    """One draft for each of a verb's answers that moved a job."""
    return [_draft(pool, queue, answer, ts) for answer in answers if isinstance(answer, Moved)]


def acked(
    pool: str,
    queue: Queue,
    leases: Sequence[Lease],
    answers: Sequence[object],
    ts: int,
    joins: Sequence[SeenJoin | None] = (),
) -> list[Draft]:
    """Also for jobs that were gone already, as "repeated": the consumer says that the job is done, and the process
    that removed it may have died before it wrote that down. `joins` has the join of each job, if any has one.
    """
    again = [
        Moved(Event.ACKED, lease.id, lease.born, lease.attempt, reason=REPEATED) if answer is None else answer
        for lease, answer in zip(leases, answers, strict=True)
    ]
    if not any(joins):
        return moved(pool, queue, again, ts)
    ended = zip(again, joins, strict=True)
    return [_draft(pool, queue, one, ts, join) for one, join in ended if isinstance(one, Moved)]


def acked_by_id(pool: str, queue: Queue, ids: Sequence[str], answers: Sequence[object], ts: int) -> list[Draft]:
    """As `acked`, but the born of a job that was gone already is not known."""
    again = [
        Moved(Event.ACKED, job_id, born=0, reason=REPEATED) if answer is None else answer
        for job_id, answer in zip(ids, answers, strict=True)
    ]
    return moved(pool, queue, again, ts)


def purged(pool: str, queue: Queue, states: Sequence[State], ts: int) -> Draft:
    return Draft(
        ts=ts,
        event=Event.PURGED,
        pool=pool,
        namespace=queue.namespace,
        queue=queue.name,
        reason=",".join(sorted(states)),
    )


def _draft(pool: str, queue: Queue, moved: Moved, ts: int, join: SeenJoin | None = None) -> Draft:
    return Draft(
        ts=ts,
        event=moved.event,
        pool=pool,
        namespace=queue.namespace,
        queue=queue.name,
        id=moved.id,
        born=moved.born,
        attempt=moved.attempt,
        due_at=moved.due_at,
        reason=moved.reason,
        was=moved.was,
        join=join or UNSET,
    )

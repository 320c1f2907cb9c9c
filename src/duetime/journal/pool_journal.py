"""A pool's journal: the record that the pool has one, and the drafts made from the answers of its store.

A pool that journals has a record in its registry that says since when. Audit and reconcile cover all events after that
time. Every engine that opens from then on journals, unless its journal is off. Engines without a journal are nodes
whose entries are missing (`registered_nodes.py`).
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec
from msgspec import UNSET, Struct

from duetime.engine.recorder import Notified
from duetime.journal.events import MAX_ERROR, REPEATED, Draft
from duetime.journal.registered_nodes import forget, nodes_without_journal, registered
from duetime.model.clock import rfc3339
from duetime.model.errors import InvalidSettings, VersionConflict
from duetime.model.job import Event, Lease, Moved, State
from duetime.model.names import Queue
from duetime.stores.base import Reserved, Store
from duetime.stores.finishes import SeenJoin

log = logging.getLogger("duetime.journal")

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


async def begin(store: Store, pool: str) -> Journaling:
    """Make the pool one that journals, if it is not yet; answers the record. Idempotent.

    Programs that run without a journal are named in a warning: what they do is missing from it.
    """
    while (found := await known(store)) is None:
        await remember(store, Journaling((await store.ping()).now, pool))
    if others := await nodes_without_journal(store, found.since):
        programs = [f"{name} (process {node.pid} on {node.host})" for name, node in sorted(others.items())]
        log.warning("programs_without_journal", extra={"pool": pool, "programs": programs})
    return found


async def remember(store: Store, journaling: Journaling) -> None:
    """Write the record if there is none."""
    if await known(store) is None:
        with suppress(VersionConflict):  # somebody else was quicker
            await store.registry.put(KIND, KEY, msgspec.json.encode(journaling), if_version=0)


async def end(store: Store) -> bool:
    """End the pool's journaling, so that engines may start without a journal. False if it did not journal."""
    await forget(store, [name for name, node in (await registered(store)).items() if node.journal])
    return await store.registry.delete(KIND, KEY)


def refusal(journaling: Journaling) -> InvalidSettings:
    """Why a load without a journal must not push into this pool."""
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


def notified(pool: str, lease: Lease, ts: int, answer: Notified) -> Draft:
    """A callback's answer."""
    return Draft(
        ts=ts,
        event=Event.NOTIFIED,
        pool=pool,
        namespace=lease.queue.namespace,
        queue=lease.queue.name,
        id=lease.id,
        born=lease.born,
        attempt=lease.attempt,
        status=answer.status,
        ms=answer.ms,
    )


def moved(pool: str, queue: Queue, answers: Sequence[object], ts: int, error: str = "") -> list[Draft]:
    """One draft for each of a verb's answers that moved a job. `error` is what the consumer reported of its try."""
    return [_draft(pool, queue, answer, ts, error=error) for answer in answers if isinstance(answer, Moved)]


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


def _draft(pool: str, queue: Queue, moved: Moved, ts: int, join: SeenJoin | None = None, error: str = "") -> Draft:
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
        # The last lines of a traceback say what happened.
        error=error.encode()[-MAX_ERROR:].decode(errors="ignore"),
        join=join or UNSET,
    )

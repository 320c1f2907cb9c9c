"""Push, reserve, ack, and ack with reserve, of one plain job: each is one statement (`sql/single_statement.sql`).

The writer's thread uses them in its transactions. In a thread of the program (`one_job.py`) each is a transaction of
its own: Python runs handlers of signals between two statements, but never within one, so a handler that forks finds no
transaction half done. A statement that answered rows would be open until they are fetched; so the answers are left in
temporary tables, and are read from there.

Every function may raise sqlite3.Error. None means that the statement declined, and nothing was done.
"""

import sqlite3
from itertools import count

from duetime.model.job import DAY_MS, Delivery, Event, IfExists, Lease, Moved, Priority
from duetime.model.names import Queue
from duetime.stores.base import IDLE_MS, Ask, Push, Pushed, Reserved
from duetime.stores.sql.queries import load_script
from duetime.stores.sql.rows import as_json, attributes

INLINE_BYTES = 800
"""A larger body has a row of its own: with it a row of `jobs` would not fit into a page of SQLite (4 KiB) four times,
and then SQLite spreads the row, which every move of the job writes anew, over several pages."""

tokens = count(1)
"""Each reserve has a token of its own."""

_PREPARE = load_script("sqlite", "single_statement")
_PUSH = "INSERT INTO push_one VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PUSHED = "SELECT born, wakes FROM pushed"
_PLAIN_CHANGES = 2
"""The rows that a push changes if its answer is what its caller expects: born now, and no announcement."""
_RESERVE = "INSERT INTO reserve_one VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_RESERVED = """
SELECT next_at, id, born, attempt, body, due_at, priority, tries, used, expires_at, attributes, error
FROM reserved
WHERE token = ?
"""
_ACK = "INSERT INTO ack_one VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


def prepare(connection: sqlite3.Connection) -> None:
    """Make the temporary views and triggers. Called once, outside a transaction."""
    connection.executescript(_PREPARE)


def push(connection: sqlite3.Connection, queue: Queue, request: Push, now: int) -> tuple[Pushed, int] | None:
    """Also answers the number under which the push is to be announced; 0 if it need not be."""
    if len(request.jobs) != 1 or request.mark or request.if_exists is IfExists.REPLACE:
        return None
    job = request.jobs[0]
    if job.born or job.attempt:
        return None
    due_at, expires_at = job.due(now), now + job.ttl_ms if job.ttl_ms else 0
    if 0 < expires_at < due_at:
        return None
    namespace, name = queue
    priority, body, packed = int(job.priority), job.body, as_json(job.attributes) if job.attributes else None
    of_queue, is_large = (namespace, name, now, now // DAY_MS), int(len(body) > INLINE_BYTES)
    before = connection.total_changes
    connection.execute(_PUSH, (*of_queue, job.id, priority, due_at, expires_at, job.tries, packed, body, is_large))
    changes = (connection.total_changes - before) & 0xFFFFFFFF  # SQLite counts in 32 bits
    if not changes:
        return None
    born, number = (now, 0) if changes == _PLAIN_CHANGES else connection.execute(_PUSHED).fetchone()
    return Pushed((Moved(Event.ACCEPTED, job.id, born, 0, due_at),), now), number


def reserve(
    connection: sqlite3.Connection, queue: Queue, ask: Ask, now: int, token: int, done: Lease | None = None
) -> Reserved | None:
    """With `done`, a lease of the queue, its job is finished in the same step."""
    if ask.limit != 1 or sum(ask.quotas) > 1:
        return None
    first = ask.quotas.index(1) + 1 if 1 in ask.quotas else 0
    finished = (done.id, done.born, done.attempt) if done else (None, None, None)
    namespace, name = queue
    wanted = (token, namespace, name, now, now // DAY_MS, first, now + ask.ttr_ms, *finished, IDLE_MS)
    try:
        connection.execute(_RESERVE, wanted)
    except sqlite3.IntegrityError:  # the trigger found something unusual
        return None
    return reserved(connection, queue, ask, now, token)


def reserved(connection: sqlite3.Connection, queue: Queue, ask: Ask, now: int, token: int) -> Reserved | None:
    """What the reserve with this token answered; None if it did nothing."""
    found = connection.execute(_RESERVED, (token,)).fetchone()
    if found is None:
        return None
    next_at, job_id, born, attempt, body, due_at, priority, tries, used, expires_at, packed, error = found
    if job_id is None:
        return Reserved([[]], next_at, now)
    delivery = Delivery(
        Lease(queue, job_id, born, attempt),
        body,
        due_at,
        now + ask.ttr_ms,
        Priority(priority),
        tries,
        used,
        expires_at,
        attributes(packed),
        error,
    )
    return Reserved([[delivery]], next_at, now)


def ack(connection: sqlite3.Connection, lease: Lease, now: int) -> Moved | None:
    queue = lease.queue
    before = connection.total_changes
    place = (queue.namespace, queue.name, now, now // DAY_MS)
    connection.execute(_ACK, (*place, lease.id, lease.born, lease.attempt, IDLE_MS))
    if connection.total_changes == before:
        return None
    return Moved(Event.ACKED, lease.id, lease.born, lease.attempt)

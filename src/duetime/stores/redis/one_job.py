"""The short scripts for one job (`push_one`, `reserve_one`, `ack_one`, `next_one`): their arguments and their answers.

They leave the same bytes behind as the general scripts. They decline queues with rules, other priorities, attributes
or errors; such a queue goes the general way at once for a while.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal

from duetime.model.job import Delivery, Event, IfExists, Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Reserved
from duetime.stores.redis import keys
from duetime.stores.redis.codec import HEADER_BYTES, LEASED, PRIORITIES, RECORD, Record, pack_fence, plain_header
from duetime.stores.redis.pipe import Argument, pack_arguments
from duetime.stores.redis.scripts import hashes, sources


@lru_cache(maxsize=4096)
def _head(verb: Literal["EVAL", "EVALSHA"], script: str, queue: Queue) -> bytes:
    """The part of a packed command that all runs of a script on a queue share: five arguments."""
    prefix, known = keys.prefix(queue), hashes() if verb == "EVALSHA" else sources()
    return pack_arguments((verb, known[script], 2, prefix, keys.companion(prefix)))


def pack_run(verb: Literal["EVAL", "EVALSHA"], script: str, queue: Queue, arguments: tuple[Argument, ...]) -> bytes:
    """The command that runs a script on a queue; the first of the arguments is now."""
    return b"*%d%b%b\r\n" % (5 + len(arguments), _head(verb, script, queue), pack_arguments(arguments))


def push_arguments(request: Push) -> tuple[Argument, ...] | None:
    """What `push_one` takes after now; None if it does not do for this request."""
    if len(request.jobs) != 1 or request.mark or request.if_exists is IfExists.REPLACE:
        return None
    job = request.jobs[0]
    header = plain_header(job)
    return None if header is None else (job.id, job.body, *header, job.delay_ms, job.ttl_ms)


def read_pushed(request: Push, answer: Any) -> Pushed:
    now, born = answer
    job = request.jobs[0]
    return Pushed([Moved(Event.ACCEPTED, job.id, born, 0, now + job.delay_ms)], now)


def read_reserved(queue: Queue, ask: Ask, answer: Any) -> Reserved:
    now, next_at, *found = answer
    if not found:
        return Reserved([[]], next_at, now, [])
    job_id, record, raw = found
    return Reserved(
        [read_deliveries(queue, [(job_id, RECORD.unpack(record), raw)], now + ask.ttr_ms)], next_at, now, []
    )


def read_deliveries(queue: Queue, found: Iterable[tuple[bytes, Any, bytes]], lease_until: int) -> list[Delivery]:
    """Makes deliveries of ids, records and values (header + body)."""
    deliveries: list[Delivery] = []
    for job_id, record, raw in found:
        fields: Record = record
        _, born, attempt, used, tries, priority, due_at, expires_at = fields
        deliveries.append(
            Delivery(
                Lease(queue, job_id.decode(), born, attempt),
                raw[HEADER_BYTES[raw[0]] :],
                due_at,
                lease_until,
                PRIORITIES[priority],
                tries,
                used,
                expires_at,
                {},
            )
        )
    return deliveries


def ack_arguments(lease: Lease) -> tuple[Argument, ...]:
    """What `ack_one` takes after now."""
    return lease.born, pack_fence(LEASED, lease.born, lease.attempt), lease.id


def acked(lease: Lease) -> Moved:
    return Moved(Event.ACKED, lease.id, lease.born, lease.attempt)

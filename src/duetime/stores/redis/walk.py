"""Walks all keys of a queue in Redis and names what does not fit together. For tests and `doctor --deep`."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from duetime.model.job import Counts, Totals, broken_totals
from duetime.model.names import Queue
from duetime.stores.redis import keys
from duetime.stores.redis.codec import LEASED, RECORD, STATE, WAITING, QueueState, is_value, read_header
from duetime.stores.redis.link import Link
from duetime.stores.redis.pipe import Argument
from duetime.stores.redis.scripts import checked

PAGE = 500


@dataclass
class WalkFindings:
    """Everything that the walk found under one id."""

    places: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    header: tuple[int, int, int] | None = None
    """born, expires_at, priority."""
    record: tuple[Any, ...] | None = None
    expires_at: int = 0
    in_ttl: float | None = None
    in_info: bool = False


@dataclass
class Picture:
    """Everything that the walk found in a queue."""

    queue: Queue
    jobs: dict[bytes, WalkFindings] = field(default_factory=dict[bytes, WalkFindings])
    state: QueueState = field(default_factory=QueueState)
    unreadable: list[str] = field(default_factory=list[str])
    sweeping: bool = False
    agenda: float = float("inf")

    def at(self, job_id: bytes) -> WalkFindings:
        return self.jobs.setdefault(job_id, WalkFindings())


async def check_queue(link: Link, queue: Queue, counts: Counts, running: Totals) -> list[str]:
    """Every broken invariant of a queue. Only meaningful while nothing else runs."""
    picture = await _read_queue(link, queue)
    places = [place for found in picture.jobs.values() for place, _ in found.places]
    return [
        f"{queue}: {problem}"
        for problem in (
            *_check_damage(picture, counts),
            *_check_jobs(picture),
            *_check_sweep(picture, counts.now),
            *_check_counts(picture, counts),
            *broken_totals(running, jobs=len(places), leased=places.count("leases"), dead=places.count("dead")),
        )
    ]


async def _read_queue(link: Link, queue: Queue) -> Picture:
    prefix, picture = keys.prefix(queue), Picture(queue)
    for place in ("wait:1", "wait:2", "wait:3", "leases", "dead"):
        async for job_id, score in _members(link, f"{prefix}:{place}"):
            picture.at(job_id).places.append((place, score))
    async for job_id, score in _members(link, f"{prefix}:ttl"):
        picture.at(job_id).in_ttl = score
    async for job_id, value in _fields(link, f"{prefix}:jobs"):
        if not is_value(value):
            picture.unreadable.append(f"the value of {job_id.decode(errors='replace')!r}")
            continue
        header = read_header(value)
        picture.at(job_id).header = (header.born, header.expires_at, header.priority)
        picture.at(job_id).expires_at = header.expires_at
    async for job_id, value in _fields(link, f"{prefix}:tries"):
        if len(value) != RECORD.size:
            picture.unreadable.append(f"the record of {job_id.decode(errors='replace')!r}")
            continue
        picture.at(job_id).record = RECORD.unpack(value)
        picture.at(job_id).expires_at = RECORD.unpack(value)[7]
    async for job_id, _ in _fields(link, f"{prefix}:info"):
        picture.at(job_id).in_info = True
    state, sweeping = await _call(link, prefix, "HMGET", f"{prefix}:meta", "state", "sweeping")
    picture.state = QueueState(*STATE.unpack_from(state)) if state else QueueState()
    picture.sweeping = sweeping is not None
    agenda = await _call(link, prefix, "ZSCORE", f"{prefix[:7]}:queues", str(queue))
    picture.agenda = float(agenda or "nan")
    return picture


def _check_damage(picture: Picture, counts: Counts) -> Iterator[str]:
    for what in picture.unreadable:
        yield f"{what} cannot be read"
    if counts.damaged:
        yield f"{counts.damaged} damaged entries were set aside in {keys.prefix(picture.queue)}:damaged"


def _check_jobs(picture: Picture) -> Iterator[str]:
    for job_id, found in picture.jobs.items():
        name = job_id.decode(errors="replace")
        if found.header is None:
            yield f"{name!r} is in {found}, but there is no such job"
            continue
        if len(found.places) != 1:
            yield f"{name!r} is in {len(found.places)} places: {found.places}"
            continue
        place = found.places[0][0]
        state = found.record[0] if found.record else WAITING
        expected = f"wait:{found.header[2]}" if state == WAITING else "leases" if state == LEASED else "dead"
        if place != expected:
            yield f"{name!r} is under {place}, but its record says {expected}"
        if found.record and found.record[1] != found.header[0]:
            yield f"{name!r} has two borns, {found.header[0]} and {found.record[1]}"


def _check_sweep(picture: Picture, now: int) -> Iterator[str]:
    for job_id, found in picture.jobs.items():
        if found.header is None or not found.places:
            continue
        name, (place, due_at) = job_id.decode(errors="replace"), found.places[0]
        ages = place.startswith("wait") and found.expires_at > 0
        if found.in_ttl is not None and (not ages or found.in_ttl != found.expires_at):
            yield f"{name!r} is under ttl at {found.in_ttl}, but expires at {found.expires_at} from {place}"
        if ages and found.in_ttl is None and due_at <= picture.state.swept and not picture.sweeping:
            yield f"{name!r} was due at {due_at} before the sweep at {picture.state.swept}, but is not under ttl"
        if ages and due_at > picture.state.swept and found.expires_at - due_at < picture.state.slack:
            yield f"{name!r} lives {found.expires_at - due_at} ms past its due time, less than {picture.state.slack}"
        end = due_at if place == "leases" else found.expires_at + 1 if ages else float("inf")
        if not picture.agenda <= end:
            yield f"{name!r} needs the reaper at {end}, but the agenda says {picture.agenda}"


def _check_counts(picture: Picture, counts: Counts) -> Iterator[str]:
    places = [(place, at, found.expires_at) for found in picture.jobs.values() for place, at in found.places]
    waiting = [(due_at, expires_at) for place, due_at, expires_at in places if place.startswith("wait")]
    walked = {
        "delayed": sum(1 for due_at, _ in waiting if due_at > counts.now),
        "ready": sum(1 for due_at, expires_at in waiting if due_at <= counts.now <= (expires_at or counts.now)),
        "leased": sum(1 for place, _, _ in places if place == "leases"),
    }
    counted = {"delayed": counts.delayed, "ready": counts.ready, "leased": counts.leased}
    if walked != counted:
        yield f"the counts say {counted}, the walk found {walked}"


async def _members(link: Link, key: str) -> AsyncIterator[tuple[bytes, float]]:
    first = 0
    while page := await _call(link, key, "ZRANGE", key, first, first + PAGE - 1, "WITHSCORES"):
        for i in range(0, len(page), 2):
            yield page[i], float(page[i + 1])
        first += PAGE


async def _fields(link: Link, key: str) -> AsyncIterator[tuple[bytes, bytes]]:
    cursor = b"0"
    while True:
        cursor, flat = await _call(link, key, "HSCAN", key, cursor, "COUNT", PAGE)
        for i in range(0, len(flat), 2):
            yield flat[i], flat[i + 1]
        if cursor == b"0":
            return


async def _call(link: Link, key: str, *command: Argument) -> Any:
    return checked([await link.call(key, command, again=True)])[0]

"""Finishing jobs of the reference store with what follows from it: new jobs, and results that are kept for a while."""

from collections.abc import Sequence

import msgspec

from duetime.model.errors import DuetimeError, LeaseLost
from duetime.model.job import STEP_BYTES, STEP_JOBS, Event, IfExists, Moved
from duetime.stores.base import Push
from duetime.stores.finishes import Finish, Finished, JoinCount, KeptResult, following_jobs
from duetime.stores.memory import queue as moves
from duetime.stores.memory.queue import MemoryQueue


def finish(stored: MemoryQueue, one: Finish, now: int) -> Finished | DuetimeError | None:
    lease, job = one.lease, stored.jobs.get(one.lease.id)
    if job is None or job.expired(now):
        return None
    if not moves.holds(job, lease):
        return LeaseLost.of(lease.id, lease.attempt)
    rules = msgspec.structs.replace(stored.rules, max_jobs=0, offline=False)
    joined = _joined(stored, one, now)
    jobs = following_jobs(one, joined)
    if refusal := moves.refusal(stored, Push(jobs), rules, now):
        return refusal
    if one.join and joined != one.join.of:
        stored.joins[one.join.name] = joined, now + one.join.life_ms
    elif one.join:
        stored.joins.pop(one.join.name, None)
    stored.end(job)
    stored.count("acked", now)
    then = [moves.add(stored, new, IfExists.KEEP, now) for new in jobs]
    if added := sum([moved.event is not Event.KEPT for moved in then]):
        stored.known = True
        stored.count("accepted", now, added)
    if one.result is not None and one.result_ttl_ms:
        stored.results[job.id] = KeptResult(job.id, job.born, one.result, now + one.result_ttl_ms)
    return Finished(Moved(Event.ACKED, job.id, job.born, job.attempt), then, now, joined)


def _joined(stored: MemoryQueue, one: Finish, now: int) -> int:
    """How many finishes the join has seen with this one; 0 without a join."""
    if one.join is None:
        return 0
    count, until = stored.joins.get(one.join.name, (0, 0))
    return count + 1 if until > now else 1


def results(stored: MemoryQueue, ids: Sequence[str], now: int) -> list[KeptResult | None]:
    found, room = list[KeptResult | None](), STEP_BYTES
    for job_id in ids[:STEP_JOBS]:
        kept = stored.results.get(job_id)
        kept = None if kept is None or kept.kept_until <= now else kept
        room -= len(kept.result) if kept else 0
        if found and room < 0:
            break
        found.append(kept)
    return found


def joins(stored: MemoryQueue, after: str, now: int) -> list[JoinCount]:
    counting = sorted((name, *kept) for name, kept in stored.joins.items() if name > after and kept[1] > now)
    return [JoinCount(name, count, until - now) for name, count, until in counting[:STEP_JOBS]]


def raise_join(stored: MemoryQueue, join: JoinCount, now: int) -> None:
    count, until = stored.joins.get(join.name, (0, 0))
    count = count if until > now else 0
    stored.joins[join.name] = max(count, join.count), max(until, now + join.left_ms)


def forget_results(stored: MemoryQueue, now: int) -> None:
    stored.joins = {name: (count, until) for name, (count, until) in stored.joins.items() if until > now}
    stored.results = {job_id: kept for job_id, kept in stored.results.items() if kept.kept_until > now}

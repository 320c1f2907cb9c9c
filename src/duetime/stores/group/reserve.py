"""Reserving from a group: the member with the earliest job first, then the others, until every ask is served.

Jobs that were leased on one member are delivered, even if the next member fails.
"""

from collections.abc import Sequence

from duetime.model.job import STEP_BYTES, STEP_JOBS, Delivery, Moved, payload_bytes
from duetime.model.names import Queue
from duetime.stores.base import Ask, Reserved
from duetime.stores.group.member import PROBLEMS, MemberProblem
from duetime.stores.group.members import Members


async def reserve(members: Members, queue: Queue, asks: Sequence[Ask]) -> Reserved:
    """Raises a member's problem only if no member answers."""
    heads = (await members.ask(lambda store: store.heads([queue]))).require_one().found
    waiting = {name: head for name, [head] in heads.items() if head is not None}
    # Where no job waits, one member is asked all the same: it knows whether the queue is paused.
    names = sorted(waiting, key=lambda name: (waiting[name], name)) or list(heads)[:1]
    deliveries: list[list[Delivery]] = [[] for _ in asks]
    expired: list[Moved] = []
    problem: MemberProblem | None = None
    now, paused = 0, False
    for name in names:
        left = [_rest(ask, len(got)) for ask, got in zip(asks, deliveries, strict=True)]
        if now and (waiting.get(name, 0) > now or _is_enough(left, deliveries)):
            break
        waiting.pop(name, None)
        try:
            got = await members.call(name, lambda store, left=left: store.reserve(queue, left))
        except PROBLEMS as error:
            problem = problem or error
            continue
        for mine, more in zip(deliveries, got.deliveries, strict=True):
            mine.extend(more)
        expired += got.expired
        now, paused = max(now, got.now), paused or got.paused
        if got.next_at is not None:
            waiting[name] = got.next_at
    if not now and problem:
        raise problem
    return Reserved(deliveries, min(waiting.values(), default=None), now, expired, paused)


def _is_enough(left: Sequence[Ask], deliveries: Sequence[Sequence[Delivery]]) -> bool:
    """All asks are served, or the call is at its bound."""
    got = [delivery for share in deliveries for delivery in share]
    full = len(got) >= STEP_JOBS or sum(map(payload_bytes, got)) >= STEP_BYTES
    return full or not any(ask.limit for ask in left)


def _rest(ask: Ask, got: int) -> Ask:
    """What is left of an ask. The jobs that it got are counted against its quotas, from the first on."""
    quotas: list[int] = []
    for quota in ask.quotas:
        spent = min(quota, got)
        got -= spent
        quotas.append(quota - spent)
    left = ask.limit - sum(ask.quotas) + sum(quotas) - got
    return Ask(left, ask.ttr_ms, (quotas[0], quotas[1], quotas[2]))

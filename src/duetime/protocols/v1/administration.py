"""The queues themselves: dead letters, purging, joins, rules, pause and resume; and the counters of workers."""

from duetime.model.clock import duration_ms
from duetime.model.errors import Forbidden, InvalidRequest, InvalidTime, TooManyRequests
from duetime.model.job import DAY_MS, MAX_RESULT_MS
from duetime.model.names import check_id
from duetime.protocols.tokens import Access
from duetime.protocols.v1.request import NativeRequest, Response
from duetime.stores.base import RulesChange
from duetime.stores.finishes import JoinCount
from duetime.wire import convert
from duetime.wire.messages import (
    MAX_CAP,
    CounterOut,
    CountIn,
    JoinsIn,
    JoinsOut,
    PurgedOut,
    PurgeIn,
    RespawnIn,
    ResultsOut,
    RulesIn,
)
from duetime.wire.payload import RESTARTS, counter_name

MINUTE_MS = 60_000
MAX_STARTED = 100_000
"""Counters that the tokens of a namespace may start a day, and as many a minute that live for a minute."""
MAX_LONG_STARTED = 1_000
"""Counters that live longer than a day, which the admins of a namespace may start a day."""


async def respawn(request: NativeRequest[RespawnIn, None]) -> Response:
    message = request.message
    moved = await request.engine.respawn(
        request.queue, ids=message.ids, limit=message.limit, ttl_ms=duration_ms(message.ttl), tries=message.tries
    )
    return Response(200, ResultsOut([convert.result_out(one) for one in moved]))


async def purge(request: NativeRequest[PurgeIn, None]) -> Response:
    states = list(dict.fromkeys(request.message.states))
    return Response(200, PurgedOut(await request.engine.purge(request.queue, states, limit=request.message.limit)))


async def add_to_counter(request: NativeRequest[CountIn, None]) -> Response:
    """For workers and their commands; the names of other counters cannot be reached from here.

    A token that is no admin's may add to counters that pass. The number of counters that a day may bring is bounded.
    """
    message, registry = request.message, request.engine.store.registry
    name, life_ms = counter_name(request.queue.namespace, message.name), duration_ms(message.life)
    counter = await registry.increment(name, 0)
    if message.by:
        if abs(counter.value + message.by) > MAX_CAP:
            raise InvalidRequest(f"counter must stay between -{MAX_CAP} and {MAX_CAP}")
        await _check_counting(request, counter.value, life_ms)
        counter = await registry.increment(name, message.by, life_ms=life_ms)
    return Response(200, CounterOut(counter.value, counter.left_ms))


async def _check_counting(request: NativeRequest[CountIn, None], value: int, life_ms: int) -> None:
    is_long = not 0 < life_ms <= DAY_MS
    if Access.ADMIN not in request.scopes and (is_long or request.message.name == RESTARTS):
        raise Forbidden(
            "token must have the scope admin for counters that live longer than a day, and to restart workers"
        )
    if value:
        return
    # This bounds the counters that exist concurrently; the many short ones of rate limits have a bound of their own.
    span, span_ms = ("minute", MINUTE_MS) if 0 < life_ms <= MINUTE_MS else ("day", DAY_MS)
    kind, most = ("long", MAX_LONG_STARTED) if is_long else (span, MAX_STARTED)
    name = f"counters-started/{request.queue.namespace}/{kind}"
    started = await request.engine.store.registry.increment(name, life_ms=span_ms)
    if started.value > most:
        raise TooManyRequests(
            f"{most} counters were started within a {span}", retry_after_s=-(-started.left_ms // 1000)
        )


async def raise_joins(request: NativeRequest[JoinsIn, None]) -> Response:
    joins = [JoinCount(one.name, one.count, duration_ms(one.life)) for one in request.message.joins]
    for one in joins:
        check_id(one.name)
        if not 0 < one.left_ms <= MAX_RESULT_MS:
            raise InvalidTime(f"life of a join must be 1 to {MAX_RESULT_MS} ms, got {one.left_ms}")
    await request.engine.store.raise_joins(request.queue, joins)
    return Response(200, JoinsOut(len(joins)))


async def get_rules(request: NativeRequest[None, None]) -> Response:
    return Response(200, await request.engine.store.configure(request.queue))


async def change_rules(request: NativeRequest[RulesIn, None]) -> Response:
    return Response(200, await request.engine.store.configure(request.queue, request.message))


async def pause(request: NativeRequest[None, None]) -> Response:
    return Response(200, await request.engine.store.configure(request.queue, RulesChange(paused=True)))


async def resume(request: NativeRequest[None, None]) -> Response:
    return Response(200, await request.engine.store.configure(request.queue, RulesChange(paused=False)))

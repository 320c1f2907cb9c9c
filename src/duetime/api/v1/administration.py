"""The queues themselves: dead letters, purging, rules, pause and resume; and the counters of workers."""

from duetime.api.v1.request import Reply, Request
from duetime.clock import duration_ms
from duetime.stores.base import RulesChange
from duetime.wire import convert
from duetime.wire.messages import CounterOut, CountIn, PurgedOut, PurgeIn, RespawnIn, ResultsOut, RulesIn
from duetime.wire.payload import counter_name


async def respawn(request: Request[RespawnIn, None]) -> Reply:
    message = request.message
    moved = await request.engine.respawn(
        request.queue, ids=message.ids, limit=message.limit, ttl_ms=duration_ms(message.ttl), tries=message.tries
    )
    return Reply(200, ResultsOut([convert.result_out(one) for one in moved]))


async def purge(request: Request[PurgeIn, None]) -> Reply:
    states = list(dict.fromkeys(request.message.states))
    return Reply(200, PurgedOut(await request.engine.purge(request.queue, states, limit=request.message.limit)))


async def add_to_counter(request: Request[CountIn, None]) -> Reply:
    """For workers and their commands; the names of other counters cannot be reached from here."""
    message, registry = request.message, request.engine.store.registry
    name = counter_name(request.queue.namespace, message.name)
    counter = await registry.increment(name, message.by, life_ms=duration_ms(message.life))
    return Reply(200, CounterOut(counter.value))


async def get_rules(request: Request[None, None]) -> Reply:
    return Reply(200, await request.engine.configure(request.queue))


async def change_rules(request: Request[RulesIn, None]) -> Reply:
    return Reply(200, await request.engine.configure(request.queue, convert.rules_change(request.message)))


async def pause(request: Request[None, None]) -> Reply:
    return Reply(200, await request.engine.configure(request.queue, RulesChange(paused=True)))


async def resume(request: Request[None, None]) -> Reply:
    return Reply(200, await request.engine.configure(request.queue, RulesChange(paused=False)))

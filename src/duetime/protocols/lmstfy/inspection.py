"""Peeks, sizes, dead letters, destroy: the routes that are not on the hot path."""

from binascii import b2a_base64

from duetime.model.clock import MAX_DURATION
from duetime.model.errors import InvalidId
from duetime.model.job import Job, State
from duetime.model.names import check_id
from duetime.protocols.lmstfy.call import LmstfyCall, LmstfyTools
from duetime.protocols.lmstfy.consumers import attributes_json, id_json, place_json, remaining_s, remaining_tries
from duetime.protocols.lmstfy.wire import MAX_I64, LmstfyAnswer, elapsed_ms, read_limit, read_number, refused, to_json

LARGEST_LIMIT = 10**12
"""More dead letters than any store holds; keeps the arithmetic of stores away from the edge of 64 bits."""


async def peek_head(tools: LmstfyTools, call: LmstfyCall) -> LmstfyAnswer:
    page = await call.engine.store.list_jobs(call.queue, State.READY, limit=1)
    if not page.jobs:
        raise refused(404, "the queue is empty")
    job = page.jobs[0]
    return LmstfyAnswer(200, await _peeked(tools, call, job, remaining_tries(job.tries, job.used)))


async def peek_job(tools: LmstfyTools, call: LmstfyCall) -> LmstfyAnswer:
    try:
        [job] = await call.engine.store.get(call.queue, [check_id(call.job_id)])
    except InvalidId:
        job = None
    if job is None:
        raise refused(404, "job not found")
    return LmstfyAnswer(200, await _peeked(tools, call, job, 0))


async def _peeked(tools: LmstfyTools, call: LmstfyCall, job: Job, tries: int) -> bytes:
    # By the store's clock, which set the expiry: ours may be ahead or behind.
    ttl_s = remaining_s(job.expires_at, (await call.engine.store.ping()).now) if job.expires_at else 0
    return b'{"attributes":%b,"data":"%b","elapsed_ms":%d,"job_id":%b,%b}' % (
        attributes_json(job.attributes),
        b2a_base64(job.body, newline=False),
        elapsed_ms(job.id, tools.clock.now_ms()),
        id_json(job.id),
        place_json(call.queue, tries, ttl_s),
    )


async def size(tools: LmstfyTools, call: LmstfyCall) -> LmstfyAnswer:
    [counts] = await call.engine.store.counts([call.queue])
    return _size(call, counts.ready)


async def dead_size(tools: LmstfyTools, call: LmstfyCall) -> LmstfyAnswer:
    [counts] = await call.engine.store.counts([call.queue])
    return _size(call, counts.dead)


def _size(call: LmstfyCall, number: int) -> LmstfyAnswer:
    return LmstfyAnswer(200, to_json({"namespace": call.namespace, "queue": call.queues, "size": number}))


async def peek_dead(tools: LmstfyTools, call: LmstfyCall) -> LmstfyAnswer:
    page = await call.engine.store.list_jobs(call.queue, State.DEAD, limit=1)
    [counts] = await call.engine.store.counts([call.queue])
    shown = {
        "deadletter_head": page.jobs[0].id if page.jobs else "",
        # These are two reads. A change in between must not show a head in an empty queue, or none in a full one.
        "deadletter_size": max(counts.dead, 1) if page.jobs else 0,
        "namespace": call.namespace,
        "queue": call.queues,
    }
    return LmstfyAnswer(200, to_json(shown))


async def respawn(tools: LmstfyTools, call: LmstfyCall) -> LmstfyAnswer:
    """Brings back the oldest dead letters first; each gets one try and, unless ttl is 0, a new time to live."""
    limit = min(read_limit(call.query), LARGEST_LIMIT)
    ttl_ms = min(read_number(call.query, "ttl", tools.defaults.ttl, MAX_I64) * 1000, MAX_DURATION)
    moved = await call.engine.respawn(call.queue, limit=limit, ttl_ms=ttl_ms, tries=1)
    tools.metrics.respawned(call.pool, len(moved))
    return LmstfyAnswer(200, b'{"count":%d,"msg":"respawned"}' % len(moved))


async def delete_dead(tools: LmstfyTools, call: LmstfyCall) -> LmstfyAnswer:
    limit = min(read_limit(call.query), LARGEST_LIMIT)
    await call.engine.purge(call.queue, [State.DEAD], limit=limit)
    return LmstfyAnswer(204)


async def destroy(tools: LmstfyTools, call: LmstfyCall) -> LmstfyAnswer:
    """Removes the ready jobs; delayed, leased and dead ones stay."""
    await call.engine.purge(call.queue, [State.READY])
    return LmstfyAnswer(204)

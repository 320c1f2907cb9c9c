"""Reads: jobs, pages of jobs, queues with their counts, and when jobs fall due. Nothing here moves a job."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

from msgspec import UNSET

from duetime.engine import Engine
from duetime.journal.registration import find_journaling, registered
from duetime.model.clock import MAX_INSTANT, duration_ms, instant_ms
from duetime.model.errors import InvalidRequest, JobNotFound
from duetime.model.job import chunks
from duetime.model.names import Queue, check_id
from duetime.protocols.v1.request import (
    DEFAULT_SPAN_MS,
    DueQuery,
    ListQuery,
    NativeRequest,
    QueuesQuery,
    Response,
)
from duetime.wire import convert
from duetime.wire.job_output import read_output
from duetime.wire.messages import (
    MAX_BUCKETS,
    HistogramOut,
    IdsIn,
    JobsOut,
    JournalNodeOut,
    JournalNodesOut,
    NamespaceOut,
    NamespacesOut,
    QueueOut,
    QueuesOut,
)
from duetime.wire.worker_beats import find_workers

AT_ONCE = 100
"""Store calls under way at a time for one listing."""
DEFAULT_BUCKETS = 60


async def get_job(request: NativeRequest[None, None]) -> Response:
    [job] = await request.engine.store.get(request.queue, [request.job_id])
    if job is None:
        raise JobNotFound.of(request.job_id, request.queue)
    return Response(200, convert.job_out(job))


async def get_jobs(request: NativeRequest[IdsIn, None]) -> Response:
    ids = [check_id(job_id) for job_id in dict.fromkeys(request.message.ids)]
    jobs = await request.engine.store.get(request.queue, ids)
    return Response(200, JobsOut([job and convert.job_out(job) for job in jobs], left_out=ids[len(jobs) :]))


async def list_jobs(request: NativeRequest[None, ListQuery]) -> Response:
    query = request.query
    cursor = None if query.cursor is UNSET else query.cursor
    page = await request.engine.store.list_jobs(request.queue, query.state, cursor=cursor, limit=query.limit)
    return Response(200, convert.page_out(page))


async def get_queue(request: NativeRequest[None, None]) -> Response:
    [status] = await _statuses(request.engine, [request.queue])
    return Response(200, status)


async def list_queues(request: NativeRequest[None, QueuesQuery]) -> Response:
    namespace = None if request.query.namespace is UNSET else request.query.namespace
    queues = await request.engine.store.queues(namespace)
    found: list[QueueOut] = []
    for some in chunks(queues, AT_ONCE):
        found += await _statuses(request.engine, some)
    return Response(200, QueuesOut(found))


async def _statuses(engine: Engine, queues: Sequence[Queue]) -> list[QueueOut]:
    counts = await engine.store.counts(queues)
    heads = await engine.store.heads(queues)
    rules = await asyncio.gather(*(engine.store.configure(queue) for queue in queues))
    return [
        QueueOut(*queue, convert.counts_out(one), own, head or 0)
        for queue, one, own, head in zip(queues, counts, rules, heads, strict=True)
    ]


async def list_namespaces(request: NativeRequest[None, None]) -> Response:
    queues = await request.engine.store.queues()
    return Response(200, NamespacesOut(sorted({queue.namespace for queue in queues})))


async def get_namespace(request: NativeRequest[None, None]) -> Response:
    info = await request.engine.store.ping()
    for problem in info.problems.values():
        raise problem  # a client that compares epochs must not treat a member that is down as a wiped store
    return Response(200, NamespaceOut(request.queue.namespace, info.epoch, info.now))


async def list_workers(request: NativeRequest[None, None]) -> Response:
    return Response(200, await find_workers(request.engine.store.registry, request.queue.namespace))


async def get_output(request: NativeRequest[None, None]) -> Response:
    return Response(200, await read_output(request.engine.store.registry, request.queue, request.job_id))


async def journal_nodes(request: NativeRequest[None, None]) -> Response:
    nodes = await registered(request.engine.store)
    found = [
        JournalNodeOut(name, one.at, one.last, one.abandoned, one.host, one.pid, one.journal, one.seen_at)
        for name, one in sorted(nodes.items())
    ]
    journaling = await find_journaling(request.engine.store)
    # The server's entries have its own name of the pool, not the one in the store's record.
    return Response(200, JournalNodesOut(found, request.pool, journaling.since if journaling else 0))


async def totals(request: NativeRequest[None, None]) -> Response:
    [found] = await request.engine.store.totals([request.queue])
    return Response(200, found)


async def due(request: NativeRequest[None, DueQuery]) -> Response:
    edges = await _edges(request)
    counts = await request.engine.store.due_histogram(request.queue, edges)
    return Response(200, HistogramOut(edges, list(counts)))


async def _edges(request: NativeRequest[None, DueQuery]) -> list[int]:
    query = request.query
    if (query.edges is not UNSET) + (query.within is not UNSET) + (
        {query.start, query.end, query.buckets} != {UNSET}
    ) > 1:
        raise InvalidRequest("query must have edges, or within, or from, to and buckets")
    if query.edges is not UNSET:
        return _read_edges(query.edges)
    if query.within is not UNSET:
        # Due until then, that instant included: a bucket ends before its edge.
        return [0, (await request.engine.store.ping()).now + duration_ms(query.within) + 1]
    start = (await request.engine.store.ping()).now if query.start is UNSET else instant_ms(query.start)
    end = start + DEFAULT_SPAN_MS if query.end is UNSET else instant_ms(query.end)
    buckets = DEFAULT_BUCKETS if query.buckets is UNSET else query.buckets
    if end - start < buckets:
        raise InvalidRequest(f"buckets must be at least a millisecond long, got {buckets} from {start} to {end}")
    return [start + (end - start) * step // buckets for step in range(buckets + 1)]


def _read_edges(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) <= len(str(MAX_INSTANT)) for part in parts):
        raise InvalidRequest("edges must be epoch milliseconds with commas between them", path="$.edges")
    edges = [int(part) for part in parts]
    if not 2 <= len(edges) <= MAX_BUCKETS + 1 or not all(low < high for low, high in pairwise(edges)):
        raise InvalidRequest(f"edges must be 2 to {MAX_BUCKETS + 1} rising instants", path="$.edges")
    return edges

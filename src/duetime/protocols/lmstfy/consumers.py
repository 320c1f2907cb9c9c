"""Consume and acknowledge."""

import asyncio
import logging
import math
import time
from binascii import b2a_base64
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial

from duetime.engine import Engine
from duetime.engine.requests import AckByIdRequest, ReserveRequest
from duetime.http.exchange import Exchange
from duetime.model.errors import DuetimeError, InvalidId
from duetime.model.job import Delivery, Moved
from duetime.model.names import Queue, check_id
from duetime.protocols.asgi import exchange_of
from duetime.protocols.lmstfy.call import LmstfyCall, LmstfyOperation, LmstfyTools
from duetime.protocols.lmstfy.wire import (
    MAX_U16,
    Consuming,
    LmstfyAnswer,
    consumed_queues,
    elapsed_ms,
    read_consuming,
    to_json,
)

log = logging.getLogger("duetime.lmstfy")

NO_JOB = LmstfyAnswer(404, b'{"msg":"no job available"}')
ACKED = LmstfyAnswer(204, headers=())


async def consume(tools: LmstfyTools, call: LmstfyCall) -> LmstfyAnswer:
    deadline = time.monotonic()
    asked = read_consuming(call.query, tools.defaults)
    deadline += asked.timeout
    queues = consumed_queues(call.namespace, call.queues)
    try:
        found = await _reserve(call, queues, asked, deadline)
    except DuetimeError as error:
        if asked.count == 1:
            raise
        # As lmstfy has it: a batch that cannot be had is an empty batch.
        log.warning("consume_failed", extra={"pool": call.pool, "error": error.code})
        return NO_JOB
    if not found:
        return NO_JOB
    call.delivered = found
    return delivered_answer(tools, call.pool, found, asked)


def delivered_answer(tools: LmstfyTools, pool: str, found: Sequence[Delivery], asked: Consuming) -> LmstfyAnswer:
    now, ttr_ms = tools.clock.now_ms(), asked.ttr * 1000
    bodies: list[bytes] = []
    for delivery in found:
        elapsed = elapsed_ms(delivery.lease.id, now)
        tools.metrics.consumed(pool, delivery.lease.queue, elapsed)
        bodies.append(_delivered(delivery, elapsed, ttr_ms))
    return LmstfyAnswer(200, bodies[0] if asked.count == 1 else b"[%b]" % b",".join(bodies))


async def _reserve(call: LmstfyCall, queues: Sequence[Queue], asked: Consuming, deadline: float) -> list[Delivery]:
    """Up to `count` jobs that are ready now. If none is, and the request has time, wait for one job."""
    ttr_ms = asked.ttr * 1000
    found: list[Delivery] = []
    if queues:
        found = await call.engine.reserve(queues, limit=asked.count, ttr_ms=ttr_ms)
    if found or not asked.timeout:
        return found
    return await exchange_of(call.scope).park(_wait(call.engine, queues, ttr_ms, deadline), found)


async def _wait(engine: Engine, queues: Sequence[Queue], ttr_ms: int, deadline: float) -> list[Delivery]:
    """One job, or none once the deadline has passed on our own clock, and not a millisecond earlier."""
    while (left := deadline - time.monotonic()) > 0:
        if not queues:
            # No queue can have this name, so no job ever comes; the client still gets the wait that it asked for.
            await asyncio.sleep(left)
        elif found := await engine.reserve(queues, ttr_ms=ttr_ms, wait_ms=math.ceil(left * 1000)):
            return found
    return []


class Consume(LmstfyOperation[Consuming]):
    """consume of one queue and one job on the fast path. A request that finds no job waits in a task of its own."""

    def submit(self, exchange: Exchange) -> bool:
        self.begin(exchange, ReserveRequest(self.queue, self.asked.ttr * 1000))
        return True

    def respond(self, exchange: Exchange, result: list[Delivery]) -> None:
        if result:
            if not self.finish(exchange, delivered_answer(self.tools, self.pool, result, self.asked)):
                self.pools.engine(self.pool).give_back_later(result)
        elif self.asked.timeout and not exchange.gone and exchange.task is None:
            exchange.start(partial(self._wait, exchange.context + self.asked.timeout))
        else:
            self.finish(exchange, NO_JOB)

    def _wait(self, deadline: float) -> Awaitable[list[Delivery]]:
        return _wait(self.pools.engine(self.pool), [self.queue], self.asked.ttr * 1000, deadline)


class Acknowledge(LmstfyOperation[None]):
    """acknowledge on the fast path."""

    def submit(self, exchange: Exchange) -> bool:
        job_id = exchange.url.rpartition(b"/")[2].decode("ascii")
        self.begin(exchange, AckByIdRequest(self.queue, (job_id,)))
        return True

    def respond(self, exchange: Exchange, result: Sequence[Moved | None]) -> None:
        count_ack(self.tools, self.pool, self.queue, result[0])
        self.finish(exchange, ACKED)


def _delivered(delivery: Delivery, elapsed: int, ttr_ms: int) -> bytes:
    lease = delivery.lease
    return b'{"attributes":%b,"data":"%b","elapsed_ms":%d,"job_id":%b,"msg":"new job",%b}' % (
        attributes_json(delivery.attributes),
        b2a_base64(delivery.body, newline=False),
        elapsed,
        id_json(lease.id),
        place_json(
            lease.queue,
            remaining_tries(delivery.tries, delivery.used),
            remaining_s(delivery.expires_at, delivery.lease_until - ttr_ms),
        ),
    )


def place_json(queue: Queue, tries: int, ttl_s: int) -> bytes:
    """The last keys of a job, the same for delivered and peeked jobs. Names need no escapes."""
    return b'"namespace":"%b","queue":"%b","remain_tries":%d,"ttl":%d' % (
        queue.namespace.encode(),
        queue.name.encode(),
        tries,
        ttl_s,
    )


def attributes_json(attributes: Mapping[str, str]) -> bytes:
    return to_json(dict(attributes)) if attributes else b"null"


def id_json(job_id: str) -> bytes:
    """Ids of other protocols may hold anything printable."""
    return b'"%b"' % job_id.encode() if job_id.isascii() and job_id.isalnum() else to_json(job_id)


def remaining_tries(tries: int, used: int) -> int:
    """Jobs of other protocols may have unlimited tries, which are shown as the largest number that lmstfy knows."""
    return max(tries - used, 0) if tries else MAX_U16


def remaining_s(expires_at: int, now_ms: int) -> int:
    """Rounded up, so that a fresh ttl reads as it was given; 0 is reserved for jobs that never expire."""
    return max(-((now_ms - expires_at) // 1000), 1) if expires_at else 0


async def acknowledge(tools: LmstfyTools, call: LmstfyCall) -> LmstfyAnswer:
    """Removes a job by its id alone, in any state and without a lease, so it also recalls a job."""
    try:
        check_id(call.job_id)
    except InvalidId:
        return ACKED  # no job can have this id
    [moved] = await call.engine.ack_by_id(call.queue, [call.job_id])
    count_ack(tools, call.pool, call.queue, moved)
    return ACKED


def count_ack(tools: LmstfyTools, pool: str, queue: Queue, moved: Moved | None) -> None:
    """None: there was no such job."""
    if moved is not None:
        elapsed = elapsed_ms(moved.id, tools.clock.now_ms())
        tools.metrics.acknowledged(pool, queue, elapsed, delivered=moved.attempt > 0)

"""Handlers for consumers: reserve, and then one verb per outcome."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from msgspec import UNSET

from duetime.engine import request_reply
from duetime.engine.requests import AckRequest, ReserveRequest
from duetime.http.exchange import Exchange
from duetime.model.clock import duration_ms
from duetime.model.errors import DuetimeError, Forbidden, InvalidRequest, InvalidTime, LeaseLost
from duetime.model.job import STEP_JOBS, Delivery, Lease, Moved
from duetime.model.names import Queue, check_queue
from duetime.protocols.asgi import exchange_of
from duetime.protocols.tokens import Access
from duetime.protocols.v1.request import CallQuery, NativeRequest, Response, V1Operation
from duetime.stores.finishes import KeptResult
from duetime.wire import convert
from duetime.wire.messages import (
    MAX_WAIT_MS,
    AckIn,
    AnswerOut,
    DeliveriesOut,
    DurationIn,
    ExtendedOut,
    ExtendIn,
    FinishesIn,
    FinishesOut,
    GiveBackIn,
    KeptResultsOut,
    KillIn,
    PushIn,
    ReleaseIn,
    ReserveIn,
    ReserveManyIn,
    ResultsIn,
    ResultsOut,
)

log = logging.getLogger("duetime.server")


async def reserve(request: NativeRequest[ReserveIn, None]) -> Response:
    return await _reserve(request, [request.queue])


async def reserve_many(request: NativeRequest[ReserveManyIn, None]) -> Response:
    names = dict.fromkeys(request.message.queues)
    return await _reserve(request, [check_queue(request.queue.namespace, name) for name in names])


async def _reserve(
    request: NativeRequest[ReserveIn, None] | NativeRequest[ReserveManyIn, None], queues: Sequence[Queue]
) -> Response:
    message, engine = request.message, request.engine
    wait_ms = wait_of(message.wait)
    work = engine.reserve(queues, limit=message.limit, ttr_ms=duration_ms(message.ttr), wait_ms=wait_ms)
    if wait_ms:
        work = exchange_of(request.scope).park(work, list[Delivery]())
    found = await work
    return _delivered_response(found, lambda: engine.give_back_all(found))


def _delivered_response(found: Sequence[Delivery], undo: Callable[[], Awaitable[None]] | None = None) -> Response:
    answer = DeliveriesOut([convert.delivery_out(delivery) for delivery in found])
    return Response(200, answer, undo=undo if found else None)


class ReserveOperation(V1Operation[ReserveIn]):
    """A request that finds no job and wants to wait continues in a task of its own."""

    def request(self, message: ReserveIn) -> ReserveRequest:
        return ReserveRequest(self.queue, duration_ms(message.ttr), message.limit, wait_of(message.wait))

    def respond(self, exchange: Exchange, result: list[Delivery]) -> None:
        request: ReserveRequest = exchange.context.request
        if request.wait_ms and not (result or exchange.task or exchange.gone):
            exchange.start(partial(self._wait, request))
        elif not self.finish(exchange, _delivered_response(result)):
            self.pools.engine(self.pool).give_back_later(result)

    def _wait(self, request: ReserveRequest) -> Awaitable[list[Delivery]]:
        engine, wait_ms = self.pools.engine(self.pool), request.wait_ms
        return engine.reserve([self.queue], limit=request.limit, ttr_ms=request.ttr_ms, wait_ms=wait_ms)


def wait_of(wait: DurationIn) -> int:
    wait_ms = duration_ms(wait)
    if wait_ms > MAX_WAIT_MS:
        raise InvalidTime(f"wait must be at most {MAX_WAIT_MS // 1000} s: send the request again to wait longer")
    return wait_ms


async def ack(request: NativeRequest[AckIn, None]) -> Response:
    """The one lease that is lost is refused, as `release` would; of several, each has its own result."""
    message = request.message
    return AckOperation.response(message, await request.engine.ack(_leases(request.queue, message)))


def _leases(queue: Queue, message: AckIn) -> list[Lease]:
    if (message.lease is UNSET) == (message.leases is UNSET):
        raise InvalidRequest("request must have lease or leases, and not both")
    refs = [message.lease] if message.lease is not UNSET else message.leases or []
    return [convert.lease(queue, ref) for ref in refs]


class AckOperation(V1Operation[AckIn]):
    def request(self, message: AckIn) -> AckRequest | None:
        leases = _leases(self.queue, message)
        return AckRequest(self.queue, leases) if 0 < len(leases) <= STEP_JOBS else None

    @staticmethod
    def response(message: AckIn, result: Sequence[Moved | LeaseLost | None]) -> Response:
        if message.lease is not UNSET and isinstance(result[0], DuetimeError):
            raise result[0]
        return Response(200, ResultsOut([convert.result_out(answer) for answer in result]))


async def finish(request: NativeRequest[FinishesIn, None]) -> Response:
    finishes = [convert.finish(request.queue, one, request.make_id) for one in request.message.finishes]
    if Access.WRITE not in request.scopes and any(one.then or one.join for one in finishes):
        raise Forbidden("token must have the scope write for a finish that adds jobs")
    answers = await request.engine.finish(finishes)
    return Response(200, FinishesOut([convert.finished_out(answer) for answer in answers]))


async def results(request: NativeRequest[ResultsIn, None]) -> Response:
    ids, wait_ms = request.message.ids, wait_of(request.message.wait)
    nothing: list[KeptResult | None] = [None] * len(ids)
    work = request.engine.results(request.queue, ids, wait_ms=wait_ms)
    found = await exchange_of(request.scope).park(work, nothing)
    return Response(200, KeptResultsOut([kept and convert.kept_result_out(kept) for kept in found]))


async def release(request: NativeRequest[ReleaseIn, None]) -> Response:
    message = request.message
    lease = convert.lease(request.queue, message.lease)
    moved = await request.engine.release(lease, delay_ms=duration_ms(message.delay), error=message.error)
    return Response(200, convert.result_out(moved))


async def give_back(request: NativeRequest[GiveBackIn, None]) -> Response:
    message = request.message
    delay_ms = None if message.delay is UNSET else duration_ms(message.delay)
    answers = await request.engine.give_back(_leases(request.queue, message), delay_ms=delay_ms)
    return AckOperation.response(message, answers)


async def kill(request: NativeRequest[KillIn, None]) -> Response:
    message = request.message
    moved = await request.engine.kill(convert.lease(request.queue, message.lease), error=message.error)
    return Response(200, convert.result_out(moved))


async def extend(request: NativeRequest[ExtendIn, None]) -> Response:
    message = request.message
    until = await request.engine.extend(convert.lease(request.queue, message.lease), duration_ms(message.ttr))
    return Response(200, ExtendedOut(until))


async def call(request: NativeRequest[PushIn, CallQuery]) -> Response:
    """Push a job and wait for its answer. The job stays if no answer comes in time; a call with the same id and
    if_exists=keep then continues the wait.
    """
    engine, wait_ms = request.engine, wait_of(request.query.wait)
    job = convert.new_job(request.message, request.make_id)
    answers = await request_reply.begin_call(engine, request.queue, job, request.message.if_exists)
    work = engine.reserve([answers], wait_ms=wait_ms)
    found = await exchange_of(request.scope).park(work, list[Delivery]())
    delivery = request_reply.answer_of(answers, found)
    body, body_b64 = convert.write_body(delivery.body)
    answer = AnswerOut(job.id, delivery.lease.id, body, body_b64, dict(delivery.attributes))

    async def on_delivery(is_received: bool) -> None:
        await request_reply.end_call(engine, delivery, is_received=is_received)

    return Response(200, answer, on_delivery=on_delivery)

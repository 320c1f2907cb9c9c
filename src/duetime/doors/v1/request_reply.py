"""The synchronous model in one request: push a job, wait for its answer."""

from duetime.doors.v1.consumers import wait_of
from duetime.doors.v1.queries import CallQuery
from duetime.doors.v1.request import NativeRequest, Reply
from duetime.engine import request_reply
from duetime.job import Delivery
from duetime.wire import convert
from duetime.wire.messages import AnswerOut, PushIn


async def call(request: NativeRequest[PushIn, CallQuery]) -> Reply:
    """The job stays when nobody answers in time; calling again with its id and if_exists=keep waits on."""
    engine, wait_ms = request.engine, wait_of(request.query.wait)
    job = convert.new_job(request.message, request.make_id)
    answers = await request_reply.ask(engine, request.queue, job, request.message.if_exists)
    found = await request.park(engine.reserve([answers], wait_ms=wait_ms), list[Delivery]())
    delivery = request_reply.answer_of(answers, found)
    body, body_b64 = convert.body_out(delivery.body)
    answer = AnswerOut(job.id, delivery.lease.id, body, body_b64, dict(delivery.attributes))

    async def settle(is_received: bool) -> None:
        await request_reply.settle(engine, delivery, is_received=is_received)

    return Reply(200, answer, settle=settle)

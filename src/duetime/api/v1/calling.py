"""The synchronous model in one request: push a job, wait for its answer.

A worker answers a call by pushing a job to the queue that has the call's job id for its name, in the same namespace.
"""

from duetime.api.v1.consumers import give_back_all, wait_of
from duetime.api.v1.queries import CallQuery
from duetime.api.v1.request import Reply, Request
from duetime.engine import Engine
from duetime.errors import InvalidRequest, NoAnswer
from duetime.job import Delivery, State
from duetime.names import Queue, check_queue
from duetime.wire import convert
from duetime.wire.messages import AnswerOut, PushIn


async def call(request: Request[PushIn, CallQuery]) -> Reply:
    """The job stays when nobody answers in time; calling again with its id and if_exists=keep waits on."""
    message, engine = request.message, request.engine
    wait_ms = wait_of(request.query.wait)
    job = convert.new_job(message, request.make_id)
    answers = check_queue(request.queue.namespace, job.id)
    if answers == request.queue:
        raise InvalidRequest(
            "the job of a call cannot be named like its queue: its answer comes to the queue of that name"
        )
    await engine.push(request.queue, [job], if_exists=message.if_exists)
    found = await request.park(engine.reserve([answers], wait_ms=wait_ms), list[Delivery]())
    if not found:
        raise NoAnswer(f"nobody answered {job.id!r} within {wait_ms} ms; the job stays", id=job.id)
    [delivery] = found
    body, body_b64 = convert.body_out(delivery.body)
    try:
        await engine.ack([delivery.lease])
    except BaseException:
        await give_back_all(engine, found)
        raise
    await _forget(engine, answers)
    return Reply(200, AnswerOut(job.id, delivery.lease.id, body, body_b64, dict(delivery.attributes)))


async def _forget(engine: Engine, answers: Queue) -> None:
    """The queue was made for one answer. If there is more in it, somebody else uses that name: it is left alone."""
    [counts] = await engine.store.counts([answers])
    if counts.total == 0:
        await engine.purge(answers, list(State))

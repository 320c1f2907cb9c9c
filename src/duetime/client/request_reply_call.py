"""`queue.call`: push a job and wait for its answer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from duetime.client.call import Call, Pushing, Request, decode, queue_path
from duetime.model.clock import Duration, duration_ms
from duetime.model.job import IfExists, NewJob
from duetime.model.names import Queue
from duetime.wire import bodies, convert, messages

if TYPE_CHECKING:
    from duetime.engine import Engine


class Answered(NamedTuple):
    """What a worker answered to a call: its body, and the attributes that came with it."""

    job_id: str
    body: bytes
    attributes: Mapping[str, str]


def call(queue: Queue, job: NewJob, wait: Duration, if_exists: IfExists = IfExists.KEEP) -> Call[Answered]:
    """Push a job and wait for the answer that a worker pushes to the queue named after its id. Raises NoAnswer.

    Repeatable: with the same id it waits on for the same answer.
    """
    wait_ms = duration_ms(wait)

    async def run(engine: "Engine") -> Answered:
        from duetime.engine import request_reply  # noqa: PLC0415 (whoever talks to a server does not wait for an engine)

        answers = await request_reply.ask(engine, queue, job, if_exists)
        found = await engine.reserve([answers], wait_ms=wait_ms)
        delivery = request_reply.answer_of(answers, found)
        await request_reply.settle(engine, delivery, is_received=True)
        return Answered(job.id, delivery.body, delivery.attributes)

    def request() -> Request:
        return Request(
            "POST",
            f"{queue_path(queue, 'call')}?wait={wait_ms}ms",
            msgspec.json.encode(convert.push_in(job, if_exists)),
        )

    def parse(reply: bytes) -> Answered:
        message = decode(reply, messages.AnswerOut)
        return Answered(message.id, bodies.read(message.body, message.body_b64), message.attributes)

    again = Pushing(queue, [job], lambda others: call(queue, others[0], wait, if_exists))
    return Call(request, parse, run, repeatable=True, wait_ms=wait_ms, subject=again)

"""The synchronous model: push a job, then wait for its answer on a queue of its own.

A worker answers a call by pushing a job to the queue whose name is the call's job id, in the same namespace. Between
`begin_call` and `answer_of` lies an ordinary reserve of that queue, for which each protocol waits in its own way;
`end_call` comes after the caller has the answer.
"""

from duetime.engine.engine import Engine
from duetime.model.errors import InvalidRequest, NoAnswer
from duetime.model.job import Delivery, IfExists, NewJob, State
from duetime.model.names import Queue, check_queue


async def begin_call(engine: Engine, queue: Queue, job: NewJob, if_exists: IfExists) -> Queue:
    """Push the job; returns the queue to wait on. A repeated call with the same id and keep waits for the same answer.

    If an answer is ready, an earlier caller did not get it: the job has run and is not pushed again.
    """
    answers = check_queue(queue.namespace, job.id)
    if answers == queue:
        raise InvalidRequest(
            f"job id of a call must differ from the name of its queue, got {job.id!r}: the answer goes to that queue"
        )
    if if_exists is IfExists.KEEP:
        [counts] = await engine.store.counts([answers])
        if counts.ready:
            return answers
    await engine.push(queue, [job], if_exists=if_exists)
    return answers


def answer_of(answers: Queue, found: list[Delivery]) -> Delivery:
    """The delivery of the answer. Raises NoAnswer if there is none; then the job stays in its queue."""
    if not found:
        raise NoAnswer(f"call {answers.name!r} got no answer in time; its job stays in the queue", id=answers.name)
    return found[0]


async def end_call(engine: Engine, answer: Delivery, *, is_received: bool) -> None:
    """Finish the call, or keep its answer for a caller that did not get it and calls again."""
    answers = answer.lease.queue
    if not is_received:
        await engine.give_back([answer.lease])
        return
    await engine.ack([answer.lease])
    # The queue was made for one answer. If it has more jobs, something else uses that name, and the queue stays.
    [counts] = await engine.store.counts([answers])
    if counts.total == 0:
        await engine.purge(answers, list(State))

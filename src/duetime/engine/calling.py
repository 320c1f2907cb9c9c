"""The synchronous model: push a job, then wait for its answer on a queue of its own.

A worker answers a call by pushing a job to the queue that has the call's job id for its name, in the same namespace.
Between `ask` and `answered` lies an ordinary reserve of that queue, which each door waits for in its own way.
"""

from duetime.engine.engine import Engine
from duetime.errors import InvalidRequest, NoAnswer
from duetime.job import Delivery, IfExists, NewJob, State
from duetime.names import Queue, check_queue


async def ask(engine: Engine, queue: Queue, job: NewJob, if_exists: IfExists) -> Queue:
    """Push the job; answers the queue to wait on. Repeating it with the same id and keep waits on."""
    answers = check_queue(queue.namespace, job.id)
    if answers == queue:
        raise InvalidRequest(
            "the job of a call cannot be named like its queue: its answer comes to the queue of that name"
        )
    await engine.push(queue, [job], if_exists=if_exists)
    return answers


async def answered(engine: Engine, answers: Queue, found: list[Delivery]) -> Delivery:
    """Finish the call with what was reserved. Raises NoAnswer if that is nothing; the job stays then."""
    if not found:
        raise NoAnswer(f"nobody answered {answers.name!r} in time; the job stays", id=answers.name)
    [delivery] = found
    try:
        await engine.ack([delivery.lease])
    except BaseException:
        await engine.give_back(delivery.lease)
        raise
    await _forget(engine, answers)
    return delivery


async def _forget(engine: Engine, answers: Queue) -> None:
    """The queue was made for one answer. If there is more in it, somebody else uses that name: it is left alone."""
    [counts] = await engine.store.counts([answers])
    if counts.total == 0:
        await engine.purge(answers, list(State))

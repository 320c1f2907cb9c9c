"""The synchronous model: push a job, then wait for its answer on a queue of its own.

A worker answers a call by pushing a job to the queue that has the call's job id for its name, in the same namespace.
Between `ask` and `answer_of` lies an ordinary reserve of that queue, which each door waits for in its own way; `settle`
comes after the caller has the answer.
"""

from duetime.engine.engine import Engine
from duetime.model.errors import InvalidRequest, NoAnswer
from duetime.model.job import Delivery, IfExists, NewJob, State
from duetime.model.names import Queue, check_queue


async def ask(engine: Engine, queue: Queue, job: NewJob, if_exists: IfExists) -> Queue:
    """Push the job; answers the queue to wait on. Repeating it with the same id and keep waits on.

    An answer that is ready was given and did not reach the caller: the job has run and is not pushed again.
    """
    answers = check_queue(queue.namespace, job.id)
    if answers == queue:
        raise InvalidRequest(
            "the job of a call cannot be named like its queue: its answer comes to the queue of that name"
        )
    if if_exists is IfExists.KEEP:
        [counts] = await engine.store.counts([answers])
        if counts.ready:
            return answers
    await engine.push(queue, [job], if_exists=if_exists)
    return answers


def answer_of(answers: Queue, found: list[Delivery]) -> Delivery:
    """What was reserved. Raises NoAnswer if that is nothing; the job stays then."""
    if not found:
        raise NoAnswer(f"nobody answered {answers.name!r} in time; the job stays", id=answers.name)
    return found[0]


async def settle(engine: Engine, answer: Delivery, *, is_received: bool) -> None:
    """Finish the call, or keep its answer for a caller who did not get it and asks again."""
    answers = answer.lease.queue
    if not is_received:
        await engine.give_back(answer.lease)
        return
    await engine.ack([answer.lease])
    # The queue was made for one answer. If there is more in it, somebody else uses that name: it is left alone.
    [counts] = await engine.store.counts([answers])
    if counts.total == 0:
        await engine.purge(answers, list(State))

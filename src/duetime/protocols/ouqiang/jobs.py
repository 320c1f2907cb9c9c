"""ouqiang's verbs on the engine.

Its ids are global: a push replaces a job of the same id also under another topic, finish and get name an id alone. So
its jobs live in one namespace of their own, a queue per topic, and an id is looked for where it was last seen and then
in the other queues of that namespace. A job carries its ttr as an attribute; its tries are unlimited unless the
settings say otherwise.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

from duetime.engine import Engine
from duetime.model.errors import InvalidName, InvalidRequest, LeaseLost
from duetime.model.job import Delivery, IfExists, Job, NewJob
from duetime.model.names import Queue, check_queue
from duetime.protocols.ouqiang.messages import MAX_TTR_S, FoundJob, Popped, PushMessage
from duetime.protocols.parking import give_back_all

log = logging.getLogger("duetime.ouqiang")

TTR = "ttr"
DEFAULT_TTR_S = 60
HANDOVER_MS = 30_000
"""The lease between the reserve and the renewal for the job's own ttr."""
POP_WAIT_MS = 178_000
MAX_TOPICS = 1000
"""Topics that one pop may name."""
MEMORY = 100_000
"""Ids whose queue is remembered."""


class OuqiangJobs:
    """`engine` is asked anew for every call, because its pool may be closed and opened again."""

    def __init__(self, engine: Callable[[], Engine], namespace: str, *, tries: int = 0) -> None:
        self._engine = engine
        self._namespace = namespace
        self._tries = tries
        self._seen: OrderedDict[str, Queue] = OrderedDict()
        self._leaving: set[asyncio.Task[None]] = set()

    async def push(self, push: PushMessage) -> None:
        """Pushes the new job before it removes an old one of the same id."""
        queue = check_queue(self._namespace, push.topic)
        job = NewJob(
            push.id,
            push.body.encode(),
            delay_ms=push.delay * 1000,
            tries=self._tries,
            attributes={TTR: str(push.ttr)},
        )
        engine = self._engine()
        await engine.push(queue, [job], if_exists=IfExists.REPLACE)
        self._remember(push.id, queue)
        others = [one for one in await self._queues() if one != queue]
        await asyncio.gather(*(engine.cancel(one, [push.id]) for one in others))

    async def pop(self, topics: str, wait_ms: int = POP_WAIT_MS) -> tuple[Delivery, Popped] | None:
        """A topic whose name no queue can have never has a job. Raises InvalidRequest for too many topics."""
        queues = self._named(topics)
        engine = self._engine()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while (left := deadline - loop.time()) > 0:
            if not queues:
                await asyncio.sleep(left)
                continue
            found = await engine.reserve(queues, ttr_ms=HANDOVER_MS, wait_ms=max(1, int(left * 1000)))
            for delivery in found:
                try:
                    await engine.extend(delivery.lease, _ttr(delivery) * 1000)
                except LeaseLost:
                    continue
                except BaseException:
                    self._give_back_later(delivery)
                    raise
                self._remember(delivery.lease.id, delivery.lease.queue)
                return delivery, Popped(delivery.lease.id, delivery.body.decode(errors="replace"))
        return None

    async def finish(self, job_id: str) -> None:
        """Removes the job from whatever queue it is in; an unknown id is no error."""
        engine = self._engine()
        first = self._seen.pop(job_id, None)
        if first is not None:
            [moved] = await engine.ack_by_id(first, [job_id])
            if moved:
                return
        others = [queue for queue in await self._queues() if queue != first]
        await asyncio.gather(*(engine.ack_by_id(queue, [job_id]) for queue in others))

    async def get(self, job_id: str) -> FoundJob | None:
        first = self._seen.get(job_id)
        order = [first] if first else []
        order += [queue for queue in await self._queues() if queue != first]
        store = self._engine().store
        for [job] in await asyncio.gather(*(store.get(queue, [job_id]) for queue in order)):
            if job is not None:
                return _found(job)
        return None

    async def give_back(self, delivery: Delivery) -> None:
        await give_back_all(self._engine(), [delivery])

    def _give_back_later(self, delivery: Delivery) -> None:
        task = asyncio.create_task(self.give_back(delivery))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _named(self, topics: str) -> list[Queue]:
        queues: list[Queue] = []
        names = topics.split(",", MAX_TOPICS)
        if len(names) > MAX_TOPICS:
            raise InvalidRequest(f"topic must name at most {MAX_TOPICS} topics")
        for topic in dict.fromkeys(names):
            try:
                queues.append(check_queue(self._namespace, topic.strip()))
            except InvalidName:
                continue
        return queues

    async def _queues(self) -> Sequence[Queue]:
        return await self._engine().store.queues(self._namespace)

    def _remember(self, job_id: str, queue: Queue) -> None:
        self._seen[job_id] = queue
        self._seen.move_to_end(job_id)
        if len(self._seen) > MEMORY:
            self._seen.popitem(last=False)


def _ttr(job: Delivery | Job) -> int:
    """Reads the attribute `ttr`. Jobs of other protocols have none, or any text."""
    text = job.attributes.get(TTR, "")
    if not (text.isascii() and text.isdigit()):
        return DEFAULT_TTR_S
    digits = text.lstrip("0")
    if not digits:
        return DEFAULT_TTR_S
    return MAX_TTR_S if len(digits) > len(str(MAX_TTR_S)) else min(int(digits), MAX_TTR_S)


def _found(job: Job) -> FoundJob:
    return FoundJob(job.queue.name, job.id, job.due_at // 1000, _ttr(job), job.body.decode(errors="replace"))

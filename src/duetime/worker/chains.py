"""Chains: tasks that run one after the other, in any queues.

    chain(fetch.step("https://..."), parse.step(PREVIOUS), store.step(PREVIOUS, table="pages")).delay()

A step carries the steps after it in its body. When a worker acks it, the next one is pushed in the same atomic step of
the store (`finish`): it exists if and only if the step before it is done. A next step of another queue goes through a
small job in the queue of the step before it, which pushes it under its own id and a mark, so that a repetition pushes
nothing twice. A step that is a dead letter holds the chain; brought back, it goes on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct

from duetime.client.calls import push
from duetime.model.errors import InvalidRequest
from duetime.model.job import DAY_MS, MAX_BODY, IfExists, Moved, NewJob, Priority
from duetime.model.names import Queue, check_queue
from duetime.stores.base import Mark
from duetime.wire.payload import Payload
from duetime.worker.handle import Place, TaskHandle
from duetime.worker.pusher import Outgoing, Work, both, renamed

if TYPE_CHECKING:
    from duetime.worker.app import App
    from duetime.worker.task import Task

R = TypeVar("R")

CHAINED = b'"chained":'
FORWARD = "duetime.forward"
MARK_LIFE_MS = DAY_MS


class ChainedStep(Struct, frozen=True, omit_defaults=True):
    """A step that waits in the body of an earlier one. `body` is its payload without the steps that follow; `previous`
    is the argument that gets the result of the step before it.
    """

    queue: str
    id: str
    body: Raw
    previous: str = ""
    delay_ms: int = 0
    ttl_ms: int = 0
    tries: int = 0
    priority: Priority = Priority.NORMAL
    attributes: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


@dataclass(frozen=True)
class TaskStep(Generic[R]):
    """A call that was not made yet."""

    task: "Task[..., R]"
    outgoing: Outgoing
    previous: str = ""


def check_steps(whole: str, steps: Sequence[object]) -> None:
    for step in steps:
        if not isinstance(step, TaskStep):
            raise InvalidRequest(f"each step of a {whole} must be made by task.step(...), got {step!r:.60}")


class TaskChain(Generic[R]):
    """Pushed by `delay` or `delay_async`; each push is a chain of its own."""

    def __init__(self, steps: Sequence[TaskStep[Any]]) -> None:
        if not steps:
            raise InvalidRequest("chain must have at least one step")
        check_steps("chain", steps)
        if steps[0].previous:
            raise InvalidRequest(f"first step of a chain cannot use PREVIOUS: {steps[0].task.name}")
        self._steps = steps
        self.app: App = steps[0].task.app

    def _delay(self) -> Work[TaskHandle[R]]:
        """Push the first step; the handle is that of the last one."""
        jobs = self._prepare()
        [moved] = yield from self.app.pusher.push(jobs[:1])
        return self._handle(jobs, moved)

    delay, delay_async = both(_delay)

    def _prepare(self) -> list[Outgoing]:
        """The jobs, the first one with the others in its body. Every push has new ids."""
        fresh = [renamed(one.outgoing, self.app.make_id()) for one in self._steps]
        later = [chained(one.previous, out) for one, out in zip(self._steps[1:], fresh[1:], strict=True)]
        body = with_steps(fresh[0].job.body, later)
        if len(body) > MAX_BODY:
            raise InvalidRequest(f"steps of a chain must have at most {MAX_BODY} bytes, got {len(body)}")
        return [replace(fresh[0], job=msgspec.structs.replace(fresh[0].job, body=body)), *fresh[1:]]

    def _handle(self, jobs: Sequence[Outgoing], pushed: Moved) -> TaskHandle[R]:
        before: list[Place] = []
        for one, following in pairwise(jobs):
            before.append((one.queue, one.job.id))
            if one.queue != following.queue:
                before.append((one.queue, forward_id(following.job.id)))
        return TaskHandle(self._steps[-1].task, jobs[-1].queue, pushed, before, last_id=jobs[-1].job.id)


def chain(*steps: TaskStep[Any]) -> TaskChain[Any]:
    """Chain steps, which `task.step(...)` makes. As an argument, PREVIOUS represents the return value of the previous
    step.
    """
    return TaskChain(steps)


def with_steps(body: bytes, steps: Sequence[ChainedStep]) -> bytes:
    if not steps:
        return body
    return body[:-1] + b"," + CHAINED + msgspec.json.encode(steps) + b"}"


def next_job(queue: Queue, payload: Payload, result: bytes | None) -> NewJob | None:
    """The job that follows from a step that is done, for the queue of that step. Raises one of `NOT_JSON`."""
    steps = [] if payload.chained is UNSET else msgspec.json.decode(payload.chained, type=list[ChainedStep])
    if not steps:
        return None
    one, rest = steps[0], steps[1:]
    whole = with_steps(filled_body(one, result), rest)
    if one.queue == queue.name:
        return new_job(one, whole)
    forwarded = msgspec.json.encode(msgspec.structs.replace(one, body=Raw(whole), previous=""))
    forward = {"job": FORWARD, "displayName": FORWARD, "uuid": one.id, "data": {"step": Raw(forwarded)}, "maxTries": 0}
    return NewJob(forward_id(one.id), msgspec.json.encode(forward), tries=0)


def filled_body(step: ChainedStep, result: bytes | None) -> bytes:
    """The step's body with the result in the place of PREVIOUS. Raises one of `NOT_JSON`."""
    body = bytes(step.body)
    if not step.previous:
        return body
    fields: dict[str, Raw] = msgspec.json.decode(body, type=dict[str, Raw])
    data: dict[str, Raw] = msgspec.json.decode(fields.get("data", b"{}"), type=dict[str, Raw])
    data[step.previous] = Raw(result or b"null")
    fields["data"] = Raw(msgspec.json.encode(data))
    return msgspec.json.encode(fields)


def forward_id(step_id: str) -> str:
    return f"forward:{step_id}"


async def forward(app: "App", step: ChainedStep, result: bytes | None = None) -> None:
    """Push a step into its own queue; repeating it pushes nothing twice while the mark lives."""
    queue = check_queue(app.namespace, step.queue)
    mark = Mark(f"/chain/{step.id}", step.id.encode(), MARK_LIFE_MS)
    await app.send_async(push(queue, [new_job(step, filled_body(step, result))], IfExists.KEEP, mark))


def new_job(step: ChainedStep, body: bytes) -> NewJob:
    return NewJob(
        step.id,
        body,
        delay_ms=step.delay_ms,
        ttl_ms=step.ttl_ms,
        tries=step.tries,
        priority=step.priority,
        attributes=step.attributes,
    )


def chained(previous: str, outgoing: Outgoing) -> ChainedStep:
    job = outgoing.job
    return ChainedStep(
        outgoing.queue.name,
        job.id,
        Raw(job.body),
        previous,
        job.delay_ms,
        job.ttl_ms,
        job.tries,
        job.priority,
        job.attributes,
    )

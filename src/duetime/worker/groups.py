"""Groups: tasks that run side by side, and a callback that runs once when all of them are done.

    group(resize.step("a.png"), resize.step("b.png"), notify.step("ann")).then(publish.step(PREVIOUS)).delay()

Each member carries the callback in its body. The worker that finishes a member hands the store a join (`Finish.join`),
which counts in the same atomic step; the last one pushes the callback. Joins count within one queue, so members of
several queues join twice: those of a queue push a small job into the callback's queue, and these jobs join there. The
ids of a group begin alike, so that all of its jobs in a queue live on one member of a group of stores.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct

from duetime.client.calls import cancel, get, results
from duetime.model.errors import NOT_JSON, InvalidRequest
from duetime.model.job import DAY_MS, MAX_BODY, MAX_RESULT_MS, STEP_JOBS, Event, Job, Moved, State, chunks
from duetime.model.names import FOLLOWS, Queue, check_queue
from duetime.stores.finishes import Join
from duetime.wire.messages import MAX_RESULTS
from duetime.wire.payload import Payload
from duetime.worker.chains import FORWARD, ChainedStep, TaskStep, chained, check_steps, new_job
from duetime.worker.handle import Place, TaskHandle
from duetime.worker.pusher import Outgoing, Work, both, renamed
from duetime.worker.runs import Fail

if TYPE_CHECKING:
    from duetime.worker.app import App
    from duetime.worker.task import Task

R = TypeVar("R")

JOINING = b'"joining":'
RESULTS_MS = 7 * DAY_MS
"""How long the results of members are kept for a callback that uses them."""


class Joining(Struct, frozen=True, omit_defaults=True):
    """What the body of a member says: the join of its queue, and the job that follows from the last one. With
    `results_ms` the result of the member is kept that long.
    """

    name: str
    of: int
    then: ChainedStep
    results_ms: int = 0

    @property
    def join(self) -> Join:
        return Join(self.name, self.of, [new_job(self.then, bytes(self.then.body))], MAX_RESULT_MS)


class GroupMembers(Struct, frozen=True):
    """Members in their order, as runs of neighbours in one queue: (queue, how many)."""

    group: str
    runs: list[tuple[str, int]]

    def places(self, namespace: str) -> Iterator[tuple[Queue, list[str]]]:
        at = 0
        for queue, size in self.runs:
            yield check_queue(namespace, queue), [_id(self.group, number) for number in range(at, at + size)]
            at += size


class TaskGroup:
    """Pushed by `delay` or `delay_async`; each push is a group of its own."""

    def __init__(self, steps: Sequence[TaskStep[Any]]) -> None:
        if not steps:
            raise InvalidRequest("group must have at least one task")
        check_steps("group", steps)
        if found := next((step for step in steps if step.previous), None):
            raise InvalidRequest(f"task of a group cannot use PREVIOUS: {found.task.name}")
        self.steps = steps
        self.app: App = steps[0].task.app

    def then(self, callback: TaskStep[R]) -> "JoinedGroup[R]":
        """The group with a callback, which runs once when all tasks are done. PREVIOUS as its argument is replaced by
        the list of what they returned, in their order.
        """
        return JoinedGroup(self, callback)

    def _delay(self) -> Work[list[TaskHandle[Any]]]:
        """Push all of them, one round trip per 500 and queue; a handle each, in their order."""
        return self.push([one.outgoing for one in self.fresh(self.app.make_id())])

    delay, delay_async = both(_delay)

    def fresh(self, group: str) -> list[TaskStep[Any]]:
        """The steps with ids of this push."""
        return [
            replace(one, outgoing=renamed(one.outgoing, _id(group, number))) for number, one in enumerate(self.steps)
        ]

    def push(self, jobs: Sequence[Outgoing]) -> Work[list[TaskHandle[Any]]]:
        moved: dict[str, Moved] = {}
        for queue in dict.fromkeys(job.queue for job in jobs):
            pushed = yield from self.app.pusher.push([job for job in jobs if job.queue == queue])
            moved.update((one.id, one) for one in pushed)
        return [TaskHandle(step.task, job.queue, moved[job.job.id]) for step, job in zip(self.steps, jobs, strict=True)]


class JoinedGroup(Generic[R]):
    """A group with a callback. Pushed by `delay` or `delay_async`."""

    def __init__(self, members: TaskGroup, callback: TaskStep[R]) -> None:
        check_steps("group", [callback])
        self.app = members.app
        self._members = members
        self._callback = callback

    def _delay(self) -> "Work[GroupHandle[R]]":
        """Push the members, one round trip per 500 and queue. The handle is that of the callback.

        A program that dies meanwhile has pushed some of them, and the callback does not run.
        """
        group = self.app.make_id()
        return self._handle(group, (yield from self._members.push(self._prepare(group))))

    delay, delay_async = both(_delay)

    def _prepare(self, group: str) -> list[Outgoing]:
        """The members, each with the join of its queue in its body."""
        jobs = [one.outgoing for one in self._members.fresh(group)]
        runs = [(name, len(list(some))) for name, some in groupby(job.queue.name for job in jobs)]
        queues = list(dict.fromkeys(name for name, _ in runs))
        wants_results = bool(self._callback.previous)
        callback = chained(self._callback.previous, renamed(self._callback.outgoing, _id(group, "then")))
        members = GroupMembers(group, runs) if wants_results else None

        def last(queue: str) -> ChainedStep:
            """The callback as a job of this queue, or a job that takes it to its own queue."""
            if queue == callback.queue and members is None:
                return callback
            return _carrier(queue, _id(group, "forward"), step=callback, members=members)

        joins: dict[str, Joining] = {}
        for number, queue in enumerate(queues):
            then = last(queue)
            if len(queues) > 1:
                parts = Joining(_id(group, "parts"), len(queues), last(callback.queue))
                part = _carrier(callback.queue, _id(group, f"part-{number}"), joining=parts)
                then = _carrier(queue, _id(group, f"forward-{number}"), step=part)
            size = sum(count for name, count in runs if name == queue)
            joins[queue] = Joining(_id(group, "join"), size, then, RESULTS_MS if wants_results else 0)
        bodies = {queue: msgspec.json.encode(join) for queue, join in joins.items()}
        return [_joined(job, bodies[job.queue.name]) for job in jobs]

    def _handle(self, group: str, members: list[TaskHandle[Any]]) -> "GroupHandle[R]":
        own = self._callback.outgoing.queue
        queues = list(dict.fromkeys(one.place[0] for one in members))
        between: list[Place] = []
        if len(queues) > 1:
            between += [(queue, _id(group, f"forward-{number}")) for number, queue in enumerate(queues)]
            between += [(own, _id(group, f"part-{number}")) for number in range(len(queues))]
        between.append((own if len(queues) > 1 else queues[0], _id(group, "forward")))
        born, due_at = min(one.born for one in members), max(one.due_at for one in members)
        moved = Moved(Event.ACCEPTED, _id(group, "then"), born, due_at=due_at)
        return GroupHandle(self._callback.task, own, moved, between, members)


class GroupHandle(TaskHandle[R]):
    """The handle of a group's callback, and of its `members`. A member that is a dead letter holds the callback: then
    `status()` is dead, and `get()` raises its TaskFailed. Brought back and done, it lets the callback run.
    """

    __slots__ = ("_first", "members")

    def __init__(
        self,
        task: "Task[..., R]",
        queue: Queue,
        moved: Moved,
        between: Sequence[Place],
        members: Sequence[TaskHandle[Any]],
    ) -> None:
        super().__init__(task, queue, moved, between)
        self.members = members
        self._first = 0

    def _find(self) -> Work[Job | None]:
        """A member that is there, a dead one first; else the callback, or the job that brings it. Members that are gone
        are not asked for again, and those far behind one that is there are not asked for yet.
        """
        while self._first < len(self.members):
            some = [one.place for one in self.members[self._first : self._first + STEP_JOBS]]
            queue, neighbours = next(groupby(some, key=lambda place: place[0]))
            found = yield get(queue, [job_id for _, job_id in neighbours])
            there = [job for job in found if job is not None]
            if there:
                return next((job for job in there if job.state is State.DEAD), there[0])
            self._first += len(found)
        return (yield from super()._find())

    def cancel_work(self) -> Work[bool]:
        """Every member, and the callback if it is there."""
        was_there = False
        for queue, some in groupby((one.place for one in self.members), key=lambda place: place[0]):
            for ids in chunks([job_id for _, job_id in some]):
                moved = yield cancel(queue, ids)
                was_there = was_there or any(isinstance(one, Moved) for one in moved)
        return (yield from super().cancel_work()) or was_there

    cancel, cancel_async = both(cancel_work)


def group(*steps: TaskStep[Any]) -> TaskGroup:
    """Group steps, which `task.step(...)` makes, to run at the same time."""
    return TaskGroup(steps)


def joining_of(payload: Payload) -> Joining | None:
    """The join that a job takes part in. Raises one of `NOT_JSON`."""
    return None if payload.joining is UNSET else msgspec.json.decode(payload.joining, type=Joining)


def wants_result(payload: Payload) -> bool:
    """Returns whether a next step or the callback of a group may want the result of the job."""
    if payload.chained is not UNSET:
        return True
    try:
        joining = joining_of(payload)
    except NOT_JSON:
        return False
    return joining is not None and joining.results_ms > 0


async def gather(app: "App", members: GroupMembers) -> bytes:
    """The results of all members, in their order, as a JSON list."""
    found: list[Raw] = []
    for queue, ids in members.places(app.namespace):
        for some in chunks(ids, MAX_RESULTS):
            for job_id, kept in zip(some, await app.send_async(results(queue, some, 0)), strict=True):
                if kept is None:
                    raise Fail(f"result of {queue}/{job_id} is no longer kept, and the callback needs it")
                found.append(Raw(kept.result))
    return msgspec.json.encode(found)


def _id(group: str, what: object) -> str:
    return f"{group}{FOLLOWS}{what}"


def _carrier(
    queue: str,
    job_id: str,
    *,
    step: ChainedStep | None = None,
    members: GroupMembers | None = None,
    joining: Joining | None = None,
) -> ChainedStep:
    """A job of Duetime's own in this queue: it pushes a step into another one, or does nothing but join there."""
    body: dict[str, Any] = {"job": FORWARD, "displayName": FORWARD, "uuid": job_id, "maxTries": 0}
    body["data"] = {"step": step, "members": members}
    if joining is not None:
        body["joining"] = joining
    return ChainedStep(queue, job_id, Raw(msgspec.json.encode(body)))


def _joined(outgoing: Outgoing, joining: bytes) -> Outgoing:
    body = outgoing.job.body[:-1] + b"," + JOINING + joining + b"}"
    if len(body) > MAX_BODY:
        raise InvalidRequest(f"{outgoing.name} and its callback must have at most {MAX_BODY} bytes, got {len(body)}")
    return replace(outgoing, job=msgspec.structs.replace(outgoing.job, body=body))

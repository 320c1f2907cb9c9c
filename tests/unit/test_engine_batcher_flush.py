"""A batch whose answers wait for a promise: the next call does not, and nobody is forgotten."""

import asyncio
from collections.abc import Sequence

import pytest

from duetime.engine.batcher import ReplyScheduler
from duetime.model.errors import DuetimeError, JobExists, StoreUnavailable
from duetime.model.names import Queue
from tests.simulation.virtual_loop import VirtualLoop, run_virtual, virtual_time
from tests.unit.text_lane import TextLane

QUEUE = Queue("shop", "mail")


class StoreWithPromises:
    """Answers in capitals at once; its promises are kept or broken by hand, in order."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.promises: list[asyncio.Future[None]] = []
        self.orphans: list[str] = []

    async def call(self, queue: Queue, requests: Sequence[str]) -> Sequence[str | DuetimeError]:
        self.calls.append(list(requests))
        await asyncio.sleep(0.01)
        return [JobExists(request) if request.startswith("bad") else request.upper() for request in requests]

    def promise(self) -> asyncio.Future[None]:
        self.promises.append(asyncio.get_running_loop().create_future())
        return self.promises[-1]

    def batch(self, group: asyncio.TaskGroup) -> TextLane:
        return TextLane(
            self.call,
            ReplyScheduler(group.create_task),
            max_weight=10,
            orphan=self.orphans.append,
            flushed=self.promise,
        )


@virtual_time
async def test_calls_go_on_while_answers_wait() -> None:
    store = StoreWithPromises()
    async with asyncio.TaskGroup() as group:
        batch = store.batch(group)
        tasks: list[asyncio.Task[str]] = []
        for text in "abc":
            tasks.append(group.create_task(batch.run(QUEUE, text)))
            await asyncio.sleep(0.1)
        assert store.calls == [["a"], ["b"], ["c"]]
        assert batch._inboxes == {}
        assert not any(task.done() for task in tasks)
        for promise, task in zip(store.promises, tasks, strict=True):
            promise.set_result(None)
            assert await task == task.result()
        assert [task.result() for task in tasks] == ["A", "B", "C"]


@virtual_time
async def test_a_failed_flush_fails_each_successful_answer() -> None:
    store = StoreWithPromises()
    async with asyncio.TaskGroup() as group:
        batch = store.batch(group)
        tasks = [asyncio.ensure_future(batch.run(QUEUE, text)) for text in ("a", "bad", "c")]
        await asyncio.sleep(0.1)
        store.promises[0].set_exception(StoreUnavailable("no disk", unknown=True))
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert answers == [StoreUnavailable("no disk"), JobExists("bad"), StoreUnavailable("no disk")]
        assert answers[0] is not answers[2]
        assert all(isinstance(answers[at], StoreUnavailable) and answers[at].outcome_unknown for at in (0, 2))


@pytest.mark.parametrize("broken", [False, True])
def test_an_answer_is_delivered_orphaned_or_failed_whenever_its_caller_is_cancelled(broken: bool) -> None:
    async def main(steps: int) -> bool:
        store = StoreWithPromises()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        async with asyncio.TaskGroup() as group:
            batch = store.batch(group)
            task = asyncio.ensure_future(batch.run(QUEUE, "a"))
            loop.after_steps(steps, task.cancel)
            await asyncio.sleep(0.02)
            for promise in store.promises:
                if broken:
                    promise.set_exception(StoreUnavailable("no disk"))
                else:
                    promise.set_result(None)
            await asyncio.wait([task])
            await asyncio.sleep(0.02)
        taken = [] if task.cancelled() or task.exception() else [task.result()]
        assert taken + store.orphans == (["A"] if store.calls and not broken else [])
        return task.cancelled()

    assert {run_virtual(main(steps)) for steps in range(1, 25)} == {True, False}

"""Group commit, what test_engine_shared_calls.py does not see: bounds of a call, and runners that are stopped."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import chain
from typing import Any

import pytest

from duetime.engine.batcher import Lane, ReplyScheduler
from duetime.engine.requests import Request
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.names import Queue
from tests.simulation.virtual_loop import VirtualLoop, run_virtual, virtual_time

QUEUE = Queue("shop", "mail")
CALL_S = 1.0


class Text(Request[str], frozen=True):
    text: str
    size: int

    def weight(self) -> int:
        return self.size


class TextLane(Lane[Text, str]):
    """Of the batcher: its requests are texts."""

    def __init__(
        self,
        call: Callable[[Queue, Sequence[str]], Awaitable[Sequence[str | DuetimeError]]],
        replies: ReplyScheduler,
        *,
        max_weight: int,
        orphan: Callable[[str], None] = lambda text: None,
        flushed: Callable[[], asyncio.Future[None]] | None = None,
    ) -> None:
        super().__init__(replies, max_weight=max_weight, flushed=flushed)
        self._call = call
        self.orphan = orphan

    async def call(self, queue: Queue, requests: Sequence[Text]) -> Sequence[str | DuetimeError]:
        return await self._call(queue, [request.text for request in requests])

    async def run(self, queue: Queue, text: str, weight: int = 1) -> str:
        return await super().run(Text(queue, text, weight))


class CountingStore:
    """Answers each request with itself in capitals, one second later, and remembers the calls."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.error: Exception | None = None
        self.orphans: list[str] = []

    async def call(self, queue: Queue, requests: Sequence[str]) -> Sequence[str | DuetimeError]:
        self.calls.append(list(requests))
        await asyncio.sleep(CALL_S)
        if self.error:
            raise self.error
        return [request.upper() for request in requests]

    def batch(self, group: asyncio.TaskGroup, *, max_weight: int = 10) -> TextLane:
        return TextLane(self.call, ReplyScheduler(group.create_task), max_weight=max_weight, orphan=self.orphans.append)


async def settle() -> None:
    """Let everything that can run now run."""
    await asyncio.sleep(0.001)


@virtual_time
async def test_a_failed_call_reaches_exactly_its_callers() -> None:
    store = CountingStore()
    async with asyncio.TaskGroup() as group:
        batch = store.batch(group)
        store.error = StoreUnavailable("gone", unknown=True)
        failed = [asyncio.ensure_future(batch.run(QUEUE, text)) for text in "ab"]
        await settle()
        later = asyncio.ensure_future(batch.run(QUEUE, "c"))
        await asyncio.wait(failed)
        store.error = None

        errors = [task.exception() for task in failed]
        assert errors == [StoreUnavailable("gone")] * 2
        assert errors[0] is not errors[1], "a shared one would gather the tracebacks of all who raise it"
        assert all(isinstance(error, StoreUnavailable) and error.outcome_unknown for error in errors)
        assert await later == "C"


@virtual_time
async def test_a_store_that_answers_too_little_fails_its_callers_and_leaves_none_hanging() -> None:
    async def call(queue: Queue, requests: Sequence[str]) -> Sequence[str]:
        return []

    async with asyncio.TaskGroup() as group:
        batch = TextLane(call, ReplyScheduler(group.create_task), max_weight=10)
        with pytest.raises(ValueError, match="shorter"):
            await batch.run(QUEUE, "a")


@pytest.mark.parametrize(
    ("weights", "calls"),
    [
        ([1] * 25, [10, 10, 5]),
        ([4, 4, 4], [2, 1]),
        ([10, 1], [1, 1]),
        ([11, 11, 1], [1, 1, 1]),
        ([1, 50, 1, 1], [1, 1, 2]),
    ],
    ids=str,
)
@virtual_time
async def test_weight_bounds_a_call_but_one_request_always_fits(weights: list[int], calls: list[int]) -> None:
    store = CountingStore()
    async with asyncio.TaskGroup() as group:
        batch = store.batch(group, max_weight=10)
        texts = [f"r{number}" for number in range(len(weights))]

        await asyncio.gather(*(batch.run(QUEUE, *one) for one in zip(texts, weights, strict=True)))
        assert [len(call) for call in store.calls] == calls
        assert [*chain.from_iterable(store.calls)] == texts, "first come, first served"


@virtual_time
async def test_a_caller_that_is_cancelled_before_the_call_is_not_sent_and_weighs_nothing() -> None:
    store = CountingStore()
    async with asyncio.TaskGroup() as group:
        batch = store.batch(group, max_weight=2)
        tasks = [asyncio.ensure_future(batch.run(QUEUE, text)) for text in "abcdefg"]
        await settle()
        for task in tasks[4:6]:
            task.cancel()
        await asyncio.wait(tasks)

        assert store.calls == [["a", "b"], ["c", "d"], ["g"]]
        assert batch._inboxes == {}
        assert store.orphans == []


def cancelled_runner(after_s: float | None) -> Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]:
    """Spawns runners that are cancelled: before their first step, or after a while."""

    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        if after_s is None:
            task.cancel()
        else:
            asyncio.get_running_loop().call_later(after_s, task.cancel)
        return task

    return spawn


@pytest.mark.parametrize("after_s", [None, CALL_S / 2])
@virtual_time
async def test_a_runner_that_is_cancelled_leaves_no_caller_hanging(after_s: float | None) -> None:
    store = CountingStore()
    batch = TextLane(store.call, ReplyScheduler(cancelled_runner(after_s)), max_weight=1)
    tasks = [asyncio.ensure_future(batch.run(QUEUE, text)) for text in "abc"]
    async with asyncio.timeout(CALL_S):
        await asyncio.wait(tasks)

    # Two calls were under way, the third caller was in none.
    errors = [task.exception() for task in tasks]
    assert all(isinstance(error, StoreUnavailable) for error in errors)
    assert [error.outcome_unknown for error in errors] == [after_s is not None, after_s is not None, False]


@virtual_time
async def test_a_runner_that_breaks_leaves_no_caller_hanging() -> None:
    """A bug behind the call ends the engine; those who still wait must not wait for ever."""
    store = CountingStore()
    runners: list[asyncio.Task[None]] = []

    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        runners.append(asyncio.create_task(work))
        return runners[-1]

    def bug(answer: str) -> None:
        raise ZeroDivisionError

    batch = TextLane(store.call, ReplyScheduler(spawn), max_weight=10, orphan=bug)
    gone = asyncio.ensure_future(batch.run(QUEUE, "a"))
    await settle()
    behind = asyncio.ensure_future(batch.run(QUEUE, "b"))
    await settle()
    gone.cancel()
    async with asyncio.timeout(2 * CALL_S):
        with pytest.raises(StoreUnavailable):
            await behind
    assert isinstance(runners[0].exception(), ZeroDivisionError)


@virtual_time
async def test_a_second_call_goes_out_only_when_it_is_full() -> None:
    store = CountingStore()
    async with asyncio.TaskGroup() as group:
        batch = store.batch(group, max_weight=3)
        first = asyncio.ensure_future(batch.run(QUEUE, "a"))
        await settle()
        more = [asyncio.ensure_future(batch.run(QUEUE, text)) for text in "bc"]
        await settle()
        assert store.calls == [["a"]]
        more += [asyncio.ensure_future(batch.run(QUEUE, text)) for text in "def"]
        await settle()
        assert store.calls == [["a"], ["b", "c", "d"]]
        assert await asyncio.gather(first, *more) == ["A", "B", "C", "D", "E", "F"]
        assert store.calls == [["a"], ["b", "c", "d"], ["e", "f"]]


class StoreWithPromises:
    """Answers in capitals after a moment. Answers wait for promises, which are kept or broken by hand."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.promises: list[asyncio.Future[None]] = []
        self.orphans: list[str] = []

    async def call(self, queue: Queue, requests: Sequence[str]) -> Sequence[str | DuetimeError]:
        self.calls.append(list(requests))
        await asyncio.sleep(0.01)
        return [request.upper() for request in requests]

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

"""A client that was used before a fork, in the parent and in the child: each talks to the store on its own."""

import asyncio
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import duetime

PUSHES = 20
PATIENCE_S = 60

Work = Callable[[], object]


def in_a_fork(work: Work) -> Callable[[], Any]:
    """Begin the work in a forked process; what is returned waits for its answer."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()

    def main(answers: Connection) -> None:
        try:
            answers.send(work())
        except BaseException as error:
            answers.send(error)

    child = context.Process(target=main, args=[theirs])
    child.start()

    def wait() -> Any:
        try:
            assert mine.poll(PATIENCE_S), "the child does not answer"
            return mine.recv()
        finally:
            child.kill()
            child.join()

    return wait


def test_parent_and_child_push_at_the_same_time_and_nothing_is_lost(url: str) -> None:
    def push(who: str) -> int:
        for number in range(PUSHES):
            queue.push(f"{who} {number}")
        return queue.counts().total

    with duetime.connect(url) as client:
        queue = client.queue("forked")
        queue.push("before")
        first, second = in_a_fork(lambda: push("first")), in_a_fork(lambda: push("second"))
        push("parent")
        seen = [first(), second()]
        assert [answer for answer in seen if not isinstance(answer, int)] == []
        assert queue.counts().total == 1 + 3 * PUSHES


def test_jobs_of_a_child_stay_after_its_parent_has_closed(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    go, gone = multiprocessing.Pipe(duplex=False)

    def push_late() -> int:
        queue.push("child, while the parent is there")
        assert go.poll(PATIENCE_S)
        for number in range(PUSHES):
            queue.push(f"child {number}")
        return queue.counts().total

    client = duetime.connect(url)
    queue = client.queue("forked")
    queue.push("parent")
    answer = in_a_fork(push_late)
    with duetime.connect(url) as other:
        while other.queue("forked").counts().total < 2:
            pass
    client.close()
    gone.send("closed")
    assert answer() == PUSHES + 2
    with duetime.connect(url) as client:
        assert client.queue("forked").counts().total == PUSHES + 2


def test_an_async_client_in_a_child(url: str) -> None:
    async def main() -> int:
        async with duetime.connect_async(url) as client:
            queue = client.queue("forked")
            await queue.push("parent")

            async def push() -> str:
                return (await queue.push("child")).id

            wait = in_a_fork(lambda: run_apart(push()))
            assert isinstance(await asyncio.to_thread(wait), str)
            return (await queue.counts()).total

    assert asyncio.run(main()) == 2


def run_apart(work: Any) -> Any:
    """Run a coroutine in a child that was forked out of a running loop."""
    asyncio.events._set_running_loop(None)
    return asyncio.run(work)


def test_a_store_in_memory_is_refused_in_a_child() -> None:
    with duetime.connect("memory:") as client:
        client.queue("forked").push("parent")
        answer = in_a_fork(lambda: client.queue("forked").push("child"))()
        assert isinstance(answer, duetime.InvalidSettings)
        assert "memory:" in answer.message

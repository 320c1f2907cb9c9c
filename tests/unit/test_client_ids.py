"""Ids that one client makes in several threads and after a fork: an id that comes twice would be a job that is lost."""

import os
import sys
import threading
from collections.abc import Iterator

import pytest

import duetime
from duetime.model.clock import ManualClock
from duetime.model.ids import IdMaker

THREADS = 8
IDS = 5_000


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that are switched as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-7)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_threads_of_one_client_never_make_the_same_id() -> None:
    with duetime.connect("memory:") as client:
        made: list[list[str]] = [[] for _ in range(THREADS)]
        start = threading.Barrier(THREADS)

        def make(mine: list[str]) -> None:
            start.wait()
            mine += [client.make_id() for _ in range(IDS)]

        threads = [threading.Thread(target=make, args=[mine]) for mine in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({one for mine in made for one in mine}) == THREADS * IDS
    assert all(mine == sorted(mine) for mine in made)


def test_a_forked_process_does_not_make_its_parents_next_id() -> None:
    maker = IdMaker(ManualClock())
    before = maker.make()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, maker.make().encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        theirs = pipe.read()
    assert theirs != maker.make()
    assert theirs[:10] == before[:10]

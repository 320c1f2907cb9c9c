"""Connections by name."""

import fcntl
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

import duetime
from duetime.client.calls import mark_for_repeats
from duetime.client.connections import Connections
from duetime.client.sync_http import IDLE_S, IdleConnection
from duetime.model.clock import ManualClock
from duetime.model.ids import IdMaker
from duetime.model.job import NewJob


@pytest.fixture
def connections() -> Iterator[Connections]:
    made = Connections()
    yield made
    made.close()


def test_a_connection_is_opened_once_for_all_threads(connections: Connections, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'jobs.db'}"
    connections.configure({"default": url, "shop": {"url": url, "namespace": "shop"}})
    found: list[duetime.Client] = []
    threads = [threading.Thread(target=lambda: found.append(connections["shop"])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(client) for client in found}) == 1
    found[0].queue("mail").push("a")
    assert connections.connection().queue("mail").counts().total == 0
    assert connections["shop"].queue("mail").counts().ready == 1
    assert connections.names == ["default", "shop"]


def test_a_changed_description_closes_its_client_and_no_other(connections: Connections, tmp_path: Path) -> None:
    connections.configure({"a": f"sqlite:{tmp_path / 'a.db'}", "b": f"sqlite:{tmp_path / 'b.db'}"}, default="b")
    a, b = connections["a"], connections.connection()
    a.queue("mail").push("x")
    connections.configure({"a": f"sqlite:{tmp_path / 'c.db'}", "b": f"sqlite:{tmp_path / 'b.db'}"}, default="b")
    with pytest.raises(duetime.ClientClosed):
        a.queue("mail").push("x")
    assert connections.connection() is b
    assert connections["a"].queue("mail").counts().total == 0


async def test_an_async_client_has_the_same_options(connections: Connections, tmp_path: Path) -> None:
    connections.configure({"shop": {"url": f"sqlite:{tmp_path / 'jobs.db'}", "namespace": "shop"}}, default="shop")
    async with connections.connect_async() as client:
        await client.queue("mail").push("a")
        assert client.namespace == "shop"


@pytest.mark.parametrize("options", [{}, {"namespace": "shop"}, {"url": "memory:", "colour": "red"}])
def test_a_wrong_description_is_refused(connections: Connections, options: object) -> None:
    with pytest.raises(duetime.InvalidSettings, match="connection 'x' must have a url"):
        connections.configure({"x": options})  # type: ignore[dict-item]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(duetime.InvalidSettings, match=r"must be one of \[\], got 'x'"):
        duetime.connections["x"]


# --- ids that one client makes in several threads and after a fork: an id that comes twice would be a job that is lost


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


# --- the public names of the SDK


def test_everything_public_is_there_and_documented() -> None:
    for name in duetime.__all__:
        thing = getattr(duetime, name)
        assert name == "__version__" or thing.__doc__, name


def test_a_name_is_not_its_module_whatever_was_used_before() -> None:
    used = "import duetime; duetime.App; print(callable(duetime.push_in))"
    assert subprocess.run([sys.executable, "-c", used], capture_output=True, text=True, check=True).stdout == "True\n"


def test_import_takes_in_nothing_that_is_not_used() -> None:
    """Each name is imported at its first use; all of them are there."""
    used = "import sys, duetime; print(len([name for name in sys.modules if name.startswith('duetime.')]))"
    assert subprocess.run([sys.executable, "-c", used], capture_output=True, text=True, check=True).stdout == "0\n"
    heavy = "print([name for name in ('httpx', 'rich') if name in sys.modules])"
    embedded = f"import sys, duetime; duetime.connect('memory:').close(); {heavy}"
    assert subprocess.run([sys.executable, "-c", embedded], capture_output=True, text=True, check=True).stdout == "[]\n"
    assert [name for name in duetime.__all__ if not hasattr(duetime, name)] == []
    with pytest.raises(AttributeError, match="dealy"):
        duetime.dealy  # noqa: B018


# --- the mark that a push over HTTP carries: new each time, and in the order of time


def name_at(ms: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(time, "time_ns", lambda: ms * 1_000_000)
    mark = mark_for_repeats([NewJob("a", b"")])
    assert mark is not None
    return mark.name


def test_marks_of_one_moment_differ_and_sort_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [name_at(ms, monkeypatch) for ms in (1_794_890_000_000, 1_794_890_000_001, 1_794_999_999_999)]
    assert made == sorted(made)
    twins = {name_at(1_794_890_000_000, monkeypatch) for _ in range(100)}
    assert len(twins) == 100
    assert max(twins) < made[1]


# --- the blocking HTTP client's connections that wait for their next call


BEYOND_SELECT = 1100


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection whose number is beyond what select() takes, and its other end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * BEYOND_SELECT)), hard))
    low, other = socket.socketpair()
    with low, other, socket.socket(fileno=fcntl.fcntl(low.fileno(), fcntl.F_DUPFD, BEYOND_SELECT)) as high:
        low.close()
        yield high, other
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def idle(sock: socket.socket, *, for_s: float = 0) -> IdleConnection:
    connection = HTTPConnection("localhost")
    connection.sock = sock
    return IdleConnection(connection, time.monotonic() - for_s)


def test_a_connection_is_used_again_whatever_its_number(ends: tuple[socket.socket, socket.socket]) -> None:
    assert idle(ends[0]).is_usable()


def test_a_connection_that_the_server_closed_is_not_used_again(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[1].close()
    assert not idle(ends[0]).is_usable()


def test_an_old_connection_is_not_used_again(ends: tuple[socket.socket, socket.socket]) -> None:
    assert not idle(ends[0], for_s=IDLE_S).is_usable()

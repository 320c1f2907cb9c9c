"""Connections by name."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import duetime
from duetime.client.connections import Connections


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

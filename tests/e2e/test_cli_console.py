"""`duetime console` as a real process, on a store that other programs use."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from duetime import connect
from duetime.client.store_link import on_store
from duetime.journal.registration import Journaling, find_journaling, registered
from duetime.stores.base import Store
from tests.e2e.shell import Shell
from tests.plugins.passwords import hashed
from tests.plugins.processes import guard, release
from tests.plugins.redis_server import RedisServer
from tests.plugins.served import COMMAND, StartServer

Opened = tuple[dict[str, str], "subprocess.Popen[str]"]
OpenConsole = Callable[..., Opened]


@pytest.fixture
def open_console(tmp_path: Path) -> Iterator[OpenConsole]:
    """Starts the command; returns the document that it prints, and the process."""
    started: list[subprocess.Popen[str]] = []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}

    def start(*arguments: str, **more: str) -> Opened:
        process = subprocess.Popen(
            [*COMMAND, "console", "--json", "--port", "0", *arguments],
            cwd=tmp_path,
            env=environment | {"XDG_STATE_HOME": str(tmp_path / "state")} | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        guard(process.pid)
        started.append(process)
        assert process.stdout is not None
        return json.loads(process.stdout.readline()), process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
        release(process.pid)


@pytest.fixture(params=["sqlite", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("redis_url") if request.param == "redis" else f"sqlite:{tmp_path}/jobs.db"


def journal_facts(url: str) -> tuple[Journaling | None, list[bool]]:
    """The pool's record of its journal, and for each node if it has a journal."""

    async def read(store: Store) -> tuple[Journaling | None, list[bool]]:
        return await find_journaling(store), [node.journal for node in (await registered(store)).values()]

    return on_store(url, read)


def act(console: str, path: str, **fields: str) -> httpx.Response:
    root = urlsplit(console)
    return httpx.post(f"{console}do/{path}", data=fields, headers={"origin": f"{root.scheme}://{root.netloc}"})


def test_it_shows_a_store_and_is_no_server_of_it(open_console: OpenConsole, store_url: str) -> None:
    with connect(store_url) as client:
        client.queue("mail").push("hello", id="first", delay="1h")
    opened, process = open_console("--url", store_url)
    assert opened["journal"] is None
    assert opened["url"].startswith("http://127.0.0.1:")
    place = {"pool": "default", "namespace": "default", "queue": "mail"}
    page = httpx.get(f"{opened['url']}jobs", params=place | {"state": "delayed"})
    assert (page.status_code, "first" in page.text) == (200, True)
    root = opened["url"].removesuffix("/console/")
    for path in ("/v1/queues/default/mail", "/api/mail/size", "/metrics", "/token/default"):
        assert httpx.get(root + path).status_code == 404
    assert act(opened["url"], "pause", **place).status_code == 303
    with connect(store_url) as client:
        assert client.queue("mail").status().rules.paused
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert journal_facts(store_url) == (None, [])


def test_its_actions_are_journaled_where_the_pool_journals(
    open_console: OpenConsole, start_server: StartServer, tmp_path: Path
) -> None:
    url = f"sqlite:{tmp_path}/jobs.db"
    server = start_server("--store", url, dev=True)
    with connect(server.api, namespace="default", token="any") as client:
        client.queue("mail").push("hello", id="first", delay="1h")
    opened, process = open_console("--url", url)
    assert opened["journal"] == str(tmp_path / "journal")
    place = {"pool": "default", "namespace": "default", "queue": "mail"}
    assert act(opened["url"], "run-now", **place, id="first").status_code == 303
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    history = Shell(url, tmp_path).spawn("history", "first", "--queue", "mail", "--json")
    assert [one["event"] for one in history.documents][-1] == "rescheduled", history
    found, nodes = journal_facts(url)
    assert found is not None
    assert nodes == [True, True]


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("http://127.0.0.1:7777", 2, "`duetime console` must have the URL of a store, got http://127.0.0.1:7777"),
        ("memory:", 2, "`duetime console` cannot show memory:"),
        ("sqlite:missing.db", 2, "sqlite:missing.db has no tables of this version of Duetime"),
        ("oracle:x", 2, "store URL must start with one of"),
    ],
)
def test_a_url_that_it_cannot_open_is_an_error(tmp_path: Path, url: str, code: int, message: str) -> None:
    ran = Shell("", tmp_path).spawn("console", "--url", url)
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "missing.db").exists()


def test_a_store_that_is_down_is_an_error(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    ran = Shell("", tmp_path).spawn("console", "--url", server.url)
    assert ran.code == 3
    assert str(server.port) in ran.err
    assert ran.err.count("\n") == 1


def test_a_taken_port_is_named(open_console: OpenConsole, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/jobs.db"
    with connect(url) as client:
        client.queue("mail").push("hello")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = Shell("", tmp_path).spawn("console", "--url", url, "--port", port)
    assert ran.code == 2
    assert f"cannot listen on 127.0.0.1:{port} (already in use): change --admin-port" in ran.err


def test_accounts_of_the_settings_file_must_log_in(open_console: OpenConsole, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/jobs.db"
    with connect(url) as client:
        client.queue("mail").push("hello")
    (tmp_path / "duetime.toml").write_text(f'store = "{url}"\n[accounts]\nboss = "{hashed("secret")}"\n')
    opened, _ = open_console()
    assert httpx.get(f"{opened['url']}queues").headers["location"].startswith("/console/login")

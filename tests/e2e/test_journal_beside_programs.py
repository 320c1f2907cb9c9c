"""A server with a journal and programs with engines of their own on one Redis: who journals, and who is named."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Serve
from tests.e2e.shell import Shell
from tests.plugins.processes import guard, release

pytestmark = pytest.mark.store_kind("redis")


PROGRAM = """
import json, sys
import duetime

client = duetime.connect(sys.argv[1], journal=sys.argv[2] or None)
queue = client.queue("mail")
for line in sys.stdin:
    verb, job_id = json.loads(line)
    try:
        if verb == "push":
            queue.push(job_id, id=job_id)
            done = job_id
        else:
            delivery = queue.pop(wait="60s")
            client.ack(delivery)
            done = delivery.lease.id
        print(json.dumps(done), flush=True)
    except duetime.DuetimeError as error:
        print(json.dumps({"refused": error.message}), flush=True)
client.close()
"""


class Program:
    """A program of a user's, in a process of its own."""

    def __init__(self, shell: Shell, journal: str = "", **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, shell.url, journal],
            env=shell.environment(**environment),
            cwd=shell.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        guard(self._process.pid)

    def does(self, verb: str, job_id: str = "") -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([verb, job_id]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.communicate(timeout=90)
            release(self._process.pid)


@pytest.fixture
def shell(redis_url: str, tmp_path: Path) -> Shell:
    return Shell(redis_url, tmp_path)


@pytest.fixture
def start(shell: Shell) -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def started(*arguments: str, **environment: str) -> Program:
        programs.append(Program(shell, *arguments, XDG_STATE_HOME=str(shell.folder / "state"), **environment))
        return programs[-1]

    yield started
    for one in programs:
        one.end()


def events(shell: Shell, job_id: str) -> list[str]:
    ran = shell.run("history", job_id, "--journal", str(shell.folder / "journal"), "--json")
    return [entry["event"] for entry in ran.documents]


def test_a_program_that_runs_already_goes_on_without_the_journal_and_is_named(
    shell: Shell, serve: Serve, start: Callable[..., Program]
) -> None:
    running = start()
    assert running.does("push", "before") == "before"
    assert running.does("pop") == "before"
    api = serve("--dev", "--journal", str(shell.folder / "journal")).api
    jobs = f"{api}/v1/queues/default/mail/jobs"
    assert httpx.post(jobs, json={"id": "served", "body": "x"}).status_code < 300
    assert running.does("pop") == "served"
    assert running.does("push", "after") == "after"
    later = start()
    assert later.does("pop") == "after"
    nodes = shell.json("journal", "list")
    assert sorted(node["state"] for node in nodes) == ["no journal", "writing", "writing"]
    running.end()
    later.end()
    assert events(shell, "before") == []
    assert events(shell, "served") == ["accepted"]
    assert events(shell, "after") == ["delivered", "acked"]
    nodes = shell.json("journal", "list")
    assert len(nodes) == 2, "the program without a journal has signed off"
    assert {node["folder"] for node in nodes} == {str(shell.folder / "journal")}


def test_a_program_whose_journal_is_off_works_on_a_pool_that_journals(
    shell: Shell, serve: Serve, start: Callable[..., Program]
) -> None:
    serve("--dev", "--journal", str(shell.folder / "journal"))
    without = start("off")
    assert without.does("push", "a") == "a"
    assert [node["state"] for node in shell.json("journal", "list")] == ["writing", "no journal"]
    assert without.does("pop") == "a"
    assert events(shell, "a") == []


def test_journal_list_names_the_folders_of_programs_elsewhere(
    shell: Shell, serve: Serve, start: Callable[..., Program]
) -> None:
    serve("--dev", "--journal", str(shell.folder / "journal"))
    apart = start(str(shell.folder / "apart"))
    assert apart.does("push", "a") == "a"
    folders = {node["folder"]: node["state"] for node in shell.json("journal", "list")}
    assert folders == {str(shell.folder / "journal"): "writing", str(shell.folder / "apart"): "writing"}

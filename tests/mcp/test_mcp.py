"""`duetime mcp` as agents use it: the SDK's own client, in memory, over standard input and output, and over HTTP."""

import json
import re
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client

import duetime
from duetime.mcp.server import READERS, WRITERS, McpOptions, make_server
from tests.e2e.shell import Shell, program
from tests.plugins.processes import guard, release
from tests.plugins.serving import serving
from tests.plugins.until import until

ROOT = Path(__file__).parents[2]
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
READ_ONLY = set(READERS) - {"doctor", "job_history"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path / 'jobs.db'}?synchronous=OFF"


@asynccontextmanager
async def agent(url: str, **options: Any) -> AsyncIterator[Client]:
    async with Client(make_server(McpOptions(url, "default", **options))) as client:
        yield client


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool(name, arguments)
    assert not answer.is_error, answer.content
    assert answer.structured_content is not None
    return answer.structured_content


async def refused(client: Client, name: str, **arguments: Any) -> str:
    answer = await client.call_tool(name, arguments)
    assert answer.is_error
    [content] = answer.content
    return content.text.removeprefix(f"Error executing tool {name}: ")  # type: ignore[union-attr]


@pytest.fixture
async def filled(url: str) -> str:
    async with duetime.connect_async(url) as client:
        mail = client.queue("mail")
        await mail.push({"to": "ann"}, id="now")
        await mail.later("30m", {"to": "bob"}, id="soon")
        for number in range(3):
            await client.queue("bills").push("bill", id=f"bill-{number}", tries=1)
            async with client.queue("bills").take() as job:
                await job.kill(f"Traceback\nConnectionError: the bank is {'closed' if number else 'slow'}")
    return url


async def test_without_leave_to_write_every_tool_is_read_only(url: str) -> None:
    async with agent(url) as client:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == READ_ONLY
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        assert "cancel" in await refused(client, "cancel", queue="mail", job_ids=["now"])


async def test_tools_that_write_say_so(url: str) -> None:
    async with agent(url, allow_writes=True) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == READ_ONLY | set(WRITERS)
        for name in WRITERS:
            annotations = tools[name].annotations
            assert annotations is not None
            assert annotations.read_only_hint is False
            assert annotations.destructive_hint is (name in ("cancel", "receive"))
            assert tools[name].description


async def test_reading(filled: str) -> None:
    async with agent(filled) as client:
        queues = {one["queue"]: one for one in (await call(client, "list_queues"))["queues"]}
        assert (queues["mail"]["ready"], queues["mail"]["delayed"], queues["bills"]["dead"]) == (1, 1, 3)
        [job] = (await call(client, "list_jobs", queue="mail", state="delayed"))["jobs"]
        assert job["id"] == "soon"
        assert json.loads((await call(client, "get_job", queue="mail", job_id="now"))["body"]) == {"to": "ann"}
        groups = await call(client, "failures")
        assert groups["complete"]
        assert [(one["error"], one["count"]) for one in groups["groups"]] == [
            ("ConnectionError: the bank is closed", 2),
            ("ConnectionError: the bank is slow", 1),
        ]
        load = await call(client, "due_load", minutes=60)
        assert (load["due_already"], sum(one["jobs"] for one in load["load"]), load["later"]) == (1, 1, 0)
        problems = (await call(client, "problems"))["problems"]
        assert problems == [{"queue": "bills", "problem": "3 dead letters", "see": "failures"}]
        assert (await refused(client, "get_job", queue="mail", job_id="gone")).startswith("job_not_found: ")


async def test_a_dry_run_changes_nothing(filled: str) -> None:
    async with agent(filled, allow_writes=True) as client:
        before = await call(client, "list_queues")
        added = await call(client, "later", queue="mail", body="x", when="1h", dry_run=True)
        assert added["would"] == "add a job"
        kept = await call(client, "later", queue="mail", body="x", job_id="soon", dry_run=True)
        assert kept["would"] == "keep the existing job"
        for name, arguments in (
            ("cancel", {"queue": "mail", "job_ids": ["now", "gone"]}),
            ("reschedule", {"queue": "mail", "job_id": "soon", "when": "1m"}),
            ("retry", {"queue": "bills", "job_ids": ["bill-1"]}),
            ("pause", {"queue": "mail"}),
        ):
            assert (await call(client, name, dry_run=True, **arguments))["would"] == name
        after = await call(client, "list_queues")
        assert [{**one, "late_ms": 0} for one in after["queues"]] == [{**one, "late_ms": 0} for one in before["queues"]]


async def test_writing(filled: str) -> None:
    async with agent(filled, allow_writes=True) as client:
        assert (await call(client, "later", queue="mail", body="x", when="2h", job_id="new"))["event"] == "accepted"
        assert (await call(client, "later", queue="mail", body="x", when="2h", job_id="new"))["event"] == "kept"
        moved = await call(client, "reschedule", queue="mail", job_id="new", when="2030-01-01T09:00:00Z")
        assert moved["due_at"].startswith("2030-01-01T09:00:00")
        cancelled = await call(client, "cancel", queue="mail", job_ids=["new", "gone"])
        assert [one.get("event") or one["error"] for one in cancelled["results"]] == ["cancelled", "job_not_found"]
        retried = await call(client, "retry", queue="bills", job_ids=["bill-0", "bill-1"])
        assert len(retried["results"]) == 2
        assert (await call(client, "pause", queue="bills"))["paused"] is True
        problems = [one["problem"] for one in (await call(client, "problems"))["problems"]]
        assert "paused, and 2 jobs wait" in problems
        assert (await call(client, "resume", queue="bills"))["paused"] is False
        assert "must not be in the past" in await refused(client, "later", queue="mail", body="x", when="-1h")


async def test_an_agent_reminds_itself_once_and_never_early(url: str) -> None:
    """The session that docs/mcp.md shows; only its times differ."""
    session: list[str] = []

    async def step(name: str, **arguments: Any) -> dict[str, Any]:
        answer = await call(client, name, **arguments)
        session.extend((f"> {name} {json.dumps(arguments)}", f"< {json.dumps(answer)}"))
        return answer

    async with agent(url, allow_writes=True) as client:
        reminder = {"queue": "agent", "body": "look at the report", "when": "10m", "job_id": "remind"}
        await step("later", **reminder, dry_run=True)
        await step("later", **reminder)
        await step("receive", queue="agent", wait_s=0)
        moved = await step("reschedule", queue="agent", job_id="remind", when="1s")
        await step("receive", queue="agent", wait_s=60)
        assert datetime.now(UTC) >= datetime.fromisoformat(moved["due_at"])
        await step("receive", queue="agent", wait_s=0)
    page = (ROOT / "docs/mcp.md").read_text()
    assert TIME.sub("TIME", "\n".join(session)) in TIME.sub("TIME", page), "\n".join(session)


def journal_of(folder: Path) -> str:
    return str(next(folder.rglob("journal")))


async def test_standard_input_and_output_with_doctor_and_history(tmp_path: Path, shell: Shell) -> None:
    with serving(tmp_path, "--dev") as server, duetime.connect(server.api) as producer:
        producer.queue("mail").push("hello", id="first")
        command, *arguments = [*program(), "mcp", "--url", server.api, "--journal", journal_of(tmp_path)]
        parameters = StdioServerParameters(command=command, args=arguments, cwd=tmp_path, env=shell.environment())
        async with Client(stdio_client(parameters)) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == set(READERS)
            [first, *_] = (await call(client, "job_history", job_id="first"))["entries"]
            assert first["event"] == "accepted"
            grades = {one["grade"] for one in (await call(client, "doctor"))["findings"]}
            assert grades <= {"ok", "warn", "fail"}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell("", tmp_path)


def start(command: list[str], shell: Shell) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(command, env=shell.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    guard(process.pid)
    return process


async def test_over_http_a_caller_acts_with_its_own_token(tmp_path: Path, shell: Shell) -> None:
    with serving(tmp_path) as server:
        admin = Shell(server.admin, tmp_path)
        reader = admin.run("token", "create", "--scope", "read", "--json").document["token"]
        writer = admin.run("token", "create", "--scope", "read", "--scope", "write", "--json").document["token"]
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        command = [*program(), "mcp", "--url", server.api, "--http", f"127.0.0.1:{port}", "--allow-writes"]
        process = start(command, shell)
        try:
            await until(lambda: _answers(port))
            async with _caller(port, writer) as client:
                tools = {tool.name for tool in (await client.list_tools()).tools}
                assert tools == READ_ONLY | set(WRITERS)  # no files of this machine for strangers
                assert (await call(client, "later", queue="mail", body="x", job_id="one"))["event"] == "accepted"
            async with _caller(port, reader) as client:
                assert (await call(client, "get_job", queue="mail", job_id="one"))["body"] == "x"
                assert (await refused(client, "later", queue="mail", body="x")).startswith("forbidden: ")
            async with _caller(port, "") as client:
                assert (await refused(client, "list_queues")).startswith("unauthorized: ")
        finally:
            process.terminate()
            process.wait(60)
            release(process.pid)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@asynccontextmanager
async def _caller(port: int, token: str) -> AsyncIterator[Client]:
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with (
        create_mcp_http_client(headers=headers) as http,
        Client(streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--url", "sqlite:jobs.db", "--http", "0.0.0.0:7780"], "must be a loopback address"),
        (["--url", "http://127.0.0.1:1", "--token", "t", "--http", "0.0.0.0:7780"], "must be a loopback address"),
        (["--http", "7780"], "must be HOST:PORT"),
        (["--http", "127.0.0.1:65536"], "must be HOST:PORT"),
    ],
)
def test_addresses_that_would_let_others_in_are_refused(shell: Shell, arguments: list[str], error: str) -> None:
    ran = shell.run("mcp", *arguments)
    assert (ran.code, error in ran.err) == (2, True), ran.err

"""Logs of a real server: ids, files, signals, secrets."""

import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.plugins.serving import Served, serving
from tests.plugins.until import until


def lines(path: Path) -> list[dict[str, Any]]:
    """What a server has written so far, without a last line that is half written."""
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def visit(server: Served) -> dict[str, str]:
    """One request of every protocol; their ids by path."""
    requests = [
        ("POST", f"{server.api}/v1/queues/default/q/jobs"),
        ("GET", f"{server.api}/api/default/q?token=hush-hush-hush"),
        ("GET", f"{server.api}/readyz"),
        ("GET", f"{server.admin}/token/default/hush-hush-hush/limit"),
        ("GET", f"{server.api}/nowhere/hush-hush-hush"),
        ("GET", f"{server.api}/v1/queues/default/q%0aforged%1b"),
    ]
    ids: dict[str, str] = {}
    for method, url in requests:
        headers = {"Authorization": "Bearer hush-hush-hush"}
        reply = httpx.request(method, url, json={"body": "x"} if method == "POST" else None, headers=headers)
        ids[reply.headers["x-request-id"]] = url
    return ids


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_the_access_log_has_the_requests_of_every_protocol(tmp_path: Path, workers: str) -> None:
    access, rest = tmp_path / "access.log", tmp_path / "duetime.log"
    files = {"DUETIME_ACCESS_LOG_FILE": str(access), "DUETIME_LOG_FILE": str(rest), "DUETIME_LOG_FORMAT": "json"}
    with serving(tmp_path, "--dev", "--workers", workers, DUETIME_ACCESS_LOG="true", **files) as server:
        ids = visit(server)
        await until(lambda: {line["req_id"] for line in lines(access)} >= set(ids))
        seen = {line["path"]: line for line in lines(access)}
        access.rename(tmp_path / "access.1")
        server.signal(signal.SIGUSR1)
        await until(access.exists)
        again = visit(server)
        await until(lambda: {line["req_id"] for line in lines(access) + lines(tmp_path / "access.1")} >= set(again))
    assert set(seen) == {
        "/v1/queues/default/q/jobs",
        "/api/default/q",
        "/readyz",
        "/token/***",
        "/***",
        "/v1/queues/default/q\nforged\x1b",
    }
    pushed = seen["/v1/queues/default/q/jobs"]
    assert (pushed["method"], pushed["code"], pushed["pool"], pushed["level"]) == ("POST", 201, "default", "info")
    assert seen["/api/default/q"]["query"] == "token=***"
    assert pushed["ip"] == "127.0.0.1"
    assert pushed["latency_ms"] > 0
    assert all(line["event"] != "access" for line in lines(rest))
    assert all("hush" not in path.read_text() for path in (access, rest, tmp_path / "access.1", server.log))


def break_store(folder: Path) -> None:
    """In place: the server has the files mapped, and one that is cut short would end it with SIGBUS."""
    for name in ("jobs.db", "jobs.db-wal", "jobs.db-shm"):
        if (folder / name).exists():
            with (folder / name).open("r+b") as file:
                file.write(b"no database any more" * 1000)


def publish(server: Served) -> httpx.Response:
    return httpx.put(f"{server.api}/api/default/q", content=b"x")


async def test_lines_about_a_request_carry_its_id(tmp_path: Path) -> None:
    with serving(tmp_path, "--dev", DUETIME_LOG_FORMAT="json") as server:
        break_store(tmp_path)
        reply = publish(server)
        assert reply.status_code == 500
        name = reply.headers["x-request-id"]
        await until(lambda: any(line.get("request_id") == name for line in lines(server.log)))


def test_the_console_form_stays_on_its_lines(tmp_path: Path) -> None:
    with serving(tmp_path, "--dev", DUETIME_ACCESS_LOG="true") as server:
        visit(server)
    access = [line for line in server.log.read_text().splitlines() if "duetime.access" in line]
    assert len(access) == 6
    assert any(r'path="/v1/queues/default/q\nforged\u001b"' in line for line in access)

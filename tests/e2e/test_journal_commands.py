"""The journal as people meet it: `serve` writes it, `history` tells it, embedded programs join it or refuse."""

import asyncio
from pathlib import Path

import httpx

from duetime.journal import registration
from duetime.stores.open import open_store
from tests.e2e.conftest import Serve
from tests.e2e.shell import Shell


def lives(shell: Shell, job_id: str, *arguments: str) -> list[tuple[str, int]]:
    return [(entry["event"], entry["attempt"]) for entry in shell.json("history", job_id, *arguments)]


def test_a_server_and_other_programs_write_one_history(shell: Shell, serve: Serve) -> None:
    addresses = serve("--dev")
    jobs = f"{addresses.api}/v1/queues/default/mail/jobs"
    assert httpx.post(jobs, json={"id": "welcome-42", "body": "hello", "tries": 2}).status_code < 300
    [leased] = shell.json("reserve", "mail")
    shell.ok("release", leased["lease"], "--delay", "0s")
    [leased] = shell.json("reserve", "mail")
    shell.ok("release", leased["lease"], "--kill")
    shell.ok("failed", "retry", "mail", "welcome-42")
    [leased] = shell.json("reserve", "mail")
    shell.ok("ack", leased["lease"])

    assert lives(shell, "welcome-42") == [
        ("accepted", 0),
        ("delivered", 1),
        ("released", 1),
        ("delivered", 2),
        ("dead", 2),
        ("respawned", 2),
        ("delivered", 3),
        ("acked", 3),
    ]
    lines = shell.ok("history", "welcome-42", "--queue", "mail").out.splitlines()
    assert lines[0] == "default/mail welcome-42"
    assert len(lines) == 1 + 8 + 1
    assert "due immediately, 2 tries, body 'hello'" in lines[1]
    nodes = shell.json("journal", "list")
    assert sorted(node["state"] for node in nodes) == ["closed"] * 7 + ["writing"]


def test_the_lives_of_an_id_are_shown_one_after_the_other(shell: Shell, tmp_path: Path) -> None:
    folder = ("--journal", str(tmp_path / "journal"))
    shell.ok("push", "mail", "one", "--id", "a")
    assert shell.run("history", "a").code == 2, "there is no journal yet"
    serve_once(shell)
    shell.ok("delete", "mail", "a")
    shell.ok("push", "mail", "two", "--id", "a")
    shell.ok("push", "sms", "three", "--id", "a")
    shell.ok("queue", "purge", "mail", "--yes")
    assert lives(shell, "a", *folder) == [
        ("cancelled", 0),
        ("accepted", 0),
        ("purged", 0),
        ("accepted", 0),
    ]
    assert lives(shell, "a", "--queue", "sms", *folder) == [("accepted", 0)]
    unknown = shell.run("history", "b", *folder)
    assert (unknown.code, "knows no job 'b'" in unknown.err) == (1, True)


def serve_once(shell: Shell) -> None:
    """As a server that starts and stops: from now on the pool journals."""

    async def begin() -> None:
        store = await open_store(shell.url)
        await registration.begin_journaling(store, "default")
        await store.close()

    asyncio.run(begin())


def test_damage_is_reported_next_to_the_answer(shell: Shell, tmp_path: Path) -> None:
    serve_once(shell)
    shell.ok("push", "mail", "one", "--id", "a")
    [segment] = (tmp_path / "journal").glob("*/*.journal")
    content = segment.read_bytes()
    at = content.index(b'"body":"one"') + 9
    segment.write_bytes(content[:at] + b"X" + content[at + 1 :])
    ran = shell.run("history", "a")
    assert ran.code == 1
    assert "damage in" in ran.err


def test_a_journal_is_ended_for_all_programs_of_the_pool(shell: Shell, serve: Serve) -> None:
    serve_once(shell)
    asked = shell.run("journal", "end")
    assert (asked.code, "--yes" in asked.err) == (2, True)
    shell.ok("journal", "end", "--yes")
    assert shell.run("journal", "end", "--yes").code == 1
    serve("--dev", "--journal", "off")
    shell.ok("push", "mail", "x", DUETIME_JOURNAL="off")

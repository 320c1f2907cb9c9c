"""`push --file`: every good line goes in, every bad one is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from duetime.client import Client
from duetime.model.errors import StoreUnavailable
from tests.e2e.shell import Shell

MIXED = """\
{"body": "text", "id": "text"}
{"body": {"to": "ann"}, "id": "json", "delay": "1h", "tries": 9, "priority": "high", "attributes": {"b": "2"}}
{"body": "x", "delay": "10x"}
not json

[1, 2]
{"id": "nothing"}
{"body": "x", "id": "late", "ttl": "1s", "delay": "5s"}
{"body_b64": "//8=", "id": "bytes"}
{"body": "x", "colour": "red"}
"""


def test_bad_lines_are_named_and_good_ones_pushed(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "mixed.jsonl").write_text(MIXED)
    ran = shell.run("push", "mail", "--file", "mixed.jsonl", "--tries", "3", "--attribute", "a=1", "--json")
    assert ran.code == 1
    sums = ran.document
    assert {name: sums[name] for name in ("accepted", "kept", "replaced", "failed")} == {
        "accepted": 3,
        "kept": 0,
        "replaced": 0,
        "failed": 6,
    }
    assert sums.keys() == {
        "namespace",
        "queue",
        "file",
        "accepted",
        "kept",
        "replaced",
        "failed",
        "seconds",
        "jobs_per_second",
    }
    *lines, last = [json.loads(line) for line in ran.err.splitlines()]
    assert [(line["line"], line["error"]["code"]) for line in sorted(lines, key=lambda line: line["line"])] == [
        (3, "invalid_time"),
        (4, "invalid_request"),
        (6, "invalid_request"),
        (7, "invalid_request"),
        (8, "expires_before_due"),
        (10, "invalid_request"),
    ]
    assert last["error"]["code"] == "lines_refused"

    [job] = shell.json("get", "mail", "json")
    assert (job["body"], job["tries"], job["priority"], job["state"]) == ({"to": "ann"}, 9, "high", "delayed")
    assert job["attributes"] == {"a": "1", "b": "2"}
    [job] = shell.json("get", "mail", "bytes")
    assert (job["body_b64"], job["tries"], job["attributes"]) == ("//8=", 3, {"a": "1"})


def test_the_report_for_people_names_file_and_line(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "mixed.jsonl").write_text(MIXED)
    ran = shell.run("push", "mail", "--file", "mixed.jsonl")
    assert ran.code == 1
    assert "mixed.jsonl:3: invalid_time: duration must be like 90, '10s', '5m', '3d' or '1h30m', got '10x'" in ran.err
    assert ran.out.startswith("default/mail: 3 accepted, 6 refused in ")


def test_a_repeated_load_keeps_what_is_there(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "jobs.jsonl").write_text("".join(f'{{"body": "{n}", "id": "j{n}"}}\n' for n in range(1200)))
    [first] = shell.json("push", "mail", "--file", "jobs.jsonl", "--delay", "1h")
    assert (first["accepted"], first["kept"]) == (1200, 0)
    [second] = shell.json("push", "mail", "--file", "-", stdin=(tmp_path / "jobs.jsonl").read_bytes())
    assert (second["accepted"], second["kept"], second["file"]) == (0, 1200, "standard input")
    assert shell.json("queue", "counts", "mail")[0]["delayed"] == 1200


def test_lines_that_were_listed_go_back_into_their_own_queues(shell: Shell, tmp_path: Path) -> None:
    for queue in ("a", "b"):
        shell.json("push", queue, f"of {queue}", "--id", queue, "--delay", "1h", "--tries", "7")
    listed = [shell.run("list", queue, "--state", "delayed", "--json").out for queue in ("a", "b", "a")]
    for queue in ("a", "b"):
        shell.json("delete", queue, queue)
    (tmp_path / "jobs.jsonl").write_text("".join(listed) + '{"body": "x"}\n{"body": "y", "queue": "c", "id": "c"}\n')

    ran = shell.run("push", "--file", "jobs.jsonl", "--json")
    assert {name: ran.document[name] for name in ("queue", "accepted", "kept", "failed")} == {
        "queue": None,
        "accepted": 3,
        "kept": 1,
        "failed": 1,
    }
    refused = json.loads(ran.err.splitlines()[0])
    assert (refused["line"], refused["error"]["message"]) == (
        4,
        "line must have a queue, or name one for all lines: push QUEUE",
    )
    for queue in ("a", "b"):
        [job] = shell.json("get", queue, queue)
        assert (job["body"], job["tries"], job["state"]) == (f"of {queue}", 7, "delayed")
    assert shell.json("get", "c", "c")[0]["body"] == "y"
    assert shell.run("push", "--json").code == 2


def test_wrong_arguments_are_a_usage_error(shell: Shell) -> None:
    assert shell.run("push", "mail").code == 2
    both = shell.run("push", "mail", "body", "--file", "jobs.jsonl")
    assert (both.code, both.err) == (2, "duetime: give BODY or --file, not both\n")
    missing = shell.run("push", "mail", "--file", "nowhere.jsonl", "--json")
    assert (missing.code, missing.error["code"]) == (2, "invalid_request")
    assert "nowhere.jsonl" in missing.error["message"]
    assert shell.run("push", "mail", "x", "--attribute", "novalue").code == 2
    assert shell.run("push", "no/slash", "x").code == 2


def test_the_error_of_a_lost_connection_says_which_lines_are_done(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs.jsonl").write_text('{"body": "x"}\n' * 1200)
    send, sent = Client.send, []

    def breaking(client: Client, call: Any) -> Any:
        if len(sent) == 2:
            raise StoreUnavailable("gone", unknown=True)
        sent.append(call)
        return send(client, call)

    monkeypatch.setattr(Client, "send", breaking)
    ran = shell.run("push", "mail", "--file", "jobs.jsonl", "--json")
    assert (ran.code, ran.out) == (3, "")
    assert ran.error["message"] == "gone (lines up to 1000 of jobs.jsonl are done)"
    assert ran.error["fields"] == {"line": 1000, "unknown": True}

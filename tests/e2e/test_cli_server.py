"""The same commands against a real server: same answers, same exit codes, and tokens."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.conftest import Serve
from tests.e2e.shell import Shell

pytestmark = pytest.mark.timeout(180)  # a server start costs seconds on a busy machine


def test_a_server_answers_as_its_store_does(shell: Shell, serve: Serve, tmp_path: Path) -> None:
    addresses = serve("--dev")
    remote = replace(shell, url=addresses.api)

    (tmp_path / "jobs.jsonl").write_text(
        '{"body": "a", "id": "a"}\n{"body": "b", "delay": "x"}\n{"body_b64": "/w=="}\n'
    )
    loaded = remote.run("push", "mail", "--file", "jobs.jsonl", "--json")
    assert (loaded.code, loaded.document["accepted"], loaded.document["failed"]) == (1, 2, 1)
    assert remote.json("get", "mail", "a") == shell.json("get", "mail", "a")
    assert remote.json("list", "mail") == shell.json("list", "mail")
    assert remote.run("get", "mail", "none", "--json").error == shell.run("get", "mail", "none", "--json").error

    [first, second] = remote.json("reserve", "none", "mail", "--limit", "5", "--wait", "5s")
    assert remote.json("ack", first["lease"])[0]["event"] == "acked"
    assert remote.json("release", second["lease"], "--kill", "--error", "boom")[0]["event"] == "dead"
    assert remote.run("release", second["lease"], "--json").error["code"] == "lease_lost"
    assert remote.json("failed", "list", "mail")[0]["error"] == "boom"
    assert remote.json("failed", "retry", "mail", "--all")[0]["event"] == "respawned"
    assert remote.json("queue", "pause", "mail")[0]["rules"]["paused"] is True
    [frame] = remote.json("top", "--once")
    assert frame["queues"][0]["counts"]["ready"] == 1
    assert frame["queues"][0]["late_ms"] >= 0
    assert remote.json("queue", "purge", "mail", "--yes")[0]["removed"] == 1
    [counts] = remote.json("queue", "counts", "mail")
    assert (counts["ready"], counts["dead"]) == (0, 0)

    checks = {one["check"]: one["grade"] for one in remote.json("doctor", "--deep")}
    assert checks == {"server.answers": checks["server.answers"], "server.token": "ok", "server.clock": "ok"} | {
        "store.check": "warn"
    }


def test_tokens_open_one_namespace(shell: Shell, serve: Serve) -> None:
    addresses = serve()
    remote, admin = replace(shell, url=addresses.api), replace(shell, url=addresses.admin)
    refused = remote.run("push", "mail", "x", "--json")
    assert (refused.code, refused.error["code"]) == (4, "unauthorized")
    sick = remote.run("doctor", "--json")
    assert (sick.code, sick.document["check"]) == (1, "server.token")

    [made] = admin.json("token", "create", "--description", "tests", "--scope", "write")
    [listed] = admin.json("token", "list")
    assert (listed["label"], listed["description"], listed["scopes"]) == (made["label"], "tests", ["write"])
    assert shell.json("token", "list")[0]["scopes"] == ["write"]

    assert remote.run("push", "mail", "x", "--token", made["token"]).code == 0
    assert remote.run("push", "mail", "x", DUETIME_TOKEN=made["token"]).code == 0
    assert remote.run("reserve", "mail", "--token", made["token"]).code == 4
    assert remote.run("push", "mail", "x", "--token", made["token"], "--namespace", "other").code == 4

    assert admin.json("token", "revoke", made["label"])[0]["revoked"] is True
    assert remote.run("push", "mail", "x", "--token", made["token"]).code == 4
    wrong = remote.run("token", "list", "--json")
    assert (wrong.code, "7778" in wrong.error["message"]) == (1, True)

"""Verbs on jobs: what they print, in both forms, and how they exit."""

import json
import time
from pathlib import Path

from tests.e2e.shell import Shell

JOB_KEYS = {
    "namespace",
    "queue",
    "id",
    "state",
    "born",
    "due_at",
    "expires_at",
    "lease_until",
    "dead_at",
    "priority",
    "tries",
    "used",
    "attempt",
    "reason",
    "error",
    "attributes",
    "body",
    "body_b64",
}
DELIVERY_KEYS = (JOB_KEYS - {"state", "dead_at", "reason"}) | {"lease"}
MOVED_KEYS = {"namespace", "queue", "id", "event", "born", "attempt", "due_at", "reason"}


def test_a_job_goes_from_push_to_ack(shell: Shell) -> None:
    [pushed] = shell.json("push", "mail", "hello", "--id", "a 1:%", "--attribute", "trace=7", "--priority", "high")
    assert pushed.keys() == MOVED_KEYS
    assert (pushed["event"], pushed["id"], pushed["queue"], pushed["namespace"]) == (
        "accepted",
        "a 1:%",
        "mail",
        "default",
    )

    [job] = shell.json("get", "mail", "a 1:%")
    assert job.keys() == JOB_KEYS
    assert (job["state"], job["body"], job["body_b64"], job["priority"]) == ("ready", "hello", None, "high")
    assert job["attributes"] == {"trace": "7"}
    assert shell.json("peek", "mail") == [job]
    assert shell.json("list", "mail") == [job]

    [delivery] = shell.json("reserve", "empty", "mail", "--ttr", "5m")
    assert delivery.keys() == DELIVERY_KEYS
    assert (delivery["id"], delivery["attempt"], delivery["body"]) == ("a 1:%", 1, "hello")
    assert " " not in delivery["lease"]

    [acked] = shell.json("ack", delivery["lease"])
    assert (acked["event"], acked["id"], acked["reason"]) == ("acked", "a 1:%", "")
    [again] = shell.json("ack", delivery["lease"])
    assert again["reason"] == "gone"
    gone = shell.run("get", "mail", "a 1:%", "--json")
    assert gone.code == 1
    assert gone.out == ""
    assert gone.error["code"] == "job_not_found"


def test_text_for_people_starts_with_the_id(shell: Shell) -> None:
    pushed = shell.ok("push", "mail", "hello", "--id", "j1", "--delay", "2d")
    assert pushed.out.startswith("j1 accepted in default/mail, due 2")
    assert "in 1d 23h" in shell.ok("list", "mail", "--state", "delayed").out
    assert shell.ok("push", "mail", "hello", "--id", "j1").out.startswith("j1 kept")
    assert shell.ok("reschedule", "mail", "j1", "--delay", "0").out.startswith("j1 rescheduled, due now")
    assert shell.ok("delete", "mail", "j1").out == "j1 deleted\n"
    refused = shell.run("delete", "mail", "j1")
    assert refused.code == 1
    assert refused.err.count("\n") == 1
    assert "j1" in refused.err


def test_bodies_go_through_byte_for_byte(shell: Shell) -> None:
    raw = b"\x00\xff\r\n\x1b[2J"
    shell.ok("push", "bin", "-", "--id", "raw", stdin=raw)
    [job] = shell.json("get", "bin", "raw")
    assert (job["body"], job["body_b64"]) == (None, "AP8NChtbMko=")
    shell.ok("push", "bin", "-", "--id", "escape", stdin=b"\x1b[2J")
    assert "\x1b" not in shell.ok("get", "bin", "escape").out
    assert shell.ok("get", "bin", "escape", "--body").out == "\x1b[2J"


def test_when_is_a_delay_or_an_instant(shell: Shell) -> None:
    [at] = shell.json("push", "mail", "x", "--at", "2099-01-01T00:00:00Z")
    assert at["due_at"] == 4_070_908_800_000
    [same] = shell.json("later", "4070908800000", "mail", "x")
    assert same["due_at"] == at["due_at"]
    before = time.time_ns() // 1_000_000
    [later] = shell.json("later", "1h30m", "mail", "x")
    assert 5_400_000 <= later["due_at"] - before < 5_460_000
    [moved] = shell.json("reschedule", "mail", later["id"], "--at", "2099-01-01T00:00:00Z")
    assert (moved["event"], moved["due_at"]) == ("rescheduled", at["due_at"])
    bad = shell.run("later", "soon", "mail", "x", "--json")
    assert (bad.code, bad.error["code"]) == (2, "invalid_time")


def test_release_retries_and_ends_among_the_dead(shell: Shell) -> None:
    shell.ok("push", "mail", "x", "--id", "j", "--tries", "2")
    [first] = shell.json("reserve", "mail")
    [released] = shell.json("release", first["lease"], "--delay", "0", "--error", "busy")
    assert released["event"] == "released"
    lost = shell.run("release", first["lease"], "--json")
    assert (lost.code, lost.error["code"]) == (1, "lease_lost")
    [second] = shell.json("reserve", "mail", "--wait", "5s")
    assert (second["attempt"], second["used"], second["error"]) == (2, 2, "busy")
    assert shell.ok("release", second["lease"]).out == "j failed: tries\n"
    old = shell.run("ack", second["lease"], "--json")
    assert (old.code, old.error["code"]) == (1, "lease_lost")


def test_leases_come_from_a_pipe(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "jobs.jsonl").write_text('{"body": "a"}\n{"body": "b"}\n{"body": "c"}\n')
    shell.ok("push", "mail", "--file", "jobs.jsonl")
    leases = [one["lease"] for one in shell.json("reserve", "mail", "--limit", "10")]
    assert len(leases) == 3
    acked = shell.json("ack", "-", stdin="\n".join(leases) + "\n")
    assert [one["event"] for one in acked] == ["acked"] * 3
    assert shell.json("queue", "counts", "mail")[0]["leased"] == 0


def test_reserve_says_when_nothing_is_ready(shell: Shell) -> None:
    shell.ok("push", "mail", "x", "--delay", "1h")
    empty = shell.run("reserve", "mail", "--json")
    assert (empty.code, empty.out, empty.error["code"]) == (1, "", "nothing_ready")
    nothing = shell.run("peek", "other")
    assert (nothing.code, nothing.out) == (1, "")
    assert shell.json("peek", "mail")[0]["state"] == "delayed"


def test_many_ids_are_answered_each_on_its_own(shell: Shell) -> None:
    shell.ok("push", "mail", "x", "--id", "one")
    ran = shell.run("delete", "mail", "one", "two", "--json")
    assert ran.code == 1
    assert [one.get("event") or one["error"]["code"] for one in ran.documents] == ["cancelled", "job_not_found"]


def test_if_exists(shell: Shell) -> None:
    shell.ok("push", "mail", "one", "--id", "j")
    refused = shell.run("push", "mail", "two", "--id", "j", "--if-exists", "error", "--json")
    assert (refused.code, refused.error["code"]) == (1, "job_exists")
    [replaced] = shell.json("push", "mail", "two", "--id", "j", "--if-exists", "replace")
    assert replaced["event"] == "replaced"
    assert shell.json("get", "mail", "j")[0]["body"] == "two"


def test_a_cut_list_says_that_there_is_more(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "jobs.jsonl").write_text("".join(f'{{"body": "{n}", "id": "j{n:03}"}}\n' for n in range(250)))
    shell.ok("push", "mail", "--file", "jobs.jsonl")
    cut = shell.ok("list", "mail", "--limit", "2")
    assert cut.out.count("\n") == 3
    assert "more" in cut.err
    assert len(shell.json("list", "mail", "--limit", "0")) == 250


def test_a_lease_is_extended_and_killed_by_commands_of_their_own(shell: Shell) -> None:
    shell.ok("push", "mail", "hello", "--id", "a")
    [delivery] = shell.json("reserve", "mail", "--ttr", "5s")
    [extended] = shell.json("extend", delivery["lease"], "--ttr", "1h")
    assert extended["lease_until"] > delivery["lease_until"] + 3_000_000
    assert (extended["queue"], extended["id"], extended["event"]) == ("mail", "a", "extended")
    [killed] = shell.json("kill", delivery["lease"], "--error", "no such address")
    assert (killed["event"], killed["reason"]) == ("dead", "killed")
    assert shell.json("get", "mail", "a")[0]["error"] == "no such address"
    for command in ("extend", "kill"):
        ran = shell.run(command, delivery["lease"], "--json")
        assert (ran.code, ran.error["code"]) == (1, "lease_lost")
        both = shell.run(command, delivery["lease"], delivery["lease"], "--json")
        assert (both.code, len(both.documents), both.error["code"]) == (1, 2, "some_refused")


def test_dead_letters_of_all_queues_with_the_last_line_of_their_error(shell: Shell) -> None:
    for queue in ("mail", "sms"):
        shell.ok("push", queue, "x", "--id", f"{queue}-1")
        lease = shell.json("reserve", queue)[0]["lease"]
        error = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: no address\n'
        shell.ok("kill", lease, "--error", error)
    shown = shell.ok("failed", "list").out
    assert [line.split()[:2] for line in shown.splitlines()[1:]] == [["mail", "mail-1"], ["sms", "sms-1"]]
    assert shown.count("ValueError: no address") == 2
    assert "Traceback" not in shown
    assert [one["queue"] for one in shell.json("failed", "list")] == ["mail", "sms"]
    assert shell.ok("failed", "list", "--namespace", "empty").err == "no failed jobs in empty\n"


def test_push_reads_the_output_of_list(shell: Shell) -> None:
    shell.ok("push", "mail", "text", "--id", "text", "--delay", "1h", "--tries", "7", "--priority", "high")
    shell.ok("push", "mail", '{"n": 1}', "--id", "json", "--ttl", "1h", "--attribute", "a=b", "--attribute", "c=d e")
    shell.ok("push", "mail", "-", "--id", "bytes", stdin=b"\xff\x00")
    before = [one for state in ("delayed", "ready") for one in shell.json("list", "mail", "--state", state)]
    lines = "".join(shell.ok("list", "mail", "--state", state, "--json").out for state in ("delayed", "ready"))
    assert shell.json("push", "copy", "--file", "-", stdin=lines)[0]["accepted"] == 3
    after = [one for state in ("delayed", "ready") for one in shell.json("list", "copy", "--state", state)]
    same = ("id", "body", "body_b64", "due_at", "tries", "priority", "attributes")
    assert [[one[name] for name in same] for one in after] == [[one[name] for name in same] for one in before]
    expiring = [one["expires_at"] for one in (*before, *after) if one["expires_at"]]
    assert len(expiring) == 2
    assert abs(expiring[0] - expiring[1]) < 60_000


def test_a_listed_job_that_has_expired_is_refused_by_itself(shell: Shell) -> None:
    shell.ok("push", "mail", "x", "--id", "a", "--ttl", "1h")
    [job] = shell.json("list", "mail")
    lines = "\n".join(json.dumps(one) for one in ({**job, "expires_at": 1}, {**job, "id": "b"}))
    ran = shell.run("push", "copy", "--file", "-", stdin=lines)
    assert ran.code == 1
    assert "job has expired" in ran.err
    assert [one["id"] for one in shell.json("list", "copy")] == ["b"]


def test_list_shows_the_jobs_of_all_states(shell: Shell) -> None:
    shell.ok("push", "mail", "x", "--id", "dead")
    shell.ok("release", shell.json("reserve", "mail")[0]["lease"], "--kill")
    shell.ok("push", "mail", "x", "--id", "leased")
    shell.json("reserve", "mail")
    shell.ok("push", "mail", "x", "--id", "ready")
    shell.ok("push", "mail", "x", "--id", "delayed", "--delay", "1h")

    found = shell.json("list", "mail")

    assert [(one["id"], one["state"]) for one in found] == [
        (word, word) for word in ("leased", "ready", "delayed", "dead")
    ]
    shown = shell.ok("list", "mail").out
    assert "in 59m" in shown
    assert [line.split()[1] for line in shown.splitlines()[1:]] == ["running", "ready", "delayed", "failed"]
    assert [one["id"] for one in shell.json("list", "mail", "--state", "running")] == ["leased"]
    assert [one["id"] for one in shell.json("list", "mail", "--state", "delayed")] == ["delayed"]
    assert shell.ok("list", "empty").err == "no jobs in default/empty\n"
    assert shell.ok("list", "mail", "--limit", "3").err == "there are more; --limit 0 shows all jobs\n"

"""`queue` and `dead`: whole queues and dead letters, and the questions before something is lost."""

from pathlib import Path

import pytest

from tests.e2e.shell import Shell


@pytest.fixture
def filled(shell: Shell, tmp_path: Path) -> Shell:
    """Queue mail: 3 ready, 1 delayed, 2 dead (d0, d1)."""
    (tmp_path / "dying.jsonl").write_text('{"body": "a", "id": "d0"}\n{"body": "b", "id": "d1"}\n')
    shell.ok("push", "mail", "--file", "dying.jsonl")
    for delivery in shell.json("reserve", "mail", "--limit", "2"):
        shell.ok("release", delivery["lease"], "--kill", "--error", "boom")
    (tmp_path / "ready.jsonl").write_text('{"body": "x"}\n' * 3 + '{"body": "x", "delay": "1h"}\n')
    shell.ok("push", "mail", "--file", "ready.jsonl")
    return shell


def test_queues_are_listed_counted_and_paused(filled: Shell) -> None:
    [queue] = filled.json("queue", "list")
    assert queue.keys() == {"namespace", "queue", "counts", "rules"}
    counts = {"ready": 3, "delayed": 1, "leased": 0, "dead": 2, "expired": 0, "damaged": 0, "cold": 0, "now": 0}
    assert {**queue["counts"], "now": 0} == counts
    [paused] = filled.json("queue", "pause", "mail")
    assert paused["rules"]["paused"] is True
    assert filled.run("reserve", "mail").code == 1
    assert "paused" in filled.ok("queue", "list").out
    filled.ok("queue", "resume", "mail")
    filled.ok("reserve", "mail")
    [counts] = filled.json("queue", "counts")
    assert (counts["ready"], counts["leased"]) == (2, 1)
    [unknown] = filled.json("queue", "counts", "unknown")
    assert unknown["ready"] == 0
    assert filled.run("queue", "list", "--namespace", "other").out == ""


def test_totals_are_shown_by_day_and_in_all(filled: Shell) -> None:
    filled.ok("reserve", "mail")
    [told] = filled.json("queue", "totals", "mail")
    assert (told["queue"], told["running"]["accepted"], told["running"]["dead"]) == ("mail", 6, 2)
    by_day = told["days"].values()
    assert told["running"] == {name: sum(day[name] for day in by_day) for name in told["running"]}
    header, *days, in_all = filled.ok("queue", "totals", "mail").out.splitlines()
    words = ("day", "accepted", "delivered", "finished", "retried", "leases expired", "failed", "deleted", "expired")
    assert header.split() == " ".join([*words, "retried by hand"]).split()
    assert [day.split()[0] for day in days] == list(told["days"])
    assert in_all.split() == ["total", *map(str, told["running"].values())]


def test_all_queues_are_paused_and_resumed_together(filled: Shell) -> None:
    filled.ok("push", "other", "x")
    for verb, paused in (("pause", True), ("resume", False)):
        told = filled.json("queue", verb, "--all")
        assert [(one["queue"], one["rules"]["paused"]) for one in told] == [("mail", paused), ("other", paused)]
    for wrong in ([], ["mail", "--all"]):
        assert filled.run("queue", "pause", *wrong).code == 2


def test_purge_asks_and_without_a_terminal_wants_yes(filled: Shell) -> None:
    refused = filled.run("queue", "purge", "mail", "--json")
    assert (refused.code, refused.error["code"]) == (2, "invalid_request")
    assert "--yes" in refused.error["message"]
    assert "3 ready" in refused.error["message"]
    [some] = filled.json("queue", "purge", "mail", "--state", "ready", "--yes")
    assert some == {"namespace": "default", "queue": "mail", "removed": 3}
    assert filled.ok("queue", "purge", "mail", "-y").out == "default/mail: 3 deleted\n"


def test_dead_letters_are_shown_and_brought_back(filled: Shell) -> None:
    first, second = filled.json("failed", "list", "mail")
    assert (first["id"], first["reason"], first["error"]) == ("d0", "killed", "boom")
    assert "boom" in filled.ok("failed", "show", "mail", "d1").out
    assert filled.run("failed", "retry", "mail").code == 2
    [back] = filled.json("failed", "retry", "mail", "d0", "--tries", "7")
    assert (back["event"], back["id"]) == ("respawned", "d0")
    [job] = filled.json("get", "mail", "d0")
    assert (job["state"], job["tries"], job["used"]) == ("ready", 7, 0)
    alive = filled.run("failed", "show", "mail", "d0", "--json")
    assert (alive.code, alive.error["code"]) == (1, "not_failed")
    missing = filled.run("failed", "retry", "mail", "d0", "d1", "--json")
    assert (missing.code, missing.error["fields"]["ids"]) == (1, ["d0"])
    assert [one["id"] for one in missing.documents] == [second["id"]]
    assert filled.ok("failed", "retry", "mail", "--all").out == ""


def test_dead_letters_are_brought_back_by_text_and_time(filled: Shell) -> None:
    assert filled.ok("failed", "retry", "mail", "--matching", "no such error").out == ""
    assert filled.json("failed", "retry", "mail", "--before", "2020-01-01T00:00:00Z") == []
    assert filled.run("failed", "retry", "mail", "--matching", "boom", "--all").code == 2
    assert filled.run("failed", "retry", "mail", "--after", "yesterday").code == 2
    back = filled.json("failed", "retry", "mail", "--matching", "boom", "--after", "2020-01-01T00:00:00Z")
    assert sorted(one["id"] for one in back) == ["d0", "d1"]


def test_dead_letters_are_deleted_but_nothing_else_is(filled: Shell) -> None:
    [alive] = filled.json("list", "mail", "--limit", "1") or [None]
    assert alive
    refused = filled.run("failed", "delete", "mail", "d0", alive["id"], "--json")
    assert (refused.code, refused.error["code"]) == (1, "not_failed")
    assert len(filled.json("failed", "list", "mail")) == 2
    assert filled.json("failed", "delete", "mail", "d0")[0]["removed"] == 1
    assert filled.run("failed", "delete", "mail", "--all").code == 2
    assert filled.json("failed", "delete", "mail", "--all", "--yes")[0]["removed"] == 1
    assert filled.json("queue", "counts", "mail")[0]["ready"] == 3


def test_prune_removes_only_what_is_old(filled: Shell) -> None:
    assert filled.json("failed", "prune", "mail", "--older-than", "1h", "--yes")[0]["removed"] == 0
    assert filled.run("failed", "prune", "mail", "--older-than", "0").code == 2
    assert filled.json("failed", "prune", "mail", "--older-than", "0", "--yes")[0]["removed"] == 2
    assert filled.json("queue", "counts", "mail")[0]["ready"] == 3


def test_rules_are_shown_and_changed_one_by_one(shell: Shell) -> None:
    [before] = shell.json("queue", "rules", "mail", "--no-strict")
    assert (before["queue"], before["rules"]["strict"], before["rules"]["max_jobs"]) == ("mail", False, 0)
    assert shell.json("queue", "rules", "mail") == [before]
    shell.ok("queue", "rules", "mail", "--strict", "--max-jobs", "1")
    [after] = shell.json("queue", "rules", "mail", "--max-body", "1KiB", "--expired-to-dead", "--kept")
    assert after["rules"] == {**before["rules"], "strict": True, "max_jobs": 1, "max_body": 1024} | {
        "expired_to_dead": True,
        "kept": True,
    }
    shell.ok("push", "mail", "x")
    assert shell.run("push", "mail", "y", "--json").error["code"] == "queue_full"
    assert shell.ok("queue", "rules", "mail", "--no-strict", "--max-jobs", "0").out == (
        "default/mail: expired_to_dead kept max_body=1024\n"
    )
    shell.ok("push", "mail", "y")
    assert shell.run("queue", "rules", "mail", "--max-body", "much", "--json").error["code"] == "invalid_request"
    assert shell.run("queue", "rules", "mail", "--max-jobs", "-1").code == 2

"""`duetime monitor`."""

from pathlib import Path

import pytest

from tests.e2e.shell import Shell


def test_a_queue_over_its_threshold_is_named_and_is_the_exit_code(tmp_path: Path) -> None:
    shell = Shell(f"sqlite://{tmp_path}/jobs.db", tmp_path)
    for number in range(3):
        shell.run("push", "mail", f"body {number}")
    shell.run("push", "slow", "x", "--delay", "1h")
    calm = shell.run("monitor", "--json")
    assert (calm.code, [one["alerts"] for one in calm.documents]) == (0, [[], []])
    words = ("ready", "delayed", "leased", "dead")
    assert [[one[word] for word in words] for one in calm.documents] == [[3, 0, 0, 0], [0, 1, 0, 0]]
    busy = shell.run("monitor", "--max", "3", "--json")
    assert busy.code == 1
    assert busy.error["code"] == "queue_busy"
    assert {one["queue"]: (one["size"], one["alerts"]) for one in busy.documents} == {
        "mail": (3, ["size"]),
        "slow": (1, []),
    }
    late = shell.run("monitor", "mail", "slow", "--max-late", "1ms")
    assert late.code == 1
    assert "ALERT: late" in late.out
    assert "OK" in late.out


def test_failed_jobs_over_their_threshold(tmp_path: Path) -> None:
    shell = Shell(f"sqlite://{tmp_path}/jobs.db", tmp_path)
    shell.run("push", "mail", "x")
    shell.run("release", shell.run("reserve", "mail", "--json").document["lease"], "--kill", "--error", "no")
    assert shell.run("monitor", "mail", "--max-failed", "1").code == 1
    assert shell.run("monitor", "mail", "--max-failed", "2").code == 0


@pytest.mark.parametrize(
    "command",
    [
        "monitor",
        "backup a.backup",
        "move --from URL --to memory:",
        "move --from URL --to memory: --dry-run",
        "get mail a",
        "list mail",
        "delete mail a",
        "queue list",
        "queue rules mail",
        "failed list",
        "batch list",
        "schedule list",
        "topic list",
        "token list",
        "token revoke a",
        "alert list",
        "alert test",
        "pool list",
        "journal list",
        "journal end --yes",
        "workers",
        "top --once",
        "mcp",
        "list mail --url group:two?a=URL&b=memory:",
    ],
)
def test_a_url_with_a_typing_error_is_no_empty_store(tmp_path: Path, command: str) -> None:
    """It would look fine, and stay behind."""
    url = f"sqlite://{tmp_path}/typo.db"
    refused = Shell(url, tmp_path).run(*command.replace("URL", url).split())
    assert (refused.code, list(tmp_path.iterdir())) == (2, [])
    assert "which has no file: check the URL" in refused.err


def test_the_parts_of_a_pool_are_shown_without_making_them(tmp_path: Path) -> None:
    shown = Shell(f"sqlite://{tmp_path}/typo.db", tmp_path).run("pool", "show", "--json")
    assert (shown.code, list(tmp_path.iterdir())) == (1, [])
    assert "check the URL" in shown.document["problems"][0]

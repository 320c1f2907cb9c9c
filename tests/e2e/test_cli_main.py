"""The program itself: exit codes, the one line of an error, where options may stand, completion, pipes."""

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from duetime.cli.options import Target, located
from duetime.model.errors import StoreUnavailable
from tests.e2e.shell import Shell, program


def test_the_installed_program_reports_by_its_exit_code(shell: Shell) -> None:
    done = shell.spawn("push", "mail", "-", "--id", "j", "--json", stdin="hello")
    assert (done.code, done.err, done.document["event"]) == (0, "", "accepted")
    assert shell.spawn("get", "mail", "j", "--body").out == "hello"
    refused = shell.spawn("delete", "mail", "other")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == "duetime: there is no job 'other' in default/mail\n"


@pytest.mark.parametrize(("command", "extra"), [("top", "cli"), ("serve", "server")])
def test_without_the_extra_the_error_says_what_to_install(command: str, extra: str) -> None:
    """As after `pip install duetime`, which is the SDK alone."""
    without = (
        "import sys; sys.modules['typer'] = None; sys.argv = ['duetime', sys.argv[1]]; "
        "import duetime.cli.main as m; m.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", without, command], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    install = f"pip install 'duetime[{extra}]', or with uv: uvx 'duetime[{extra}]'"
    assert done.stderr == f"duetime: commands need the package typer: {install}\n"


@pytest.mark.parametrize(
    ("code", "word", "arguments"),
    [
        (1, "job_not_found", ["get", "mail", "nothing"]),
        (2, "usage", ["push"]),
        (2, "usage", ["nonsense"]),
        (2, "usage", ["push", "mail", "x", "--nonsense"]),
        (2, "usage", ["push", "mail", "x", "--tries", "many"]),
        (2, "invalid_name", ["push", "no queue", "x"]),
        (2, "invalid_request", ["ack", "not-a-lease"]),
        (2, "invalid_time", ["push", "mail", "x", "--delay", ""]),
        (2, "invalid_time", ["failed", "retry", "mail", "--after", "abc"]),
        (2, "invalid_time", ["failed", "retry", "mail", "--before", "2030-13-01T00:00:00Z"]),
        (2, "invalid_id", ["batch", "show", ""]),
        (2, "invalid_id", ["schedule", "add", "", "--queue", "q", "--every", "1h"]),
        (2, "invalid_request", ["worker", "pause-task", ""]),
        (2, "invalid_request", ["topic", "add", "mail", "http://a.example/", "--set", "colour=red"]),
        (2, "invalid_request", ["alert", "mail-server", "--host", "h", "--from", "nobody"]),
        (2, "invalid_request", ["alert", "mail-server", "--host", "a b", "--from", "a@b.de"]),
        (2, "invalid_request", ["alert", "mail-server", "--host", "h", "--from", "a@b.de", "--port", "65536"]),
        (2, "invalid_settings", ["queue", "list", "--url", "nonsense://x"]),
        (2, "invalid_settings", ["queue", "list", "--url", "localhost:7777"]),
        (2, "invalid_settings", ["queue", "list", "--url", "sqlite"]),
        (3, "store_unavailable", ["queue", "list", "--url", "http://127.0.0.1:9"]),
        (3, "store_unavailable", ["queue", "list", "--url", "HTTP://127.0.0.1:9"]),
        (3, "store_unavailable", ["push", "mail", "x", "--url", "sqlite:///nowhere/at/all.db"]),
    ],
)
def test_an_error_is_one_line_and_a_code(shell: Shell, code: int, word: str, arguments: list[str]) -> None:
    shell.ok("push", "mail", "x")
    ran = shell.run(*arguments, "--json")
    assert (ran.code, ran.out, ran.error["code"]) == (code, "", word)
    text = shell.run(*arguments)
    assert text.code == code
    assert text.err.startswith("duetime: ")
    assert text.err.count("\n") == 1


def test_a_bug_is_one_line_too(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime.client.connect", lambda *_, **__: 1 / 0)
    ran = shell.run("push", "mail", "x", "--json")
    assert (ran.code, ran.out) == (5, "")
    assert ran.error["message"] == "a bug in Duetime: ZeroDivisionError: division by zero"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_an_encoding_lacks_are_escaped(shell: Shell, encoding: str) -> None:
    shell.ok("push", "mail", "grüße 中文 😀", "--id", "jöb")
    ran = shell.spawn("list", "mail", "--json", PYTHONIOENCODING=encoding)  # JSON is UTF-8 everywhere
    assert (ran.code, ran.document["body"]) == (0, "grüße 中文 😀")
    done = subprocess.run(
        [*program(), "list", "mail"],
        env=shell.environment(PYTHONIOENCODING=encoding),
        cwd=shell.folder,
        capture_output=True,
        encoding=encoding,
        check=True,
    )
    assert r"\u4e2d\u6587 \ud83d\ude00" in done.stdout
    assert shell.spawn("get", "mail", "nö", PYTHONIOENCODING="ascii").err == (
        "duetime: there is no job 'n\\u00f6' in default/mail\n"
    )


@pytest.mark.parametrize(
    ("closed", "code"), [("<&-", 0), (">&-", 0), ("2>&-", 0), ("<&- >&- 2>&-", 0), (">/dev/full", 1)]
)
def test_a_closed_or_full_stream_is_no_crash(shell: Shell, closed: str, code: int) -> None:
    command = f"exec {shlex.join([*program(), 'push', 'mail', 'x'])} {closed}"
    done = subprocess.run(
        command, shell=True, env=shell.environment(), cwd=shell.folder, capture_output=True, text=True, check=False
    )
    full = "duetime: No space left on device\n" if code else ""
    assert (done.returncode, done.stderr) == (code, full)
    assert shell.json("list", "mail")[0]["body"] == "x"


def test_a_pipeline_without_spark_says_what_to_install(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    for module in [name for name in sys.modules if name.startswith(("pyspark.", "duetime.spark", "duetime.cli.pipe"))]:
        monkeypatch.delitem(sys.modules, module)
    ran = shell.run("pipeline", "audit", "--journal", "here")
    assert (ran.code, ran.out) == (2, "")
    assert "pip install 'duetime[spark]'" in ran.err


def test_a_password_is_not_repeated(shell: Shell) -> None:
    ran = shell.run("queue", "list", "--url", "nonsense://me:geheim@host")
    assert "geheim" not in ran.err
    ran = shell.run("token", "list", "--url", "http://me:geheim@127.0.0.1:9")
    assert (ran.code, "geheim" in ran.err) == (3, False)


def test_global_options_before_or_after_the_command_win_over_the_environment(shell: Shell) -> None:
    shell.ok("push", "mail", "x", "--namespace", "shop")
    assert shell.json("--namespace", "shop", "queue", "counts")[0]["namespace"] == "shop"
    assert shell.ok("--json", "queue", "counts", DUETIME_NAMESPACE="shop").document["ready"] == 1
    elsewhere = shell.ok("--namespace", "shop", "queue", "counts", "--namespace", "other", DUETIME_NAMESPACE="shop")
    assert "mail" not in elsewhere.out


def test_json_holds_for_every_command(shell: Shell) -> None:
    assert shell.json("version")[0].keys() == {"version"}
    assert shell.ok("--version").out == shell.ok("version").out == f"{shell.json('version')[0]['version']}\n"
    assert shell.ok("--json", "version").document == shell.json("version")[0]
    assert shell.json("config")[0]["settings"]["port"]["value"] == "7777"


def test_without_a_url_the_local_server_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime.cli.options.DEFAULT_URL", "http://127.0.0.1:9")
    ran = Shell("", tmp_path).run("push", "mail", "x", "--json")
    assert (ran.code, ran.error["fields"]) == (3, {"unknown": False})
    assert ran.error["message"].endswith(
        "(http://127.0.0.1:9; start one with `duetime serve --dev`, or name yours with --url or DUETIME_URL)"
    )


def test_a_url_without_a_scheme_gets_a_hint(shell: Shell) -> None:
    ran = shell.run("push", "mail", "x", "--url", "localhost:7777")
    assert ran.err == "duetime: localhost:7777 has no scheme: did you mean http://localhost:7777?\n"
    for command in (["topic", "list"], ["token", "list"], ["queue", "list"]):
        assert "did you mean http://" in shell.run(*command, "--url", "localhost:7777").err, command


MORE_OPTIONS = {
    "work": 21,
    "serve": 9,
    "topic edit": 9,
    "pipeline schedule": 20,
    "pipeline run": 12,
    "schedule add": 13,
}
"""Exceptions by name. The options of `work` are Laravel's, which people know; `topic edit` can change all that
`topic add` sets; a table is described by its options alone; `pipeline run` does the work of five commands.
"""
OF_ALL_PIPELINES = {"--conf", "--driver-memory", "--lake", "--master", "--remote"}
"""As global to pipelines as --url is to the others."""


def test_every_command_has_help_with_an_example_and_at_most_eight_options(shell: Shell) -> None:
    for command in all_commands():
        ran = shell.ok(*command, "--help", COLUMNS="200")
        assert "Examples:" in ran.out or "Arguments" not in ran.out, command
        own = ran.out.split("Global options")[0]
        options = set(re.findall(r"^│ [* ]*(--[a-z-]+)", own, flags=re.MULTILINE)) - {"--help"}
        if command[0] == "pipeline":
            options -= OF_ALL_PIPELINES
        assert len(options) <= MORE_OPTIONS.get(" ".join(command), 8), (command, options)


def all_commands() -> list[list[str]]:
    import typer

    from duetime.cli.program import app

    root = typer.main.get_command(app)
    found: list[list[str]] = []
    for name, command in root.commands.items():
        children = getattr(command, "commands", None)
        found += [[name, child] for child in children] if children else [[name]]
    return found


def test_a_shell_can_complete_commands(shell: Shell) -> None:
    ran = shell.spawn(_DUETIME_COMPLETE="complete_bash", COMP_WORDS="duetime re", COMP_CWORD="1")
    assert {"reserve", "release", "reschedule"} <= set(ran.out.split())


def test_a_question_is_asked_on_a_terminal(shell: Shell) -> None:
    shell.ok("push", "mail", "x")
    assert "Nothing was changed" in answer(shell, "n", "queue", "purge", "mail")
    assert shell.json("queue", "counts", "mail")[0]["ready"] == 1
    assert "Delete 0 running, 1 ready, 0 delayed, 0 failed jobs" in answer(shell, "y", "queue", "purge", "mail")
    assert shell.json("queue", "counts", "mail")[0]["ready"] == 0


def answer(shell: Shell, word: str, *arguments: str) -> str:
    """What a terminal shows when its user types a word."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*program(), *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=shell.environment(), cwd=shell.folder
    )
    os.close(theirs)
    os.write(ours, f"{word}\n".encode())
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:
        pass  # how Linux says that the other side has gone
    os.close(ours)
    process.wait(20)
    return shown.decode()


def test_a_reader_that_has_seen_enough_is_no_error(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "jobs.jsonl").write_text('{"body": "' + "x" * 500 + '"}\n' * 1 + '{"body": "y"}\n' * 500)
    shell.ok("push", "mail", "--file", "jobs.jsonl")
    script = f"{' '.join(program())} list mail --limit 0 --json | head -1"
    ran = subprocess.run(["sh", "-c", script], env=shell.environment(), capture_output=True, timeout=120, check=True)
    assert ran.stdout.count(b"\n") == 1
    assert b"Traceback" not in ran.stderr


@pytest.mark.parametrize("name", ["ingest", "lifecycle", "stats", "report", "vacuum", "package", "demo"])
def test_a_command_without_a_store_has_no_options_for_one(name: str, shell: Shell) -> None:
    shown = shell.ok("pipeline", name, "--help", COLUMNS="1000").out
    assert "--json" in shown
    assert not {"--url", "--namespace", "--token"} & set(re.findall(r"--[a-z-]+", shown))


def test_a_command_without_a_store_obeys_options_before_it(shell: Shell) -> None:
    made = shell.ok("--json", "--url", "http://nowhere", "pipeline", "package", "duetime.zip").document
    assert made["file"] == "duetime.zip"


@pytest.mark.parametrize("name", ["audit", "reconcile", "run"])
def test_a_pipeline_that_compares_says_that_it_means_all_namespaces(name: str, shell: Shell) -> None:
    shown = shell.ok("pipeline", name, "--help", COLUMNS="1000").out
    [line] = [line for line in shown.splitlines() if "--namespace" in line]
    assert "all namespaces of the pool" in line
    assert "default" not in line


@pytest.mark.parametrize(("url", "write"), [("sqlite", "sqlite:jobs.db"), ("memory", "memory:"), ("redis", "redis://")])
def test_a_scheme_alone_is_no_store(shell: Shell, url: str, write: str) -> None:
    ran = shell.run("queue", "list", "--url", url)

    assert (ran.code, list(shell.folder.glob(url))) == (2, [])
    assert f"got '{url}': write {write}" in ran.err


def test_the_address_of_a_server_is_named_only_if_no_server_answered(shell: Shell) -> None:
    silent = shell.run("queue", "list", "--url", "http://127.0.0.1:9")
    redis = shell.run("queue", "list", "--url", "redis://127.0.0.1:9")

    assert "(http://127.0.0.1:9)" in silent.err
    assert "http" not in redis.err
    answered = StoreUnavailable("Redis cannot be reached: connection refused")
    assert located(answered, Target()) is answered


def test_the_help_of_a_flag_names_no_type(shell: Shell) -> None:
    for command in (["get"], ["work"], ["queue", "purge"], []):
        assert "bool" not in shell.ok(*command, "--help").out


def test_an_unknown_option_leads_to_the_field_and_not_to_the_help(shell: Shell) -> None:
    ran = shell.run("topic", "add", "mail", "http://127.0.0.1:9/", "--schedule", "10s")

    assert ran.code == 2
    assert "Possible options: --help" not in ran.err
    assert "--set schedule=VALUE" in ran.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["push", "mail", "x", "--tries", "x"], "'--tries': must be a whole number; `duetime push --help`"),
        (["push", "mail", "x", "--tries", "-1"], "'--tries': must be at least 0; `duetime push --help`"),
        (
            ["list", "mail", "--state", "redy"],
            "'--state': 'redy' is not one of 'running', 'ready', 'delayed', 'failed';",
        ),
    ],
)
def test_a_wrong_value_is_refused_in_plain_words(shell: Shell, arguments: list[str], says: str) -> None:
    refused = shell.run(*arguments)
    assert refused.code == 2
    assert says in refused.err


def test_the_states_of_the_api_are_options_too(shell: Shell) -> None:
    shell.ok("push", "mail", "x", "--id", "a")
    shell.ok("reserve", "mail")
    for word in ("leased", "running"):
        [job] = shell.ok("list", "mail", "--state", word, "--json").documents
        assert (job["id"], job["state"]) == ("a", "leased")

"""A command starts fast because it imports only what it needs, and so do a completion and a server."""

import json
import subprocess
import sys

import pytest

from tests.e2e.conftest import Serve
from tests.e2e.shell import Shell

SLOW = {"asyncio", "duetime.engine", "httpx", "pydantic", "rich", "uvloop"}
"""Each takes longer to import than a command should take."""

LOADED = """
import json, sys
sys.argv[0] = "duetime"
from duetime.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps(sorted(sys.modules)))
"""


def loaded(shell: Shell, *arguments: str, **environment: str) -> set[str]:
    """What a command has imported at its end."""
    ran = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments],
        env=shell.environment(**environment),
        cwd=shell.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(json.loads(ran.stdout.splitlines()[-1]))


@pytest.mark.parametrize("word", ["version", "--version"])
def test_the_version_needs_neither_parser_nor_client(shell: Shell, word: str) -> None:
    assert not loaded(shell, word) & {*SLOW, "msgspec", "typer", "duetime.client"}


def test_a_push_to_a_server_imports_what_it_needs(shell: Shell, serve: Serve) -> None:
    server = serve("--dev")
    modules = loaded(shell, "push", "mail", "hello", "--url", server.api, "--delay", "1h", "--tries", "3")
    assert "duetime.client.sync_http" in modules
    assert not modules & SLOW
    assert shell.json("queue", "counts", "mail")[0]["delayed"] == 1


SERVED = """
import json, sys
from duetime.model.settings import load
from duetime.server.listeners import bind_all
from duetime.server.process import LISTENERS, run, serve
from duetime.server.supervision.siblings import Alone
from duetime.server.supervision.program import Orders

settings = load(flags={"store": "sqlite:jobs.db", "port": 0, "admin_port": 0}, environment={}, file={})


async def main():
    orders = Orders()

    def ready(runtime):
        print(json.dumps(sorted(sys.modules)))
        orders.stop.set()

    await serve(settings, bind_all(LISTENERS, settings), orders, siblings=Alone(), ready=ready)


run(main())
"""
LATER = {
    "aiohttp": "with the first topic",
    "apprise": "with the first alert that is sent",
    "argon2": "with the first password",
    "duetime.console.app": "with the first page",
    "duetime.protocols.ouqiang": "where it is switched on",
    "duetime.protocols.tcp": "where it is switched on",
    "duetime.stores.redis": "where a pool uses it",
    "httpx": "never",
    "jinja2": "with the first page",
    "opentelemetry": "with tracing",
    "rich": "never: it is the command's",
    "typer": "never: it is the command's",
}
"""When a server imports what its start would only be slower for. A server that was killed must be back soon."""


def test_a_server_is_ready_before_it_imports_what_it_may_never_need(shell: Shell) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SERVED], cwd=shell.folder, capture_output=True, text=True, timeout=120, check=True
    )
    modules = set(json.loads(ran.stdout.splitlines()[-1]))
    assert "duetime.protocols.v1.routes" in modules
    assert not modules & set(LATER)


def test_importing_the_package_imports_no_part_of_it() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "import sys, duetime; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    assert [name for name in ran.stdout.split() if name.startswith("duetime.")] == []
    assert not {*ran.stdout.split()} & {*SLOW, "msgspec"}


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_completing_the_name_of_a_command_imports_no_command(shell: Shell, shell_name: str) -> None:
    asked = {"COMP_WORDS": "duetime queue p", "COMP_CWORD": "2", "_TYPER_COMPLETE_ARGS": "duetime queue p"}
    fish = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    modules = loaded(shell, _DUETIME_COMPLETE=f"complete_{shell_name}", **asked, **fish)
    assert not modules & {*SLOW, "duetime.client", "duetime.cli.queues"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("duetime re", {"reserve", "release", "reschedule", "restore"}),
        ("duetime --url http://x re", {"reserve", "release", "reschedule", "restore"}),
        ("duetime queue p", {"pause", "purge"}),
        ("duetime fai", {"failed"}),
        ("duetime push mail --pri", {"--priority"}),
        ("duetime push mail --priority ", {"high", "normal", "low"}),
        ("duetime push mail --priority h", {"high"}),
        ("duetime push mail --id x --i", {"--if-exists"}),
        ("duetime list mail --state ru", {"running"}),
        ("duetime push mail --ur", {"--url"}),
        ("duetime pipeline stats --ur", set[str]()),
        ("duetime --url http://x pipeline stats --js", {"--json"}),
        ("duetime push ", set[str]()),
        ("duetime push 'an open quote ", set[str]()),
    ],
)
def test_what_may_follow(line: str, expected: set[str], shell: Shell) -> None:
    ran = shell.run(
        _DUETIME_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="get-args", _TYPER_COMPLETE_ARGS=line
    )
    assert {shown.partition("\t")[0] for shown in ran.out.split("\n") if shown} == expected


def test_each_shell_is_answered_in_its_form(shell: Shell) -> None:
    words = {"_TYPER_COMPLETE_ARGS": "duetime queue pa"}
    assert shell.run(_DUETIME_COMPLETE="complete_zsh", **words).out == (
        """_arguments '*: :(("pause":"Stop deliveries; pushes, acks and expiry continue."))'\n"""
    )
    assert shell.run(_DUETIME_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="duetime push x ").out == "_files\n"
    assert shell.run(_DUETIME_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="is-args", **words).code == 0
    none = {"_TYPER_COMPLETE_ARGS": "duetime push x "}
    assert shell.run(_DUETIME_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="is-args", **none).code == 1
    word = {"_TYPER_COMPLETE_WORD_TO_COMPLETE": "pa"}
    shown = shell.run(_DUETIME_COMPLETE="complete_powershell", **words, **word).out
    assert shown == "pause:::Stop deliveries; pushes, acks and expiry continue.\n"


def test_the_script_for_a_shell_is_still_typers(shell: Shell) -> None:
    assert "_DUETIME_COMPLETE=complete_bash" in shell.run(_DUETIME_COMPLETE="source_bash").out


def test_a_long_help_text_stays_on_the_line_of_its_option(shell: Shell) -> None:
    asked = {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": "duetime push --"}
    shown = shell.run(_DUETIME_COMPLETE="complete_fish", **asked, COLUMNS="40").out.splitlines()
    assert len(shown) > 10
    assert [line for line in shown if not line.startswith("--")] == []


def test_help_of_a_group_imports_none_of_its_commands(shell: Shell) -> None:
    modules = loaded(shell, "--help")
    assert not modules & {"duetime.cli.push", "duetime.cli.topic", "duetime.cli.pipelines.schedule", "httpx"}
    assert "Retry failed jobs" in shell.ok("failed", "-h").out
    assert "Failed jobs (dead letters)" in shell.ok("-h").out

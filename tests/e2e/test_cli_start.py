"""A command answers at once: it imports what it needs and nothing else, and Tab is answered from an index."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import typer

from duetime.cli.completion import INDEX, IndexedCommand, complete, read_index
from duetime.cli.program import app
from duetime.cli.reference import write_index
from tests.e2e.conftest import Addresses
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


def test_a_push_to_a_server_imports_what_it_needs(shell: Shell, serve: Callable[..., Addresses]) -> None:
    server = serve("--dev")
    modules = loaded(shell, "push", "mail", "hello", "--url", server.api, "--delay", "1h", "--tries", "3")
    assert "duetime.client.sync_http" in modules
    assert not modules & SLOW
    assert shell.json("queue", "counts", "mail")[0]["delayed"] == 1


def test_importing_the_package_imports_no_part_of_it() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "import sys, duetime; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    assert [name for name in ran.stdout.split() if name.startswith("duetime.")] == []
    assert not {*ran.stdout.split()} & {*SLOW, "msgspec"}


def test_tab_needs_the_index_only(shell: Shell) -> None:
    asked = {"_DUETIME_COMPLETE": "complete_bash", "COMP_WORDS": "duetime re", "COMP_CWORD": "1"}
    assert not loaded(shell, **asked) & {*SLOW, "msgspec", "typer", "duetime.client"}


def test_the_index_is_up_to_date() -> None:
    assert INDEX.read_text() == write_index(), "run: python -m duetime.cli.reference"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("duetime re", {"reserve", "release", "reschedule", "recurring", "restore"}),
        ("duetime --url http://x re", {"reserve", "release", "reschedule", "recurring", "restore"}),
        ("duetime queue p", {"pause", "purge"}),
        ("duetime fai", set[str]()),
        ("duetime push mail --pri", {"--priority"}),
        ("duetime push mail --priority ", {"high", "normal", "low"}),
        ("duetime push mail --priority h", {"high"}),
        ("duetime push mail --id x --i", {"--if-exists"}),
        ("duetime list mail --state l", {"leased"}),
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
        """_arguments '*: :(("pause":"Stop deliveries; pushes, acks and expiry go on."))'\n"""
    )
    assert shell.run(_DUETIME_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="duetime push x ").out == "_files\n"
    assert shell.run(_DUETIME_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="is-args", **words).code == 0
    none = {"_TYPER_COMPLETE_ARGS": "duetime push x "}
    assert shell.run(_DUETIME_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="is-args", **none).code == 1
    word = {"_TYPER_COMPLETE_WORD_TO_COMPLETE": "pa"}
    shown = shell.run(_DUETIME_COMPLETE="complete_powershell", **words, **word).out
    assert shown == "pause:::Stop deliveries; pushes, acks and expiry go on.\n"


def test_the_script_for_a_shell_is_still_typers(shell: Shell) -> None:
    assert "_DUETIME_COMPLETE=complete_bash" in shell.run(_DUETIME_COMPLETE="source_bash").out


def test_every_command_and_option_can_be_completed() -> None:
    def names(node: IndexedCommand, command: Any) -> None:
        children = getattr(command, "commands", {})
        assert set(node.commands) == set(children)
        for name, child in children.items():
            names(node.commands[name], child)
            shown = {choice.word for choice in complete(node.commands[name], [], "-")}
            own = {
                one
                for param in child.params
                if param.param_type_name == "option" and getattr(param, "rich_help_panel", None) != "Global options"
                for one in param.opts
            }
            assert shown >= own

    names(read_index(), typer.main.get_command(app))


def test_help_of_a_group_imports_none_of_its_commands(shell: Shell) -> None:
    modules = loaded(shell, "--help")
    assert not modules & {"duetime.cli.push", "duetime.cli.topic", "duetime.cli.pipelines.schedule", "httpx"}
    assert "Bring dead jobs back" in shell.ok("dead", "-h").out
    assert "Dead letters: look at them" in shell.ok("-h").out
    assert "failed" not in shell.ok("-h").out

"""docs/cli.md says what `--help` says."""

import re
from pathlib import Path

from tests.e2e.shell import Shell
from tools.cli_reference import renew_all

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == renew_all(page), "run: python tools/cli_reference.py"


def test_the_reference_matches_the_help(shell: Shell) -> None:
    page = PAGE.read_text()
    for section in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        command, _, rest = section.partition("\n")
        shown = shell.ok(*command.split()[1:], "--help", COLUMNS="1000").out
        assert f"Usage: {command} " in shown
        for option in re.findall(r"^\| `(--[a-z-]+)", rest, flags=re.MULTILINE):
            assert option in shown, (command, option)
        for option in re.findall(r"^│ [* ]*(--[a-z-]+)", shown.split("Global options")[0], flags=re.MULTILINE):
            assert option in rest or option == "--help", (command, option)


def test_the_examples_are_commands_that_exist() -> None:
    page = PAGE.read_text()
    known = set(re.findall(r"^### (.+)$", page, flags=re.MULTILINE))
    nouns = {name.split()[1] for name in known if len(name.split()) == 3}
    examples = "\n".join(re.findall(r"```sh\n(.*?)```", page, re.S))
    used = re.findall(rf"(?<!/)\b(duetime (?:(?:{'|'.join(sorted(nouns))}) )?[a-z][a-z-]*)", examples)
    assert used
    assert set(used) <= known

"""Every command that a page names exists, with its options."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from duetime.cli.program import app
from tests.docs.pages import PAGES, name_of

WRITTEN = [page for page in PAGES if page.name != "cli.md"]  # that one is generated from the commands
PROGRAM: Any = typer.main.get_command(app)
EXAMPLES = re.compile(r"(?<![\w/.@-])(?:\.venv/bin/)?duetime ((?:[a-z-]+ ?)[^`|;&#\n]*)")


def commands(text: str) -> Iterator[str]:
    """What follows `duetime` in blocks of shell code and between backticks."""
    joined = text.replace("\\\n", " ")
    for block in re.findall(r"```(?:sh|bash|shell)\n(.*?)```", joined, re.DOTALL):
        yield from EXAMPLES.findall(block)
    for inline in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", joined, flags=re.DOTALL)):
        yield from EXAMPLES.findall(inline)


def problems(example: str) -> Iterator[str]:
    command, words = PROGRAM, example.split()
    while words and hasattr(command, "commands"):
        found = command.commands.get(words[0])
        if found is None:
            if not words[0].startswith(("-", ".", "<", "NAME")):
                yield f"there is no command {words[0]!r}"
            return
        command = found
        words = words[1:]
    known = {option for owner in (PROGRAM, command) for parameter in owner.params for option in parameter.opts}
    known |= {option for parameter in command.params for option in parameter.secondary_opts} | {"--help"}
    for word in words:
        option = word.partition("=")[0].strip("[](),.")
        if option.startswith("--") and option not in known:
            yield f"there is no option {option!r}"


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_every_command_exists(page: Path) -> None:
    assert [(example, problem) for example in commands(page.read_text()) for problem in problems(example)] == []


def test_a_command_that_does_not_exist_would_be_found() -> None:
    [example] = commands("`duetime queues list`")
    assert list(problems(example)) == ["there is no command 'queues'"]
    assert list(problems("push mail --dely 1s")) == ["there is no option '--dely'"]

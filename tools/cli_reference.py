"""The reference of all commands as Markdown, written from the commands themselves.

`python tools/cli_reference.py` renews the marked parts of docs/cli.md; a test fails while they differ, so what the
page says is what `--help` says.
"""

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from duetime.cli import main
from duetime.cli.options import GLOBAL_PANEL
from duetime.cli.program import app

PAGE = Path("docs/cli.md")
LINE = 119


def write_reference() -> str:
    """One section per command, in the order of `duetime --help`."""
    root: Any = typer.main.get_command(app)
    return "\n".join(line for command in _walk(root, "duetime", None) for line in command)


def write_exit_codes(table: str) -> str:
    """The table in the docstring of `main.py`."""
    rows = re.findall(r"^ +(\d+)  (.+)$", table, re.MULTILINE)
    return "\n".join(["| code | means |", "|---|---|", *(f"| {code} | {meaning} |" for code, meaning in rows)])


def renew(page: str, name: str, text: str) -> str:
    """The page with the text between its marks."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n\n{text.strip()}\n\n{end}{tail}"


def renew_all(page: str) -> str:
    page = renew(page, "exit codes", write_exit_codes(main.__doc__ or ""))
    return renew(page, "commands", write_reference())


def _walk(command: Any, path: str, parent: Any) -> Iterator[Iterator[str]]:
    context = command.make_context(path, [], parent=parent, resilient_parsing=True)
    children: dict[str, Any] = getattr(command, "commands", {})
    if not children:
        yield _section(command, path, context)
    for name, child in children.items():
        if not child.hidden:
            yield from _walk(child, f"{path} {name}", None)


def _section(command: Any, path: str, context: Any) -> Iterator[str]:
    usage = re.sub(r"[{}]", "", " ".join(part for part in command.collect_usage_pieces(context) if part))
    yield f"### {path}\n"
    yield f"    {path} {usage}\n"
    yield f"{textwrap.fill(_plain(command.help or ''), LINE, break_on_hyphens=False)}\n"
    rows = [
        param
        for param in command.params
        if not param.hidden
        and getattr(param, "rich_help_panel", None) != GLOBAL_PANEL
        and param.name not in ("help", "context")
    ]
    rows.sort(key=lambda param: param.param_type_name != "argument")
    if rows:
        yield "| argument or option | meaning |\n|---|---|"
        yield from (_row(param, context) for param in rows)
        yield ""
    if command.epilog:
        _, *examples = str(command.epilog).splitlines()
        yield from ("```sh", *(line.strip().replace("\\[", "[") for line in examples), "```\n")


def _row(param: Any, context: Any) -> str:
    names, meaning = param.get_help_record(context)
    # Whether it is a str or a list of them says nothing that the usage line does not say better.
    name = re.sub(r" <(str|list\[str\])>$", "", names.strip()).replace("|", "\\|")
    return f"| `{name}` | {_plain(meaning)} |"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(renew_all(PAGE.read_text()))
    sys.stdout.write(f"{PAGE} is up to date\n")

"""The reference of all commands as Markdown, and the index that completes them, drawn from the commands themselves.

`python -m duetime.cli.reference` renews the marked parts of docs/cli.md and `command_index.json`; a test fails while
they differ, so what the page says is what `--help` says, and what a shell completes.
"""

import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from duetime.cli import main
from duetime.cli.completion import INDEX
from duetime.cli.options import GLOBAL_PANEL, Target
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


def write_index() -> str:
    """Names, options and first sentences of all commands, as `completion.py` reads them."""
    root: Any = typer.main.get_command(app)
    return json.dumps(_indexed(root), indent=1, ensure_ascii=False, sort_keys=False) + "\n"


def _indexed(command: Any) -> dict[str, Any]:
    context = command.make_context(command.name, [], resilient_parsing=True)
    children = {name: _indexed(child) for name, child in getattr(command, "commands", {}).items()}
    taken = {param.name for param in command.params}
    lacks = [] if children else [f"--{name}" for name in Target.__dataclass_fields__ if name not in taken]
    return {
        "help": _first_sentence(command.help or ""),
        **({"hidden": True} if command.hidden else {}),
        **({"lacks": lacks} if lacks else {}),
        "options": {
            name: _indexed_option(param, context)
            for param in command.params
            if param.param_type_name == "option" and not param.hidden and _is_own(param, command)
            for name in (*param.opts, *param.secondary_opts)
        },
        **({"commands": children} if children else {}),
    }


def _indexed_option(param: Any, context: Any) -> dict[str, Any]:
    words = [item.value for item in param.shell_complete(context, "") if item.type == "plain"]
    is_flag = param.is_flag or param.count
    return {
        "help": _first_sentence(param.help or ""),
        **({} if is_flag else {"takes_value": True}),
        **({"words": words} if words else {}),
        **({"everywhere": True} if param.name in Target.__dataclass_fields__ else {}),
    }


def _is_own(param: Any, command: Any) -> bool:
    """Whether an option is not one of those that hold for all commands, or this is the program itself."""
    return command.name == "duetime" or getattr(param, "rich_help_panel", None) != GLOBAL_PANEL


def _first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split())


if __name__ == "__main__":
    INDEX.write_text(write_index())
    PAGE.write_text(renew_all(PAGE.read_text()))
    sys.stdout.write(f"{PAGE} is up to date\n")

"""What a shell shows when its user presses Tab, from an index that is written beforehand.

The index (`command_index.json`) is drawn from the commands by `python -m duetime.cli.reference`, and a test fails while
it differs from them. The scripts that `--install-completion` puts into bash, zsh, fish and PowerShell call this program
with the words so far in the environment; each wants the answer in a form of its own.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

VARIABLE = "_DUETIME_COMPLETE"
INDEX = Path(__file__).with_name("command_index.json")


class Choice(NamedTuple):
    word: str
    help: str = ""


@dataclass(frozen=True)
class IndexedOption:
    """`words` are what its value may be; none: any, or it has no value. `everywhere`: it may follow any command that
    does not lack it.
    """

    help: str
    takes_value: bool = False
    words: tuple[str, ...] = ()
    everywhere: bool = False


@dataclass(frozen=True)
class IndexedCommand:
    """`lacks` are the options of nearly every command that this one does not take."""

    help: str = ""
    hidden: bool = False
    options: dict[str, IndexedOption] = field(default_factory=dict[str, IndexedOption])
    commands: "dict[str, IndexedCommand]" = field(default_factory=lambda: {})
    lacks: tuple[str, ...] = ()

    def under(self, path: tuple[str, ...]) -> "IndexedCommand":
        found = self
        for name in path:
            found = found.commands.get(name, IndexedCommand())
        return found


def read_index() -> IndexedCommand:
    return _read(json.loads(INDEX.read_bytes()))


def _read(node: Mapping[str, Any]) -> IndexedCommand:
    options = {
        name: IndexedOption(
            one["help"], one.get("takes_value", False), tuple(one.get("words", ())), one.get("everywhere", False)
        )
        for name, one in node.get("options", {}).items()
    }
    children = {name: _read(one) for name, one in node.get("commands", {}).items()}
    return IndexedCommand(node["help"], node.get("hidden", False), options, children, tuple(node.get("lacks", ())))


def complete(root: IndexedCommand, words: list[str], begun: str) -> Iterator[Choice]:
    """What may stand at the end of the words, of that which begins like the word that is begun."""
    command, options, wants = root, dict(root.options), None
    for word in words:
        if wants:
            wants = None
        elif word.startswith("-"):
            known = options.get(word)
            wants = known if known and known.takes_value else None
        elif word in command.commands:
            command = command.commands[word]
            shared = {name: one for name, one in options.items() if one.everywhere and name not in command.lacks}
            options = shared | command.options
    if wants:
        yield from (Choice(word) for word in wants.words if word.startswith(begun))
    elif begun.startswith("-"):
        yield from (
            Choice(name, one.help) for name, one in options.items() if name.startswith(begun) and name not in words
        )
    else:
        for name, child in command.commands.items():
            if name.startswith(begun) and not child.hidden:
                yield Choice(name, child.help)


def answer(environment: Mapping[str, str]) -> bool:
    """Writes the answer for the shell that asks. False: it asks for something else, such as its script."""
    shell = environment[VARIABLE].removeprefix("complete_")
    if shell not in ("bash", "zsh", "fish", "powershell", "pwsh") or shell == environment[VARIABLE]:
        return False
    found = list(complete(read_index(), *_words(shell, environment)))
    match shell:
        case "bash":
            text = "\n".join(choice.word for choice in found)
        case "zsh":
            lines = "\n".join(_zsh(choice) for choice in found)
            text = f"_arguments '*: :(({lines}))'" if found else "_files"
        case "fish" if environment.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
            sys.exit(0 if found else 1)
        case "fish":
            text = "\n".join(f"{choice.word}\t{choice.help}" if choice.help else choice.word for choice in found)
        case _:
            text = "\n".join(f"{choice.word}:::{choice.help or ' '}" for choice in found)
    sys.stdout.write(text + "\n")
    return True


def _words(shell: str, environment: Mapping[str, str]) -> tuple[list[str], str]:
    """The whole words after `duetime`, and the one that is begun."""
    if shell == "bash":
        words, number = _split(environment.get("COMP_WORDS", "")), int(environment.get("COMP_CWORD") or 0)
        return words[1:number], words[number] if number < len(words) else ""
    line = environment.get("_TYPER_COMPLETE_ARGS", "")
    words = _split(line)[1:]
    if shell in ("powershell", "pwsh"):
        begun = environment.get("_TYPER_COMPLETE_WORD_TO_COMPLETE", "")
        return words[:-1] if begun else words, begun
    if words and not line.endswith(" "):
        return words[:-1], words[-1]
    return words, ""


def _split(line: str) -> list[str]:
    """As a shell does; a quote that is still open ends with the line."""
    for ending in ("", "'", '"'):
        try:
            return shlex.split(line + ending)
        except ValueError:
            continue
    return line.split()


def _zsh(choice: Choice) -> str:
    word, help_text = (
        re.sub(r"([$`])", r"\\\1", text.replace('"', '""').replace("'", "''")).replace(":", r"\\:") for text in choice
    )
    return f'"{word}":"{help_text}"' if help_text else f'"{word}"'

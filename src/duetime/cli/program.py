"""The program behind `main.py`: a tree of commands that are imported when they are asked for, and how they end.

`commands.py` lists them. `command_index.json` knows the names, options and first sentences of all, written by
`python -m duetime.cli.reference`: the help of a group is shown without importing its commands.
"""

import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from importlib import import_module
from typing import Annotated, Any, NoReturn, get_type_hints

import msgspec
import typer
from typer.core import TyperCommand, TyperGroup

from duetime import __version__
from duetime.cli.commands import PANELS, Command, Noun
from duetime.cli.completion import IndexedCommand, read_index
from duetime.cli.options import GLOBAL_PANEL, Target
from duetime.cli.output import error_document, safe
from duetime.cli.quick_values import QuickCommand, quick_option, read_quickly
from duetime.errors import DuetimeError, Forbidden, InvalidRequest, InvalidSettings, Unauthorized
from duetime.masking import mask

EMPTY = inspect.Parameter.empty
JOURNAL_VARIABLE = "DUETIME_JOURNAL"
JournalFolder = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help=f"Where the journal of a command with a store URL goes, if the pool has one. {JOURNAL_VARIABLE}.",
        show_default=False,
        rich_help_panel=GLOBAL_PANEL,
    ),
]

Entries = dict[str, tuple[str, Command | Noun]]
"""By name: the panel that shows it, and what it is."""


class LazyCommands(MutableMapping[str, Any]):
    """The commands of a group; one is imported when it is first looked up."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            panel, entry = self._entries[name]
            self._made[name] = _make_command(entry, panel) if isinstance(entry, Command) else _make_group(entry, panel)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def outlines(self, index: dict[str, IndexedCommand]) -> dict[str, Any]:
        """Commands without anything behind them, for a list of them."""
        return {
            name: TyperCommand(
                name,
                help=index[name].help if name in index else "",
                rich_help_panel=panel,
                hidden=isinstance(entry, Noun) and entry.hidden,
            )
            for name, (panel, entry) in self._entries.items()
        }


class LazyGroup(TyperGroup):
    """A group of such commands. Its help needs their names and first sentences only."""

    path: tuple[str, ...] = ()

    def get_help_option(self, ctx: Any) -> Any:
        return quick_option(super().get_help_option(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        lazy = self.commands
        if isinstance(lazy, LazyCommands):
            self.commands = lazy.outlines(read_index().under(self.path).commands)
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = lazy


class Root(LazyGroup):
    def __init__(self, **attributes: Any) -> None:
        entries = {entry.name: (panel, entry) for panel, some in PANELS.items() for entry in some}
        super().__init__(**attributes)
        self.commands = LazyCommands(entries)


def _make_group(noun: Noun, panel: str) -> LazyGroup:
    group = LazyGroup(
        name=noun.name, help=noun.summary, no_args_is_help=True, hidden=noun.hidden, rich_help_panel=panel
    )
    group.commands = LazyCommands({one.name: ("Commands", one) for one in noun.commands})
    group.path = (noun.name,)
    return group


def _make_command(command: Command, panel: str) -> Any:
    """With its examples below its help."""
    place, _, function = command.function.partition(":")
    module = import_module(f"duetime.cli.{place}")
    examples = command.examples or module.EXAMPLES
    lines = ["Examples:", *(f"  {line.replace('[', chr(92) + '[')}" for line in examples)]
    made = typer.Typer(add_completion=False)
    made.command(command.name, cls=QuickCommand, epilog="\n".join(lines), rich_help_panel=panel)(
        getattr(module, function)
    )
    return typer.main.get_command(made)


def root(context: typer.Context, journal: str | None = None, **options: Any) -> None:
    del options["version"]  # it has been answered
    context.obj = Target(**options)
    if journal:
        os.environ[JOURNAL_VARIABLE] = journal


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"{__version__}\n")
        raise typer.Exit


def _take_global_options(function: Callable[..., None]) -> None:
    """The options of `Target` may also stand before the command; one declaration serves both places."""
    hints: dict[str, Any] = {"context": typer.Context, **get_type_hints(Target, include_extras=True)}
    hints["version"] = Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, expose_value=False, help="Print the version."),
    ]
    hints["journal"] = JournalFolder
    defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Target)}
    defaults |= {"version": False, "journal": None}
    function.__annotations__ = hints
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=defaults.get(name, EMPTY))
            for name, hint in hints.items()
        ]
    )
    app.callback()(function)


app = typer.Typer(
    name="duetime",
    cls=Root,
    help="Duetime, a delayed job queue: push a job now, have it delivered when it is due.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_take_global_options(root)


def run() -> None:
    """Does what the command line says, and ends the process."""
    try:
        program: Any = typer.main.get_command(app)
        read_quickly(program.params)
        sys.exit(program(prog_name="duetime", standalone_mode=False))
    except DuetimeError as error:
        _end(error, exit_code(error))
    except typer.TyperException as error:
        _end(usage_error(error), 2)
    except typer.Abort:
        _end(Usage("aborted"), 1)
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        _end(DuetimeError(f"a bug in Duetime: {type(error).__name__}: {error}"), 5)


class Usage(InvalidRequest):
    """The command was not written as it must be."""

    code = "usage"


def usage_error(error: typer.TyperException) -> Usage:
    message = error.format_message().rstrip(".")
    if not message:  # no arguments at all: the help has been printed
        sys.exit(2)
    context: Any = getattr(error, "ctx", None)
    message = message.removesuffix(" (Possible options: --help)")
    unknown: str | None = getattr(error, "option_name", None) if hasattr(error, "possibilities") else None
    if unknown and any("--set" in param.opts for param in context.command.params):
        message = f"{message}; fields without an option are given as --set {unknown.lstrip('-')}=VALUE"
    return Usage(f"{message}; `{context.command_path} --help` shows how" if context else message)


def _end(error: DuetimeError, code: int) -> NoReturn:
    """The one line. What was typed and what a server said go without control characters and passwords."""
    if "--json" in sys.argv:
        line = msgspec.json.encode(error_document(error), enc_hook=str).decode()
    else:
        line = f"duetime: {' '.join(safe(error.message).split())}"
    sys.stderr.write(mask(line) + "\n")
    sys.exit(code)


def exit_code(error: DuetimeError) -> int:
    match error:
        case InvalidSettings() | InvalidRequest():
            return 2
        case Unauthorized() | Forbidden():
            return 4
        case _:
            return 3 if error.status >= 500 else 1

"""The program behind `main.py`: a tree of commands that are imported when they are asked for, and how they end.

`commands.py` lists them with the first sentences of their help, so that the help and the completion of a group import
none of its commands.
"""

import dataclasses
import inspect
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from typer import _completion_classes
from typer.core import TyperCommand, TyperGroup

from duetime import __version__
from duetime.cli.commands import PANELS, Command, Noun
from duetime.cli.options import GLOBAL_PANEL, Target
from duetime.cli.quick_values import quick_option, read_quickly
from duetime.model.errors import DuetimeError, Forbidden, InvalidRequest, InvalidSettings, Unauthorized

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


SPARK_PACKAGES = ("pyspark", "pandas", "pyarrow", "plotly")
"""What the extra `spark` installs and the pipelines import."""

LOADED = ("params", "callback", "help", "epilog")
"""The attributes of a command that need its module."""


class LazyCommand(TyperCommand):
    """A command that knows its name and first sentence. The rest is imported when it is first used."""

    def __init__(self, row: Command, panel: str) -> None:
        super().__init__(row.name, short_help=row.summary, rich_help_panel=panel)
        self._row = row
        for name in LOADED:
            delattr(self, name)

    def __getattr__(self, name: str) -> Any:
        """Loads the attributes that `__init__` removed."""
        if name not in LOADED:
            raise AttributeError(name)
        place, _, function = self._row.function.partition(":")
        module = import_module(f"duetime.cli.{place}")
        made: Any = typer.Typer(add_completion=False)
        made.command()(getattr(module, function))
        command: Any = typer.main.get_command(made)
        read_quickly(command.params)
        examples = (f"  {line.replace('[', chr(92) + '[')}" for line in self._row.examples or module.EXAMPLES)
        self.params, self.callback, self.help = command.params, command.callback, command.help
        self.epilog = "\n".join(["Examples:", *examples])
        return getattr(self, name)

    def get_help_option(self, ctx: Any) -> Any:
        return quick_option(super().get_help_option(ctx))


class Group(TyperGroup):
    """A noun of the table with its verbs."""

    def get_help_option(self, ctx: Any) -> Any:
        return quick_option(super().get_help_option(ctx))


class Root(Group):
    """The program: all rows of the table."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {row.name: _command(row, panel) for panel, rows in PANELS.items() for row in rows}


def _command(row: Command | Noun, panel: str) -> LazyCommand | Group:
    if isinstance(row, Command):
        return LazyCommand(row, panel)
    return Group(
        name=row.name,
        help=row.summary,
        short_help=row.summary,
        commands={verb.name: LazyCommand(verb, "Commands") for verb in row.commands},
        no_args_is_help=True,
        hidden=row.hidden,
        rich_help_panel=panel,
    )


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
    if "_DUETIME_COMPLETE" in os.environ:
        # Typer would render each help text with rich: slow to import, and it breaks long texts into several choices.
        setattr(_completion_classes, "_sanitize_help_text", str)  # noqa: B010 (private)
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
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in SPARK_PACKAGES:
            _end(InvalidSettings.lacks("this command", "spark", error), 2)
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
    import msgspec  # noqa: PLC0415 (a completion does not need these)

    from duetime.cli.output import error_document, safe  # noqa: PLC0415
    from duetime.model.masking import mask  # noqa: PLC0415

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

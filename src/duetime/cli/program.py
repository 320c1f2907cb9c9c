"""The program behind `main.py`: a tree of commands that are imported when they are used, and their exit codes.

`commands.py` lists the commands; the help and the completion of a group import none of them.
"""

import ast
import inspect
import os
import re
import sys
from collections.abc import Mapping
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import get_data
from typing import Annotated, Any, NoReturn, get_args, get_origin

import typer
from typer import _completion_classes
from typer.core import TyperCommand, TyperGroup

from duetime import __version__
from duetime.cli.commands import PANELS, Noun
from duetime.cli.options import GLOBAL_PANEL, Target, flag, option, takes_options
from duetime.model.errors import DuetimeError, Forbidden, InvalidRequest, InvalidSettings, Unauthorized

JOURNAL_VARIABLE = "DUETIME_JOURNAL"
SPARK_PACKAGES = ("pyspark", "pandas", "pyarrow", "plotly")
"""What the extra `spark` installs and the pipelines import."""
LOADED = ("params", "callback", "help", "epilog")
"""The attributes of a command that need its module."""


class LazyCommand(TyperCommand):
    """A command that knows its name and where its function is, which is imported when it is first used."""

    def __init__(self, name: str, function: str, panel: str) -> None:
        super().__init__(name, rich_help_panel=panel)
        self._place = function.split(":")
        for attribute in ("short_help", *LOADED):
            delattr(self, attribute)

    def __getattr__(self, name: str) -> Any:
        """Loads the attributes that `__init__` removed."""
        module, function = self._place
        if name == "short_help":
            self.short_help = first_sentences(module).get(function, "")
            return self.short_help
        if name not in LOADED:
            raise AttributeError(name)
        called = takes_options(getattr(import_module(f"duetime.cli.{module}"), function))
        app: Any = typer.Typer(add_completion=False)
        app.command()(called)
        command: Any = typer.main.get_command(app)
        self.params, self.callback = without_pydantic(command.params), command.callback
        self.help, _, examples = (inspect.getdoc(called) or "").partition("\n\nExamples:\n")
        shown = (f"  {line.strip()}".replace("[", r"\[") for line in examples.splitlines())
        self.epilog = "\n".join(["Examples:", *shown]) if examples else None
        return getattr(self, name)

    def get_help_option(self, ctx: Any) -> Any:
        return without_pydantic([super().get_help_option(ctx)])[0]


class Group(TyperGroup):
    """A noun of the table with its verbs, or the whole program."""

    def get_help_option(self, ctx: Any) -> Any:
        return without_pydantic([super().get_help_option(ctx)])[0]


class Root(Group):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {
            name: _command(name, row, panel) for panel, rows in PANELS.items() for name, row in rows.items()
        }


def _command(name: str, row: str | Noun, panel: str) -> LazyCommand | Group:
    if isinstance(row, str):
        return LazyCommand(name, row, panel)
    return Group(
        name=name,
        help=row.summary,
        short_help=row.summary,
        commands={verb: LazyCommand(verb, function, "Commands") for verb, function in row.commands.items()},
        no_args_is_help=True,
        rich_help_panel=panel,
    )


@cache
def first_sentences(module: str) -> Mapping[str, str]:
    """The first sentence of the docstring of each function of a module of commands, which is read but not imported."""
    source = get_data("duetime.cli", f"{module.replace('.', '/')}.py")
    functions = [node for node in ast.parse(source or b"").body if isinstance(node, ast.FunctionDef)]
    texts = {node.name: ast.get_docstring(node) or "" for node in functions}
    return {name: " ".join(text.partition("\n\n")[0].split()) for name, text in texts.items()}


# --- Typer converts the texts of the command line with pydantic, whose import takes longer than a push


def without_pydantic(parameters: list[Any]) -> list[Any]:
    """The same parameters; plain types are converted here."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.display_type_rich = _no_type
        if hasattr(parameter, "type_descriptor"):
            parameter.get_runtime_param = PlainValue(parameter).get
    return parameters


def _no_type(ctx: Any) -> None:
    """A flag takes no value, so its help names no type."""


class PlainValue:
    """Replaces what Typer converts a parameter with. Typer still does what is not plain, and reports errors."""

    def __init__(self, parameter: Any) -> None:
        self._type, self._typers = parameter.type_descriptor, parameter.get_runtime_param

    def get(self) -> "PlainValue":
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        try:
            return _convert(value, self._type.annotation, self._type.parameter_info)
        except ValueError:
            return self._typers().coerce(value, param=param, ctx=ctx)


def _convert(value: Any, kind: Any, info: Any) -> Any:
    if get_origin(kind) is list and not isinstance(value, str):
        return [_convert(one, get_args(kind)[0], info) for one in value]
    if kind in (str, bool) and isinstance(value, kind):
        return value
    if kind is int and not isinstance(value, float):
        number = int(value)
        if (info.min is None or number >= info.min) and (info.max is None or number <= info.max):
            return number
    if kind is Path and isinstance(value, str) and not (info.exists or info.resolve_path):
        return Path(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    raise ValueError(value)


# --- the program

app = typer.Typer(
    name="duetime",
    cls=Root,
    help="Duetime, a delayed job queue: push a job now, have it delivered when it is due.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"{__version__}\n")
        raise typer.Exit


@app.callback()
@takes_options
def root(
    context: typer.Context,
    target: Target,
    version: Annotated[bool, flag("Print the version.", "--version", callback=_show_version, is_eager=True)] = False,
    journal: Annotated[
        str | None,
        option(
            "DIR",
            f"Where the journal of a command with a store URL goes, if the pool has one. {JOURNAL_VARIABLE}.",
            panel=GLOBAL_PANEL,
        ),
    ] = None,
) -> None:
    del version  # it has been printed
    context.obj = target
    if journal:
        os.environ[JOURNAL_VARIABLE] = journal


def run() -> None:
    """Runs the command line and exits."""
    if "_DUETIME_COMPLETE" in os.environ:
        # Typer would render each help text with rich: slow to import, and it breaks long texts into several choices.
        setattr(_completion_classes, "_sanitize_help_text", str)  # noqa: B010 (private)
    try:
        program: Any = typer.main.get_command(app)
        without_pydantic(program.params)
        sys.exit(program(prog_name="duetime", standalone_mode=False))
    except DuetimeError as error:
        _exit(error, exit_code(error))
    except typer.TyperException as error:
        _exit(usage_error(error), 2)
    except typer.Abort:
        _exit(Usage("aborted"), 1)
    except OSError as error:
        if sys.flags.dev_mode:
            raise
        _exit(SystemRefused(": ".join(str(part) for part in (error.filename, error.strerror or error) if part)), 1)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in SPARK_PACKAGES:
            _exit(InvalidSettings.lacks("this command", "spark", error), 2)
        if sys.flags.dev_mode:
            raise
        _exit(DuetimeError(f"a bug in Duetime: {type(error).__name__}: {error}"), 5)


class Usage(InvalidRequest):
    """The command line cannot be parsed."""

    code = "usage"


class SystemRefused(DuetimeError):
    """The operating system refused something: no room for the output, too many open files."""

    code = "system"


PLAIN_WORDS = {
    "Value error, ": "",
    r"Input should be a valid integer, .*": "must be a whole number",
    r"Input should be a valid number, .*": "must be a number",
    "Input should be greater than or equal to": "must be at least",
    "Input should be less than or equal to": "must be at most",
}
"""What Typer says about a wrong value, in pydantic's words."""


def usage_error(error: typer.TyperException) -> Usage:
    message = error.format_message().rstrip(".")
    if not message:  # no arguments at all: the help has been printed
        sys.exit(2)
    context: Any = getattr(error, "ctx", None)
    message = message.removesuffix(" (Possible options: --help)")
    for pydantics, plain in PLAIN_WORDS.items():
        message = re.sub(pydantics, plain, message)
    unknown: str | None = getattr(error, "option_name", None) if hasattr(error, "possibilities") else None
    if unknown and any("--set" in param.opts for param in context.command.params):
        message = f"{message}; fields without an option are given as --set {unknown.lstrip('-')}=VALUE"
    return Usage(f"{message}; `{context.command_path} --help` shows how" if context else message)


def _exit(error: DuetimeError, code: int) -> NoReturn:
    """Prints the error as one line, without control characters and passwords."""
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

"""The command `duetime`: what there is to call, and how it ends when something is wrong.

An error of Duetime's is one line on standard error and an exit code, never a traceback:

    0  done
    1  refused or not found: nothing was ready, a lease was lost, a check failed
    2  what was asked for cannot be right: options, settings, a taken port
    3  a store or server does not answer, or has no room
    4  not allowed: no token, or not one for this
    5  a bug in Duetime; `PYTHONDEVMODE=1` shows where
  130  interrupted

With `--json` the line is a JSON document.
"""

import dataclasses
import inspect
import sys
from collections.abc import Callable
from typing import Any, NoReturn, get_type_hints

import msgspec
import typer

from duetime import __version__
from duetime.cli import pipeline, work
from duetime.cli.commands import Command, add_commands, register
from duetime.cli.config import JsonOption, config
from duetime.cli.options import Target, given_before
from duetime.cli.output import error_document, safe
from duetime.cli.serve import EXAMPLES, serve
from duetime.errors import DuetimeError, Forbidden, InvalidRequest, InvalidSettings, Unauthorized
from duetime.settings import mask

EMPTY = inspect.Parameter.empty

app = typer.Typer(
    name="duetime",
    help="Duetime, a delayed job queue: push a job now, have it delivered when it is due.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def root(context: typer.Context, **options: Any) -> None:
    context.obj = Target(**options)


def _take_global_options(function: Callable[..., None]) -> None:
    """The options of `Target` may also stand before the command; one declaration serves both places."""
    hints: dict[str, Any] = {"context": typer.Context, **get_type_hints(Target, include_extras=True)}
    defaults = {field.name: field.default for field in dataclasses.fields(Target)}
    function.__annotations__ = hints
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=defaults.get(name, EMPTY))
            for name, hint in hints.items()
        ]
    )
    app.callback()(function)


def version(context: typer.Context, as_json: JsonOption = False) -> None:
    """Print the version."""
    as_json = as_json or given_before(context).json
    typer.echo(msgspec.json.encode({"version": __version__}).decode() if as_json else __version__)


SERVER = (
    Command("serve", serve, *EXAMPLES),
    Command("config", config, "duetime config", "duetime config --config /etc/duetime.toml --json"),
    Command("version", version, "duetime version"),
)

_take_global_options(root)
add_commands(app, SERVER)
register(app)
pipeline.register(app)
work.register(app)


def main() -> None:
    """What the console script calls."""
    try:
        sys.exit(app(prog_name="duetime", standalone_mode=False))
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

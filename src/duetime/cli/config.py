"""`duetime config`, and how every server command reads its settings."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Column, Table

from duetime.cli.options import given_before
from duetime.cli.output import PIPE_WIDTH
from duetime.model.errors import InvalidSettings
from duetime.model.masking import mask
from duetime.model.settings import CONFIG_VARIABLE, FIELDS, FILE, Settings, load, parse_file, row, shown, variable

ConfigOption = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help=f"The settings file; {FILE} in the current folder if there is one."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def read_settings(flags: Mapping[str, object], config: str | None) -> Settings:
    """Settings from the flags, the environment and the file that `config`, DUETIME_CONFIG or the folder names."""
    name = config or os.environ.get(CONFIG_VARIABLE) or ""
    file: Mapping[str, Any] = {}
    if name or Path(FILE).exists():
        name = name or FILE
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise InvalidSettings(f"cannot read the settings file {name}: {reason}") from None
        file = parse_file(text, name)
    return load(flags=flags, environment=os.environ, file=file, file_name=name or FILE)


def config(context: typer.Context, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Print the effective settings and where each came from; passwords are masked."""
    settings = read_settings({}, config)
    if as_json or given_before(context).json:
        typer.echo(msgspec.json.encode(_document(settings)).decode())
        return
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    console.print(_settings_table(settings))
    console.print(_stores_table(settings))


def _document(settings: Settings) -> dict[str, Any]:
    return {
        "settings": {
            name: {
                "value": shown(settings, name),
                "source": settings.sources[name],
                "variable": variable(name),
                "about": row(name).about,
            }
            for name in FIELDS
        },
        "pools": {
            name: {"store": mask(url), "source": settings.sources[f"pool.{name}"]}
            for name, url in settings.pools.items()
        },
        "registry": {"store": mask(settings.registry_store or settings.store)},
    }


def _settings_table(settings: Settings) -> Table:
    table = Table(
        "setting", Column("value", overflow="fold"), "from", "about", box=None, pad_edge=False, header_style="bold"
    )
    for name in FIELDS:
        table.add_row(name, shown(settings, name), settings.sources[name], row(name).about)
    return table


def _stores_table(settings: Settings) -> Table:
    table = Table("pool", Column("store", overflow="fold"), "from", box=None, pad_edge=False, header_style="bold")
    for name, url in settings.pools.items():
        table.add_row(name, mask(url), settings.sources[f"pool.{name}"])
    if settings.registry_store:
        table.add_row("(registry)", mask(settings.registry_store), f"[registry] in {FILE}")
    return table

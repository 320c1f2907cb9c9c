"""`duetime config`, and how every server command reads its settings."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from duetime import __version__
from duetime.cli.options import AnswerForm, option
from duetime.model.errors import InvalidSettings
from duetime.model.masking import mask
from duetime.model.settings import CONFIG_VARIABLE, FIELDS, FILE, Settings, load, parse_file, row, shown, variable

ConfigOption = Annotated[
    str | None, option("FILE", f"The settings file; {FILE} in the current folder if there is one.", "--config")
]


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


def file_version(config: str | None) -> object:
    """Changes when the settings file is written or replaced; None while there is none."""
    try:
        found = Path(config or os.environ.get(CONFIG_VARIABLE) or FILE).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def config(form: AnswerForm, config: ConfigOption = None) -> None:
    """Print the effective settings and their sources; passwords are masked.

    Examples:
        duetime config
        duetime config --config /etc/duetime.toml --json
    """
    settings = read_settings({}, config)
    pools = [(name, mask(url), settings.sources[f"pool.{name}"]) for name, url in settings.pools.items()]
    if form.json:
        form.answer.document(_document(settings))
        return
    columns = {
        "setting": list(FIELDS),
        "value": [shown(settings, name) for name in FIELDS],
        "from": [settings.sources[name] for name in FIELDS],
        "about": [row(name).about for name in FIELDS],
    }
    form.answer.table([], columns, overflow="fold")
    if settings.registry_store:
        pools.append(("(registry)", mask(settings.registry_store), f"[registry] in {FILE}"))
    form.answer.table([], dict(zip(("pool", "store", "from"), zip(*pools, strict=True), strict=True)), overflow="fold")


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


def version(form: AnswerForm) -> None:
    """Print the version."""
    form.answer.show({"version": __version__}, __version__)

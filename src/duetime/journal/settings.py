"""The settings of a journal, as a server has them and as a program with an embedded engine finds them."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from duetime.errors import InvalidSettings
from duetime.journal.options import Fsync, JournalOptions
from duetime.settings import DEFAULT_STORE, Settings, load, variable

OFF = "off"
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""A scheme has two letters or more."""
FOLDER = "journal"


def options_of(settings: Settings) -> JournalOptions | None:
    """None if there is to be no journal: it is off, or the jobs end with the process anyway."""
    if settings.journal.lower() == OFF:
        return None
    folder = local_folder(settings.journal) if settings.journal else default_folder(settings.store)
    if folder is None:
        return None
    return JournalOptions(
        folder=folder.absolute(),
        instance=settings.instance,
        fsync=Fsync(settings.journal_fsync),
        interval_s=settings.journal_interval.total_seconds(),
        segment_size=settings.journal_segment_size,
        segment_age_s=settings.journal_segment_age.total_seconds(),
        retention_s=settings.journal_retention.total_seconds(),
        max_size=settings.journal_max_size,
        reserve=settings.journal_reserve,
        ship_to=settings.journal_ship_to,
    )


def local_folder(text: str) -> Path:
    """A path, or a file: URI. Raises InvalidSettings for another URI, which would become a folder called `s3a:`."""
    if URI.match(text) and not text.startswith("file:"):
        raise InvalidSettings(
            f"{text}: a journal is written to a folder of this machine; journal_ship_to copies it to other places"
        )
    return Path("/" + text.removeprefix("file:").lstrip("/") if text.startswith("file:") else text).absolute()


def default_folder(store_url: str) -> Path | None:
    """Beside the file, if the store is one; else beside where it would be. None for a store in memory."""
    scheme = store_url.partition(":")[0]
    if scheme == "memory":
        return None
    return sqlite_folder(store_url if scheme == "sqlite" else DEFAULT_STORE)


def sqlite_folder(url: str) -> Path:
    path = unquote(urlsplit(url).path)
    return Path("/" + path.lstrip("/") if path.startswith("/") else path).absolute().parent / FOLDER


def embedded_options(
    store_url: str, journal: str | None, environment: Mapping[str, str] = os.environ
) -> JournalOptions | None:
    """For an engine in somebody's program: `journal` if given, else DUETIME_JOURNAL, else beside a SQLite file.

    The other variables of the journal count as well; the rest of the environment is not ours to judge.
    """
    ours = {name: value for name, value in environment.items() if _is_ours(name)}
    settings = load(flags={"journal": journal, "store": store_url}, environment=ours, file={})
    if not settings.journal and not store_url.startswith("sqlite:"):
        return None
    return options_of(settings)


def _is_ours(name: str) -> bool:
    return name == variable("instance") or name.startswith(variable("journal"))

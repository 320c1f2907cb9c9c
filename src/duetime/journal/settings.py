"""The options of a journal, made from a server's settings or from the environment of a program with an engine."""

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
"""A scheme has two characters or more, so that a drive letter such as `C:` is none."""
FOLDER = "journal"


def options_of(settings: Settings) -> JournalOptions | None:
    """None if there is to be no journal: it is switched off, or the store is in memory and its jobs end with the
    process.
    """
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
    """The folder that a path or a file: URI names. Raises InvalidSettings for any other URI, because it would become a
    folder called `s3a:`.
    """
    if URI.match(text) and not text.startswith("file:"):
        raise InvalidSettings(
            f"{text}: a journal is written to a folder of this machine; journal_ship_to copies it to other places"
        )
    return Path("/" + text.removeprefix("file:").lstrip("/") if text.startswith("file:") else text).absolute()


def default_folder(store_url: str) -> Path | None:
    """The folder `journal` beside the SQLite file, or beside the default file if the store is another one. None for a
    store in memory.
    """
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
    """The options for an engine in somebody's program: the folder is `journal` if given, else DUETIME_JOURNAL, else
    beside a SQLite file. None if there is to be no journal.

    The other variables of the journal count as well. All other variables are left unread, because a mistake in one of
    them is for the server to report.
    """
    ours = {name: value for name, value in environment.items() if _is_ours(name)}
    settings = load(flags={"journal": journal, "store": store_url}, environment=ours, file={})
    if not settings.journal and not store_url.startswith("sqlite:"):
        return None
    return options_of(settings)


def _is_ours(name: str) -> bool:
    return name == variable("instance") or name.startswith(variable("journal"))

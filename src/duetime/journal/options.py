"""The options of a journal: their defaults, and how they are made from a server's or a program's settings."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from duetime.journal.registration import RegisteredNode
from duetime.model.errors import InvalidSettings
from duetime.model.ids import IdMaker
from duetime.model.settings import DEFAULT_STORE, Settings, load, sqlite_file, variable

OFF = "off"
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""A scheme has two characters or more, so that a drive letter such as `C:` is none."""
FOLDER = "journal"
_FOREIGN = re.compile(r"[^A-Za-z0-9_.-]", re.ASCII)
_INSTANCE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}", re.ASCII)


class Fsync(StrEnum):
    """When entries are synced to the disk. In every mode the operating system has them before the answer, so that the
    end of the process, even by kill -9, loses nothing that was answered.
    """

    ALWAYS = "always"
    """Before the answer: a loss of power loses nothing that was answered."""
    INTERVAL = "interval"
    """Every `interval_s`: a loss of power loses what was answered since."""
    OFF = "off"
    """When the operating system decides: a loss of power loses about the last 30 seconds."""


@dataclass(frozen=True)
class JournalOptions:
    """Sizes are in bytes; zero means no limit.

    A segment is sealed at `segment_size` or at `segment_age_s`, whichever comes first. Sealed segments are deleted
    when they are older than `retention_s`, and the oldest ones when all together exceed `max_size`; with `ship_to` a
    segment is never deleted before it has a verified copy. Pushes are refused while less than `reserve` is free on the
    disk.
    """

    folder: Path
    instance: str = ""
    fsync: Fsync = Fsync.ALWAYS
    interval_s: float = 1.0
    segment_size: int = 64 * 1_048_576
    segment_age_s: float = 60.0
    retention_s: float = 0.0
    max_size: int = 0
    reserve: int = 64 * 1_048_576
    ship_to: str = ""

    def __post_init__(self) -> None:
        if self.instance and not _INSTANCE.fullmatch(self.instance):
            raise InvalidSettings(
                f"name of an instance must have only ASCII letters, digits, '-', '_' and '.', got {self.instance!r}"
            )


def node_name(options: JournalOptions) -> str:
    """A new name for a node: the instance's name, or the host's if there is none, and a ULID."""
    instance = options.instance or _FOREIGN.sub("-", socket.gethostname())[:200].lstrip(".-") or "node"
    return f"{instance}-{IdMaker().make()}"


# --- from settings


def options_of(settings: Settings) -> JournalOptions | None:
    """Returns None for a process without a journal: it is switched off, or the store is in memory and its jobs end with
    the process.
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
            f"journal must be a folder of this machine, got {text}: journal_ship_to copies it to other places"
        )
    return Path("/" + text.removeprefix("file:").lstrip("/") if text.startswith("file:") else text).absolute()


def default_folder(store_url: str) -> Path | None:
    """The folder `journal` next to the SQLite file, or next to the default file if the store is another one. None for a
    store in memory.
    """
    return None if store_url.startswith("memory:") else _next_to(sqlite_file(store_url) or sqlite_file(DEFAULT_STORE))


def _next_to(file: Path | None) -> Path:
    assert file
    return file.parent / FOLDER


def embedded_options(
    store_url: str,
    journal: str | None,
    environment: Mapping[str, str] = os.environ,
    *,
    nodes: Mapping[str, RegisteredNode] = {},
) -> JournalOptions | None:
    """The options for an engine that is embedded in a program. None if the journal is off, or the store is in memory.

    The folder is `journal` if given, else DUETIME_JOURNAL, else next to a SQLite file, else where another of the pool's
    `nodes` writes on this host, else a folder of the user's. The other variables of the journal count as well. All
    other variables are left unread, because a mistake in one of them is for the server to report.
    """
    settings = _embedded_settings(store_url, journal, environment)
    if not settings.journal and not store_url.startswith(("sqlite:", "memory:")):
        settings = replace(settings, journal=str(shared_folder(nodes) or user_folder(environment)))
    return options_of(settings)


def is_off(store_url: str, journal: str | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether the program turned the journal of its engine off."""
    return _embedded_settings(store_url, journal, environment).journal.lower() == OFF


def _embedded_settings(store_url: str, journal: str | None, environment: Mapping[str, str]) -> Settings:
    ours = {name: value for name, value in environment.items() if _is_ours(name)}
    return load(flags={"journal": journal, "store": store_url}, environment=ours, file={})


def shared_folder(nodes: Mapping[str, RegisteredNode]) -> Path | None:
    """The folder of the pool's latest node on this host that this user may write to: one folder is one to audit.

    A node that still writes, such as a server, goes before one that has signed off, such as a program that has ended.
    The node's own folder must be in it. A record alone proves nothing: anybody who may write to the store could name
    any folder there.
    """
    host = socket.gethostname()
    for name, node in sorted(nodes.items(), key=lambda item: (item[1].last is not None, -item[1].at)):
        folder = Path(node.folder)
        is_here = node.host == host and folder.is_absolute() and Path(name).name == name and (folder / name).is_dir()
        if is_here and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return None


def user_folder(environment: Mapping[str, str]) -> Path:
    """`duetime/journal` among the user's files that programs keep (the XDG base directories' state folder)."""
    if home := environment.get("XDG_STATE_HOME"):
        return Path(home) / "duetime" / FOLDER
    try:
        return Path.home() / ".local" / "state" / "duetime" / FOLDER
    except RuntimeError:  # a user without a home, as in some containers
        return _next_to(sqlite_file(DEFAULT_STORE))


def _is_ours(name: str) -> bool:
    return name == variable("instance") or name.startswith(variable("journal"))

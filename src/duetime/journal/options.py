"""The options of a journal, and how its nodes are named."""

import re
import socket
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from duetime.model.errors import InvalidSettings
from duetime.model.ids import IdMaker

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
                f"an instance's name may hold ASCII letters, digits, '-', '_' and '.': {self.instance!r}"
            )


def node_name(options: JournalOptions) -> str:
    """A new name for a node: the instance's name, or the host's if there is none, and a ULID."""
    instance = options.instance or _FOREIGN.sub("-", socket.gethostname())[:200].lstrip(".-") or "node"
    return f"{instance}-{IdMaker().make()}"

"""The interface between a server and the command that starts it, and the start message of a worker."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from duetime.http.balance import MOST_WORKERS
from duetime.model.errors import InvalidSettings
from duetime.model.settings import Settings


@dataclass(frozen=True)
class Started:
    """`addresses` by the names of the listeners; `problems` says which pools are not open yet and why."""

    settings: Settings
    addresses: Mapping[str, str]
    problems: Mapping[str, str]
    workers: int = 1


@dataclass(frozen=True)
class Program:
    """`read` reads the settings anew and raises InvalidSettings; `announce` is called once, when everything is up.

    `worker_command` starts a worker process; the number of its end of the control channel is appended.
    """

    read: Callable[[], Settings]
    announce: Callable[[Started], None]
    set_up_logging: Callable[[Settings], None]
    reopen_logs: Callable[[], None]
    worker_command: Sequence[str]


class Start(msgspec.Struct, frozen=True):
    """The start message of a worker: name, settings, and the numbers of inherited files. `balance` is the file of the
    connection counts, 0 if there is none, and `slot` the worker's position in it.
    """

    name: str
    settings: Settings
    sockets: dict[str, int]
    balance: int = 0
    slot: int = 0

    @property
    def files(self) -> list[int]:
        return [*self.sockets.values(), *([self.balance] if self.balance else [])]


def differ(one: Settings, other: Settings) -> bool:
    """Compares the values, ignoring their sources."""
    return replace(one, sources={}) != replace(other, sources={})


def count_workers(settings: Settings) -> int:
    """Number of workers to start: the setting, or one per available core if it is 0."""
    return settings.workers or len(os.sched_getaffinity(0))


def check_shared(settings: Settings) -> None:
    """Raises InvalidSettings if several processes cannot use these settings."""
    if count_workers(settings) > MOST_WORKERS:
        raise InvalidSettings(f"workers must be at most {MOST_WORKERS}, got {count_workers(settings)}")
    for name, url in {**settings.pools, "registry": settings.registry_store}.items():
        if url.startswith("memory:"):
            raise InvalidSettings(
                f"several workers cannot share a memory store ({name}): use --workers 1, or a SQLite file or Redis"
            )

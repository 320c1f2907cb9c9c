"""What a server gets from the command line that starts it, and what it tells in return."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from duetime.http.balance import MOST_WORKERS
from duetime.model.errors import InvalidSettings
from duetime.model.settings import Settings


@dataclass(frozen=True)
class Started:
    """`addresses` by the names of the entrances; `problems` says which pools are not open yet and why."""

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
    """What a worker is told at its start: its name, what to serve, and the numbers of the files it has inherited.

    `balance` is the file of the connection counts and `slot` the worker's own among them; 0 if there is none.
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
    """Whether they mean something different, wherever the values came from."""
    return replace(one, sources={}) != replace(other, sources={})


def count_workers(settings: Settings) -> int:
    """How many workers to start; the setting 0 asks for one per core that this process may use."""
    return settings.workers or len(os.sched_getaffinity(0))


def check_shared(settings: Settings) -> None:
    """Raises InvalidSettings for what several processes cannot have: a store that lives in one, no end of them."""
    if count_workers(settings) > MOST_WORKERS:
        raise InvalidSettings(f"workers: at most {MOST_WORKERS} under one supervisor")
    for name, url in {**settings.pools, "registry": settings.registry_store}.items():
        if url.startswith("memory:"):
            raise InvalidSettings(
                f"several workers cannot share a memory store ({name}): use --workers 1, or a SQLite file or Redis"
            )

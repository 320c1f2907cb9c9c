"""Entrances: addresses that a server listens on, bound before anything else is started.

An entrance is a row: a name, the settings of its address, and what to make of a bound socket. The sockets are bound by
the process that the operator started and handed to the processes that serve them, so that a port that cannot be had is
an error of the start, and a port outlives the processes that accept from it. The rows are in process.py.
"""

import errno
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from duetime.model.errors import InvalidSettings
from duetime.model.settings import FILE, Settings, row, variable
from duetime.server.apps import Runtime
from duetime.server.syn_filter import drop_new_connections
from duetime.server.unix_socket import listen_at

BACKLOG = 2048
MODE = "unix_socket_mode"

_MODE = re.compile("0?[0-7]{3}")

Sockets = Mapping[str, socket.socket]
"""Listening sockets by the name of their entrance."""


class Listening(Protocol):
    """Serves the sockets that it was made with, between `start` and `stop`."""

    async def start(self) -> None: ...

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, close the sockets, finish what is under way, for at most `grace_s` seconds."""
        ...


Make = Callable[[Runtime, Sequence[socket.socket]], Listening]


@dataclass(frozen=True)
class Entrance:
    """`name` is what the start-up message calls it. `last`: it answers until all others are drained. Without a
    `port_setting` the `host_setting` is the path of a Unix socket. With a `switch` it is on if that setting is.
    """

    name: str
    host_setting: str
    port_setting: str
    make: Make
    switch: str = ""
    scheme: str = "http"
    last: bool = False

    def is_on(self, settings: Settings) -> bool:
        return not self.switch or bool(getattr(settings, self.switch))


def bind_all(entrances: Iterable[Entrance], settings: Settings) -> dict[str, socket.socket]:
    """A listening socket for each that is on. Raises InvalidSettings, binding none, for one that cannot be had."""
    sockets: dict[str, socket.socket] = {}
    try:
        for entrance in entrances:
            if entrance.is_on(settings):
                sockets[entrance.name] = _bind(entrance, settings)
    except BaseException:
        close_all(sockets)
        raise
    return sockets


def rebind(
    entrances: Sequence[Entrance], sockets: Sockets, before: Settings, after: Settings
) -> dict[str, socket.socket]:
    """The sockets for changed settings: an entrance whose address is the same keeps its own. Raises InvalidSettings."""
    kept: dict[str, socket.socket] = {}
    for one in entrances:
        same = _address(one, before) == _address(one, after)
        if one.name in sockets and one.is_on(after) and same:
            kept[one.name] = sockets[one.name]
    return kept | bind_all([one for one in entrances if one.name not in kept], after)


def _address(entrance: Entrance, settings: Settings) -> tuple[str, int | str]:
    return getattr(settings, entrance.host_setting), getattr(settings, entrance.port_setting or MODE)


def _bind(entrance: Entrance, settings: Settings) -> socket.socket:
    if entrance.port_setting:
        return bind(settings, entrance.host_setting, entrance.port_setting)
    return bind_path(settings, entrance.host_setting)


def close_all(sockets: Sockets) -> None:
    for sock in sockets.values():
        sock.close()


def leave_all(entrances: Iterable[Entrance], sockets: Sockets) -> None:
    """The server ends: let go of the sockets, so that listeners that share them can empty and close them.

    A socket that closes soon completes no further connections; one that answers until the end still does.
    """
    for entrance in entrances:
        if entrance.name in sockets and not entrance.last:
            drop_new_connections(sockets[entrance.name])
    close_all(sockets)


def addresses(entrances: Iterable[Entrance], sockets: Sockets) -> dict[str, str]:
    """Where each entrance is, with the port that was picked, by its name."""
    return {one.name: _url(one.scheme, sockets[one.name]) for one in entrances if one.name in sockets}


def bind(settings: Settings, host_setting: str, port_setting: str) -> socket.socket:
    """A listening socket. Without SO_REUSEPORT: two servers on one port by accident must not go unnoticed."""
    host: str = getattr(settings, host_setting)
    port: int = getattr(settings, port_setting)
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _cannot_listen(error, host_setting, port_setting, f"{host}:{port}") from None
    return sock


def bind_path(settings: Settings, path_setting: str) -> socket.socket:
    """A listening Unix socket."""
    path: str = getattr(settings, path_setting)
    if not _MODE.fullmatch(settings.unix_socket_mode):
        raise InvalidSettings(f"{MODE}: {settings.unix_socket_mode!r} is not a mode like 0660")
    try:
        return listen_at(path, int(settings.unix_socket_mode, 8), BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = "somebody listens there, or it is no socket"
        else:
            reason = error.strerror or str(error)
        raise InvalidSettings(f"cannot listen on {path} ({reason}): set {_ways_to_set(path_setting)}") from None


def _cannot_listen(error: OSError, host_setting: str, port_setting: str, address: str) -> InvalidSettings:
    if error.errno == errno.EADDRINUSE:
        return InvalidSettings(f"{address} is taken: choose another port with {_ways_to_set(port_setting)}")
    if error.errno == errno.EACCES:
        return InvalidSettings(
            f"{address} is not allowed for this user: choose another port with {_ways_to_set(port_setting)}"
        )
    reason = os.strerror(error.errno) if isinstance(error.errno, int) and error.errno > 0 else str(error)
    return InvalidSettings(f"cannot listen on {address} ({reason}): set {_ways_to_set(host_setting)}")


def _ways_to_set(name: str) -> str:
    ways = [row(name).flag, variable(name), f"{name} in {FILE}"]
    return " or ".join(way for way in ways if way)


def _url(scheme: str, sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

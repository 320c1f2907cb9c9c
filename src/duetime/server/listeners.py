"""The addresses that a server listens on; `LISTENERS` in process.py is their table.

The process that the operator started binds all sockets before anything else and passes them to the worker processes:
a port that is not available is an error at start, and a port outlives the workers that accept from it.
"""

import ctypes
import errno
import fcntl
import os
import re
import socket
import stat
import struct
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from duetime.model.errors import InvalidSettings
from duetime.model.settings import FILE, Settings, row, variable
from duetime.server.apps import Runtime

BACKLOG = 2048
MODE = "unix_socket_mode"

_MODE = re.compile("0?[0-7]{3}")
_SO_ATTACH_FILTER = 26
_DROP_SYN = (
    (0x30, 0, 0, 13),  # load the byte with the TCP flags
    (0x45, 0, 1, 0x02),  # SYN is set: continue, else skip one
    (0x06, 0, 0, 0),  # drop the packet
    (0x06, 0, 0, 0xFFFF_FFFF),  # keep the packet
)

Sockets = Mapping[str, socket.socket]
"""Listening sockets by the name of their listener."""


class Listening(Protocol):
    """Serves its sockets between `start` and `stop`."""

    async def start(self) -> None: ...

    async def stop(self, grace_s: float) -> None:
        """Closes the sockets and finishes the requests in progress, for at most `grace_s` seconds."""
        ...


Make = Callable[[Runtime, Sequence[socket.socket]], Listening]


@dataclass(frozen=True)
class ListenerSpec:
    """`name` appears in the start-up message. `last`: it serves until all others are drained. Without a `port_setting`,
    `host_setting` is the path of a Unix socket. `switch` is the setting that turns it on; empty if it is always on.
    With `has_console` it is also on if only the console is served.
    """

    name: str
    host_setting: str
    port_setting: str
    make: Make
    switch: str = ""
    scheme: str = "http"
    last: bool = False
    has_console: bool = False

    def is_on(self, settings: Settings) -> bool:
        if settings.console_only and not self.has_console:
            return False
        return not self.switch or bool(getattr(settings, self.switch))


def bind_all(listeners: Iterable[ListenerSpec], settings: Settings) -> dict[str, socket.socket]:
    """Binds all listeners that are on. Raises InvalidSettings, and binds none, if one cannot be bound."""
    sockets: dict[str, socket.socket] = {}
    try:
        for listener in listeners:
            if listener.is_on(settings):
                if listener.port_setting:
                    sockets[listener.name] = bind(settings, listener.host_setting, listener.port_setting)
                else:
                    sockets[listener.name] = bind_path(settings, listener.host_setting)
    except BaseException:
        close_all(sockets)
        raise
    return sockets


def rebind(
    listeners: Sequence[ListenerSpec], sockets: Sockets, before: Settings, after: Settings
) -> dict[str, socket.socket]:
    """Binds for changed settings; a listener whose address is unchanged keeps its socket. Raises InvalidSettings."""
    kept: dict[str, socket.socket] = {}
    for one in listeners:
        same = _address(one, before) == _address(one, after)
        if one.name in sockets and one.is_on(after) and same:
            kept[one.name] = sockets[one.name]
    return kept | bind_all([one for one in listeners if one.name not in kept], after)


def _address(listener: ListenerSpec, settings: Settings) -> tuple[str, int | str]:
    return getattr(settings, listener.host_setting), getattr(settings, listener.port_setting or MODE)


def close_all(sockets: Sockets) -> None:
    for sock in sockets.values():
        sock.close()


def leave_all(listeners: Iterable[ListenerSpec], sockets: Sockets) -> None:
    """Closes the sockets of a server that stops, so that workers that share them can empty and close them. All but the
    last listeners stop accepting connections first.
    """
    for listener in listeners:
        if listener.name in sockets and not listener.last:
            drop_new_connections(sockets[listener.name])
    close_all(sockets)


def drop_new_connections(sock: socket.socket) -> None:
    """Makes the kernel drop SYN packets for this socket, in all processes that share it. Linux only.

    Without this, the kernel may complete a connection between the last accept and the close, and the close resets it:
    the client cannot know whether its request was served. A client whose SYN was dropped retries and is refused.
    """
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in _DROP_SYN))
    with suppress(OSError):  # a sandbox may forbid it
        described = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(program))
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)


def addresses(listeners: Iterable[ListenerSpec], sockets: Sockets) -> dict[str, str]:
    """The URL of each listener, with the port that was picked, by name."""
    return {one.name: _url(one.scheme, sockets[one.name]) for one in listeners if one.name in sockets}


def bind(settings: Settings, host_setting: str, port_setting: str) -> socket.socket:
    """A listening socket. Without SO_REUSEPORT, so that a second server on the same port fails."""
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
        raise InvalidSettings(f"{MODE} must be a mode like 0660, got {settings.unix_socket_mode!r}")
    try:
        return listen_at(path, int(settings.unix_socket_mode, 8), BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = "another server listens there, or the file is not a socket"
        else:
            reason = error.strerror or str(error)
        raise InvalidSettings(f"cannot listen on {path} ({reason}): change {_ways_to_set(path_setting)}") from None


def _cannot_listen(error: OSError, host_setting: str, port_setting: str, address: str) -> InvalidSettings:
    if error.errno == errno.EADDRINUSE:
        reason, setting = "already in use", port_setting
    elif error.errno == errno.EACCES:
        reason, setting = "permission denied", port_setting
    else:
        reason = os.strerror(error.errno) if isinstance(error.errno, int) and error.errno > 0 else str(error)
        setting = host_setting
    return InvalidSettings(f"cannot listen on {address} ({reason}): change {_ways_to_set(setting)}")


def _ways_to_set(name: str) -> str:
    ways = [row(name).flag, variable(name), f"{name} in {FILE}"]
    return " or ".join(way for way in ways if way)


def _url(scheme: str, sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


# --- Unix sockets


class UnixSocket(socket.socket):
    """A listening Unix socket. Closing the bound socket removes its path, unless another server has replaced it. Copies
    keep the path.
    """

    inode = 0
    path = ""

    def close(self) -> None:
        if self.inode:
            with suppress(OSError):
                if os.stat(self.path).st_ino == self.inode:
                    os.unlink(self.path)
            self.inode = 0
        super().close()


def listen_at(path: str, mode: int, backlog: int) -> UnixSocket:
    """Raises OSError: EADDRINUSE if another process listens there, or if the file is not a socket."""
    sock = UnixSocket(socket.AF_UNIX)
    try:
        with _locked(Path(path).parent):
            try:
                sock.bind(path)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not _is_stale(path):
                    raise
                os.unlink(path)
                sock.bind(path)
            # No client can connect before `listen`, so the permissions are always in force.
            os.chmod(path, mode)
            sock.listen(backlog)
        sock.setblocking(False)
        sock.path, sock.inode = path, os.stat(path).st_ino
    except BaseException:
        sock.close()
        raise
    return sock


@contextmanager
def _locked(folder: Path) -> Generator[None, None, None]:
    """Locks the folder: two servers at the same time could each consider the other's socket stale."""
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _is_stale(path: str) -> bool:
    """Returns whether this is a socket without a listener."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:  # not allowed, or its queue is full: it has a listener
            return False
    return False

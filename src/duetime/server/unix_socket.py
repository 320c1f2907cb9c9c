"""A listening Unix socket: replaces the socket file of a server that is gone, and removes its own file at the end."""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path


class UnixSocket(socket.socket):
    """Closing the bound socket removes its path, unless another server has replaced it. Copies keep the path."""

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

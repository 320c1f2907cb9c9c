"""A listening Unix socket: a path with permissions, taken over from a server that has gone and removed at the end."""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path


class UnixSocket(socket.socket):
    """Closing the one that was bound removes its path, unless another server's socket is there by now.

    Copies (`dup`, or a worker's by its number) leave the path alone.
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
    """Raises OSError: EADDRINUSE where somebody listens, or where there is something that is no socket."""
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
            # Nobody can connect before `listen`, so there is no moment with other permissions.
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
    """Lets one server at a time look at the folder: two at once could each take the socket of the other for stale."""
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _is_stale(path: str) -> bool:
    """A socket on which nobody listens."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:  # not allowed, or its queue is full: somebody is there
            return False
    return False

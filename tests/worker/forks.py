"""Processes that run `duetime` without importing it first.

Importing the program takes most of a second of CPU, and the tests start dozens of workers. So one process imports it
once and forks: each fork is a process of its own, with its own arguments, environment, output and exit code. A few
tests start the installed program all the same.

    with Forks(cwd) as forks:
        process = forks.start(["work", "shop:app"], environment, out=..., err=...)
"""

import contextlib
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Protocol

from tests.plugins.processes import guard, release

NUMBER = 4
REQUEST = 1 << 16
START_S = 120


class Process(Protocol):
    """What the tests need of a process; subprocess.Popen has it, too."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: signal.Signals) -> None: ...

    def kill(self) -> None: ...


class Forked:
    """As subprocess.Popen, for a process whose parent is the forking one: that tells how it ended."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._line.settimeout(START_S)
        self.pid = _number(line.recv(NUMBER))
        self._code: int | None = None

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except (TimeoutError, BlockingIOError):
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            self._line.settimeout(timeout)
            self._code = _number(self._line.recv(NUMBER))
            self._line.close()
        return self._code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forks:
    def __init__(self, folder: Path) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        guard(self._process.pid)
        theirs.close()

    def __enter__(self) -> "Forks":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ours.close()
        self._process.wait(START_S)
        release(self._process.pid)

    def start(self, arguments: list[str], environment: dict[str, str], *, out: IO[str], err: IO[str]) -> Forked:
        ours, theirs = socket.socketpair()
        request = json.dumps([arguments, environment]).encode()
        assert len(request) < REQUEST
        with theirs:
            socket.send_fds(self._ours, [request], [theirs.fileno(), out.fileno(), err.fileno()])
        return Forked(ours)


def _number(message: bytes) -> int:
    assert len(message) == NUMBER, "the forking process is gone"
    return int.from_bytes(message, "big", signed=True)


# --- in the forking process


def become_duetime(arguments: list[str], environment: dict[str, str], files: list[int]) -> NoReturn:
    code: Any = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, file in enumerate(files, 1):
            os.dup2(file, number)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["duetime", *arguments]
        sys.modules["duetime.cli.main"].main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve(requests: socket.socket) -> None:
    """One fork per request, until the tests are gone. A fork's line gets its process id, later its exit code."""
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    lines: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as ready:
        ready.register(requests, selectors.EVENT_READ)
        ready.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is woken:
                    woken.recv(REQUEST)
                    reap(lines)
                    continue
                request, files, _, _ = socket.recv_fds(requests, REQUEST, 3)
                if not request:
                    return
                line, *outputs = files
                pid = os.fork()
                if not pid:
                    for inherited in (*lines.values(), requests, woken, wake, ready):
                        inherited.close()
                    os.close(line)
                    become_duetime(*json.loads(request), outputs)
                lines[pid] = socket.socket(fileno=line)
                lines[pid].send(pid.to_bytes(NUMBER, "big"))
                for file in outputs:
                    os.close(file)


def reap(lines: dict[int, socket.socket]) -> None:
    for pid in list(lines):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with lines.pop(pid) as line:
                line.send(os.waitstatus_to_exitcode(status).to_bytes(NUMBER, "big", signed=True))


if __name__ == "__main__":
    import uvloop  # noqa: F401  imported here, so that no fork has to

    import duetime.cli.main
    import duetime.stores.redis.store
    import duetime.stores.sqlite.store

    # A first command imports what only commands need.
    sys.argv[1:], line = ["version"], int(sys.argv[1])
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        duetime.cli.main.main()
    serve(socket.socket(fileno=line))

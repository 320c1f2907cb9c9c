"""The process that a worker's processes are forked from.

It is forked itself right after the program was imported, before the worker opens anything or starts a thread, and does
nothing but fork: so a new process costs milliseconds and shares the memory of what was imported. It reports to
the worker when one has ended. When the worker is gone, however that came, it ends all of them.

A forked process takes a job from its socket, runs it and reports how it ended. Signals that ask a worker to stop often
reach its whole group; the processes leave them to the worker and end when it says so. The worker itself sends USR1 when
the time of a job is over, and URG when it wants to stop.

Between the worker and a forked process is a socket that carries whole messages in both directions, so that each is read
by exactly one reader. The worker keeps a copy of the process's end: what that has not read yet, the worker can take
back. A message too large for a socket goes through a file. To the process: a job (its number and JobInfo), or END. From
it: 4 bytes, the number of a job that is done; or an array, [number, Outcome] or [number, word, value], or
[number, file, , ] for a large outcome.
"""

import contextlib
import os
import selectors
import signal
import socket
import struct
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.worker.current_job import JobLink
from duetime.worker.events import TaskEvent
from duetime.worker.execution import ThreadLoop, ended_by, execute
from duetime.worker.runs import DONE, JobInfo, Outcome, TimedOut

if TYPE_CHECKING:
    from duetime.worker.app import App

FORK, KILL = b"f", b"k"
ORDER = struct.Struct("!cII")
"""An order: what to do, the number of the process, the signal."""
NOTE = struct.Struct("!cIi")
"""b"s" it has started: number, pid; b"e" it has ended: number, wait status."""


class ForkServer:
    """The worker's side: orders out, notes in."""

    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid = pid
        self.sock = sock
        sock.setblocking(False)

    def fork(self, number: int, end: socket.socket) -> None:
        """Start a process that serves this end of a socket."""
        socket.send_fds(self.sock, [ORDER.pack(FORK, number, 0)], [end.fileno()])

    def kill(self, number: int, signal_number: int) -> None:
        """Send a signal to one that may have ended already."""
        with contextlib.suppress(OSError):
            self.sock.send(ORDER.pack(KILL, number, signal_number))

    def read_notes(self) -> list[tuple[bytes, int, int]]:
        """The notes that have arrived; raises ConnectionError when the fork server is gone."""
        try:
            data = self.sock.recv(NOTE.size * 64)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("the process that the pool is forked from has died")
        while len(data) % NOTE.size:
            with contextlib.suppress(BlockingIOError):
                data += self.sock.recv(NOTE.size - len(data) % NOTE.size)
        return list(NOTE.iter_unpack(data))

    def close(self) -> None:
        """End it and all that it forked; returns when it is gone."""
        self.sock.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def start_fork_server(app: "App") -> ForkServer:
    """Fork the fork server. Call this while the process has one thread and no event loop."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return ForkServer(pid, ours)
    ours.close()
    code = 1
    try:
        ignore_stop_signals()
        # Ctrl-C goes to the group of the terminal; the worker decides what becomes of the others.
        os.setpgid(0, 0)
        _Forker(app, theirs).run()
        code = 0
    finally:
        os._exit(code)


class _Forker:
    def __init__(self, app: "App", sock: socket.socket) -> None:
        self._app = app
        self._sock = sock
        self._pids: dict[int, int] = {}
        self._wake_read, self._wake_write = socket.socketpair()

    def run(self) -> None:
        """Obey orders until the worker closes its end."""
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        signal.signal(signal.SIGCHLD, pass_over)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._sock, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            try:
                while self._round(selector):
                    pass
            except OSError:
                pass  # the worker is gone
        for pid in self._pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _round(self, selector: selectors.BaseSelector) -> bool:
        ready = {key.fileobj for key, _ in selector.select()}
        if self._wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                self._wake_read.recv(4096)
            self._reap()
        return self._sock not in ready or self._obey()

    def _obey(self) -> bool:
        order, fds, _, _ = socket.recv_fds(self._sock, ORDER.size, 1)
        if len(order) < ORDER.size:
            return False
        kind, number, value = ORDER.unpack(order)
        if kind == KILL:
            if pid := self._pids.get(number):
                os.kill(pid, value)
            return True
        pid = os.fork()
        if pid == 0:
            self._become(socket.socket(fileno=fds[0]))
        os.close(fds[0])
        self._pids[number] = pid
        self._sock.sendall(NOTE.pack(b"s", number, pid))
        return True

    def _become(self, end: socket.socket) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for sock in (self._sock, self._wake_read, self._wake_write):
            sock.close()
        live(self._app, end)

    def _reap(self) -> None:
        for number, pid in list(self._pids.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._pids[number]
                self._sock.sendall(NOTE.pack(b"e", number, status))


# --- in a forked process


LEFT_TO_THE_WORKER = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR2, signal.SIGHUP)


STOP_SOON = signal.SIGURG
"""Means nothing to programs that a task has started, should they get it."""


class RunClock:
    """Whether a job is running, so that a timeout applies. `stopping`: the worker wants to stop."""

    running = False
    stopping = False

    def ring(self, *_: object) -> None:
        if self.running:
            self.running = False
            raise TimedOut

    def warn(self, *_: object) -> None:
        self.stopping = True


def ignore_stop_signals() -> None:
    """Installs a handler instead of SIG_IGN, which programs that a task starts would inherit."""
    for number in LEFT_TO_THE_WORKER:
        signal.signal(number, pass_over)


def pass_over(number: int, frame: object) -> None:
    """Ignores a signal that the worker handles for its whole group."""


def serve(app: "App", sock: socket.socket) -> None:
    """Run jobs until the worker ends this process or is gone."""
    clock = RunClock()
    signal.signal(signal.SIGUSR1, clock.ring)
    signal.signal(STOP_SOON, clock.warn)
    app.listeners.notify(TaskEvent("child_starting"))
    loop = ThreadLoop()
    while True:
        message = sock.recv(BUFFER)
        if not message or message == END:
            return
        number, info = read_job(message)

        def say(word: str, value: Any, number: int = number) -> None:
            sock.send(write_word(number, word, value))

        try:
            clock.running = True
            outcome = execute(app, info, JobLink(say, lambda: clock.stopping), loop)
        except TimedOut as late:  # the signal came when the task had just ended
            outcome = ended_by(late)
        finally:
            clock.running = False
        sock.send(write_done(number) if outcome is DONE else write_outcome(number, outcome))


def live(app: "App", sock: socket.socket) -> None:
    """The whole life of a process that was just forked; never returns."""
    code = 1
    try:
        ignore_stop_signals()
        app.forked()
        serve(app, sock)
        app.close()
        code = 0
    except OSError:
        pass  # the worker is gone
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


# --- messages between the worker and a forked process

LARGE = 60_000 if sys.platform == "linux" else 1_900
BUFFER = 65_536
NUMBER = 4
KIND = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM
END = b"e"

_encode = msgspec.msgpack.Encoder().encode
_info = msgspec.msgpack.Decoder(JobInfo)
_any = msgspec.msgpack.Decoder()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """The worker's end and the process's."""
    return socket.socketpair(socket.AF_UNIX, KIND)


def write_job(number: int, info: JobInfo) -> bytes:
    message = b"j" + number.to_bytes(NUMBER, "big") + _encode(info)
    return message if len(message) <= LARGE else b"f" + _spill(message)


def read_job(message: bytes) -> tuple[int, JobInfo]:
    if message[:1] == b"f":
        message = _unspill(message[1:])
    return read_number(message), _info.decode(message[1 + NUMBER :])


def read_number(message: bytes) -> int:
    return int.from_bytes(message[1 : 1 + NUMBER], "big")


def forget(message: bytes) -> int:
    """The number of a job that will not be sent again in this message."""
    return read_number(_unspill(message[1:]) if message[:1] == b"f" else message)


def write_done(number: int) -> bytes:
    return number.to_bytes(NUMBER, "big")


def write_outcome(number: int, outcome: Outcome) -> bytes:
    message = _encode((number, outcome))
    return message if len(message) <= LARGE else _encode((number, _spill(message), None, None))


def write_word(number: int, word: str, value: Any) -> bytes:
    return _encode((number, word, value))


def read_answer(message: bytes) -> tuple[int, Outcome | None, tuple[str, Any] | None]:
    """The number of a job, how the job ended (None: it still runs), and what its task reported, if anything."""
    parts: list[Any] = _any.decode(message)
    if len(parts) == 4:
        parts = _any.decode(_unspill(parts[1]))
    if len(parts) == 3:
        return parts[0], None, (parts[1], parts[2])
    return parts[0], msgspec.convert(parts[1], Outcome), None


def _spill(message: bytes) -> bytes:
    handle, path = tempfile.mkstemp(prefix="duetime-job-")
    with os.fdopen(handle, "wb") as file:
        file.write(message)
    return path.encode()


def _unspill(name: bytes) -> bytes:
    path = Path(name.decode())
    message = path.read_bytes()
    path.unlink()
    return message

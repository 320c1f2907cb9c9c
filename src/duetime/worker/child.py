"""One process of a worker's pool: takes a job from its socket, runs it, reports how it ended.

Signals that ask a worker to stop often reach its whole group; a process of the pool leaves them to the worker and ends
when that says so. The worker itself sends USR1 when the time of a job is over, and URG when it wants to stop.
"""

import contextlib
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from duetime.worker import child_socket
from duetime.worker.current_job import JobLink
from duetime.worker.events import TaskEvent
from duetime.worker.execution import ended_by, execute
from duetime.worker.runs import DONE
from duetime.worker.task_exceptions import TimedOut
from duetime.worker.thread_loop import ThreadLoop

if TYPE_CHECKING:
    from duetime.worker.app import App

LEFT_TO_THE_WORKER = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR2, signal.SIGHUP)


STOP_SOON = signal.SIGURG
"""Means nothing to programs that a task has started, should they get it."""


class RunClock:
    """Whether a job is running: only then may its time be over. `stopping`: the worker wants to stop."""

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
        message = sock.recv(child_socket.BUFFER)
        if not message or message == child_socket.END:
            return
        number, info = child_socket.read_job(message)

        def say(word: str, value: int, number: int = number) -> None:
            sock.send(child_socket.write_word(number, word, value))

        try:
            clock.running = True
            outcome = execute(app, info, JobLink(say, lambda: clock.stopping), loop)
        except TimedOut as late:  # the signal came when the task had just ended
            outcome = ended_by(late)
        finally:
            clock.running = False
        sock.send(child_socket.write_done(number) if outcome is DONE else child_socket.write_outcome(number, outcome))


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

"""The servers that are compared, each in processes of its own, and what /proc says about them.

`empty` is an ASGI application that reads its request and answers 60 bytes: on our server class, and on uvicorn.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from bench.report import ROOT
from duetime.http.listener import Listener
from tests.plugins.served import ANY_PORT, launch_server

PAGE = os.sysconf("SC_PAGESIZE")
NAMESPACE, QUEUE = "bench", "jobs"
PATHS = {"lmstfy": f"/api/{NAMESPACE}/{QUEUE}", "v1": f"/v1/queues/{NAMESPACE}/{QUEUE}"}
"""The address of the queue, by protocol."""
EMPTY_KINDS = ("empty", "empty, uvicorn")


def cpu_s(pids: Sequence[int]) -> float:
    """The time that the threads of these processes have spent on a core, to the nanosecond."""
    threads = (thread for pid in pids for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


@dataclass(frozen=True)
class Running:
    """A server under test. `pids` are the processes that serve, without a supervisor."""

    port: int
    pids: Sequence[int]
    token: str = ""
    protocol: str = "lmstfy"
    folder: Path = field(default_factory=Path)

    def cpu_s(self) -> float:
        return cpu_s(self.pids)

    def rss(self) -> int:
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids) * PAGE


@dataclass(frozen=True)
class Case:
    """One line of the report. `journal` is "none", "interval" or "always"; `protocol` is a key of PATHS; `source` is
    the folder of another checkout whose code is served.
    """

    store: str
    workers: int = 1
    journal: str = "none"
    source: str = ""
    protocol: str = "lmstfy"

    @property
    def name(self) -> str:
        before = "before: " if self.source else ""
        workers = f"{self.workers} worker{'s' * (self.workers > 1)}"
        return f"{before}{self.protocol}, {self.store}, {workers}, journal {self.journal}"


@contextlib.contextmanager
def running_duetime(case: Case, url: str) -> Generator[Running]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        journal = ["--journal", "off" if case.journal == "none" else str(folder / "journal")]
        settings = {"DUETIME_HOST": "127.0.0.1", "DUETIME_LOG_LEVEL": "warning"}
        if case.journal != "none":
            settings["DUETIME_JOURNAL_FSYNC"] = case.journal
        if case.source:
            settings["PYTHONPATH"] = str(Path(case.source).resolve() / "src")
        arguments = ["--store", url, "--workers", str(case.workers), *journal]
        server = launch_server(folder, *ANY_PORT, *arguments, **settings)
        try:
            pids = server.workers() or [server.process.pid]
            yield Running(server.port, pids, make_token(server.admin), case.protocol, folder=folder)
        finally:
            code, errors = server.stop()
        if code or errors:
            raise SystemExit(f"the server ended with {code}: {errors}")


def make_token(admin: str) -> str:
    request = urllib.request.Request(f"{admin}/token/{NAMESPACE}?description=bench", method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(json.load(answer)["token"])


@contextlib.contextmanager
def running_empty(kind: str) -> Generator[Running]:
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as sock:
        command = [sys.executable, "-m", "bench.http_parts.servers", kind, str(sock.fileno())]
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=[sock.fileno()], stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield Running(sock.getsockname()[1], [process.pid])
        finally:
            process.kill()
            process.communicate()


# --- the empty application, in a process of its own

BODY = b'{"msg":"published","job_id":"' + b"0" * 26 + b'"}'
HEADERS = [(b"content-type", b"application/json; charset=utf-8"), (b"content-length", b"%d" % len(BODY))]


async def empty(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 201, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


async def serve_empty(sock: socket.socket) -> None:
    await Listener(empty, [sock]).start()
    print("ready", flush=True)
    await asyncio.get_running_loop().create_future()


async def serve_uvicorn(sock: socket.socket) -> None:
    config = uvicorn.Config(empty, http="httptools", lifespan="off", access_log=False, log_level="warning")
    server = uvicorn.Server(config)
    print("ready", flush=True)  # the socket listens already: who comes too early waits in its queue
    await server.serve(sockets=[sock])


if __name__ == "__main__":
    serve = serve_empty if sys.argv[1] == "empty" else serve_uvicorn
    uvloop.run(serve(socket.socket(fileno=int(sys.argv[2]))))

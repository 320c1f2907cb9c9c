"""Counts the functions of Duetime that run for one push, one reserve, one callback and one task.

    .venv/bin/python tools/call_paths.py                    # a table of functions, files and threads
    .venv/bin/python tools/call_paths.py --list "v1 push"   # the functions of one path, by file
    .venv/bin/python tools/call_paths.py --write            # renew the table in docs/architecture.md

Every number is the set of functions that ran in each of REPEATS repetitions, so that background work that happens to
run now and then does not count; for the embedded client, whose threads are idle otherwise, it is the longest run.
Programs run as users run them: a server with SQLite and a journal in a process of its own, a worker, an embedded
client. HTTP connections stay open, as those of the SDK do. The numbers without `http/` show what is behind the HTTP
server.
"""

import argparse
import http.client
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = str(ROOT / "src" / "duetime") + os.sep
REPEATS = 10
EMBEDDED_REPEATS = 4
IDLE_S = 3.0
QUIET_S = 0.1
PATIENCE_S = 2.0

Function = tuple[str, str]
"""(file below src/duetime, name with its class)."""


@dataclass(frozen=True)
class CallPath:
    name: str
    functions: frozenset[Function]
    threads: int

    @property
    def files(self) -> int:
        return len({file for file, _ in self.functions})

    def without_http(self) -> "CallPath":
        kept = frozenset(one for one in self.functions if not one[0].startswith("http" + os.sep))
        return CallPath(self.name, kept, self.threads)


# --- in the measured process


class Profile:
    """Notes each function of Duetime that begins while `is_on`, with its thread."""

    def __init__(self) -> None:
        self.is_on = False
        self.seen: set[tuple[str, str, int]] = set()

    def install(self) -> None:
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, argument: object) -> None:
        if self.is_on and event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            name = frame.f_code.co_qualname
            if not name.endswith(("comp>", "genexpr>")):
                self.seen.add((frame.f_code.co_filename.removeprefix(SOURCE), name, threading.get_ident()))

    def take(self) -> list[tuple[str, str, int]]:
        """What was seen, after nothing new has been for QUIET_S: some work goes on after the answer."""
        seen_before, deadline = -1, time.monotonic() + PATIENCE_S
        while len(self.seen) != seen_before and time.monotonic() < deadline:
            seen_before = len(self.seen)
            time.sleep(QUIET_S)
        self.is_on = False
        seen, self.seen = self.seen, set()
        return sorted(seen)


def run_measured(arguments: list[str]) -> None:
    """Run `duetime ARGUMENTS`, obeying `start` and `stop` on standard input."""
    profile = Profile()
    reports = os.fdopen(int(os.environ["CALL_PATHS_FD"]), "w")

    def obey() -> None:
        sys.setprofile(None)
        for line in sys.stdin:
            begins = line.strip() == "start"
            seen = [] if begins else profile.take()
            profile.is_on = begins
            reports.write(json.dumps(seen) + "\n")
            reports.flush()

    threading.Thread(target=obey, daemon=True).start()
    profile.install()
    from duetime.cli.main import main  # noqa: PLC0415 - after the profile is installed

    sys.argv = ["duetime", *arguments]
    main()


def measure_embedded(store: str, interval_s: float) -> dict[str, CallPath]:
    """A blocking client that pushes and pops now and then. The longest of the runs counts, in all threads, less what
    runs in an idle client as well.
    """
    import duetime  # noqa: PLC0415 - the source of the measured process

    profile = Profile()
    profile.install()
    runs: dict[str, list[set[Function]]] = {"push": [], "pop": []}
    threads = dict.fromkeys(runs, 0)

    def run(step: Callable[[], Any]) -> tuple[Any, set[Function], int]:
        profile.is_on = True
        found = step()
        seen = profile.take()
        return found, {(file, function) for file, function, _ in seen}, len({thread for *_, thread in seen})

    with duetime.connect(store, journal="off") as client:
        queue = client.queue("mail")
        queue.push("the first call opens the engine")
        queue.take().ack()
        idle = run(lambda: time.sleep(IDLE_S))[1]
        for number in range(EMBEDDED_REPEATS + 2):
            for name, step in (("push", lambda: queue.push("hello")), ("pop", queue.pop)):
                found, functions, used = run(step)
                if number >= 2:  # caches are filled
                    runs[name].append(functions - idle)
                    threads[name] = max(threads[name], used)
                if name == "pop":
                    found.ack()
                time.sleep(interval_s)
        sys.setprofile(None)
    return {
        name: CallPath(f"embedded {name}, every {interval_s:g} s", frozenset(max(seen, key=len)), threads[name])
        for name, seen in runs.items()
    }


def in_common(name: str, runs: list[list[tuple[str, str, int]]]) -> CallPath:
    sets = [{(file, function) for file, function, _ in run} for run in runs]
    common = frozenset.intersection(*map(frozenset, sets))
    threads = {thread for file, function, thread in runs[-1] if (file, function) in common}
    return CallPath(name, common, len(threads))


# --- in the measuring process


class Measured:
    """A `duetime` command that runs in a process of its own, and counts while it is told to."""

    def __init__(self, *arguments: str, folder: Path) -> None:
        read, write = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--run", *arguments],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "CALL_PATHS_FD": str(write), "PYTHONPATH": f"{ROOT / 'src'}:{folder}"},
            pass_fds=[write],
            text=True,
        )
        os.close(write)
        self._reports = os.fdopen(read)

    def count(self, name: str, step: Callable[[], object]) -> CallPath:
        assert self.process.stdin is not None
        runs: list[list[tuple[str, str, int]]] = []
        for number in range(REPEATS + 2):
            self._say("start")
            step()
            run = [(file, function, thread) for file, function, thread in self._say("stop")]
            if number >= 2:  # caches are filled
                runs.append(run)
        return in_common(name, runs)

    def _say(self, word: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return json.loads(self._reports.readline())

    def facts(self) -> dict[str, str]:
        """What a server says when it is up."""
        assert self.process.stdout is not None
        found: dict[str, str] = {}
        for line in self.process.stdout:
            label, _, value = line.strip().partition(" ")
            found[label] = value.strip()
            if label == "stop":
                return found
        raise RuntimeError(f"the server did not start: {found}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=60)


class Receiver(http.server.BaseHTTPRequestHandler):
    """Answers callbacks, and says that one came."""

    came = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
        self.came.set()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def receiver() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()


def server_paths(folder: Path) -> list[CallPath]:
    store = f"sqlite://{folder}/jobs.db"
    server = Measured("serve", "--dev", "--store", store, "--port", "0", "--admin-port", "0", folder=folder)
    try:
        host = server.facts()["API"].removeprefix("http://")
        connection, second = (http.client.HTTPConnection(host, timeout=60) for _ in range(2))

        def send(method: str, path: str, body: object = None, **headers: str) -> Any:
            text = body if isinstance(body, str) else json.dumps(body)
            connection.request(method, path, text.encode(), headers)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status} {said!r}")
            return said

        def push(queue: str, **more: object) -> None:
            send("POST", f"/v1/queues/default/{queue}/jobs", {"body": "hello", **more})

        def push_on_second_connection() -> None:
            second.request("POST", "/v1/queues/default/waited/jobs", b'{"body": "hello"}')
            second.getresponse().read()

        def waiting_reserve() -> None:
            other = threading.Timer(0.2, push_on_second_connection)
            other.start()
            send("POST", "/v1/queues/default/waited/reserve", {"wait": "20s"})
            other.join()

        paths = [
            server.count("v1 push", lambda: push("mail")),
            server.count("lmstfy push", lambda: send("PUT", "/api/default/old?token=x", "hello")),
            server.count("waiting reserve with the push that ends it", waiting_reserve),
        ]
        with receiver() as url:
            send("POST", "/v1/namespaces/default/topics", {"topic": "called", "callback": url})

            def called() -> None:
                Receiver.came.clear()
                push("called")
                if not Receiver.came.wait(60):
                    raise RuntimeError("the callback did not come")

            paths.append(server.count("callback with its push and reserve", called))
        return paths
    finally:
        server.stop()


TASKS = """
import duetime, pathlib
app = duetime.App("sqlite://{folder}/tasks.db", journal="off")
@app.task(queue="tasks")
def note(number: int) -> None:
    pathlib.Path(r"{folder}", f"done-{{number}}").touch()
"""


def task_paths(folder: Path) -> list[CallPath]:
    (folder / "measured_tasks.py").write_text(TASKS.format(folder=folder))
    sys.path.insert(0, str(folder))
    import measured_tasks  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    worker = Measured("work", "measured_tasks:app", folder=folder)
    numbers = iter(range(1_000))

    def run_one() -> None:
        number = next(numbers)
        measured_tasks.note.delay(number)
        deadline = time.monotonic() + 60
        while not (folder / f"done-{number}").exists():
            if time.monotonic() > deadline or worker.process.poll() is not None:
                raise RuntimeError("the task did not run")
            time.sleep(0.01)

    try:
        return [worker.count("task run by a worker", run_one)]
    finally:
        worker.stop()


def embedded_paths(folder: Path, interval: float) -> list[CallPath]:
    script = [sys.executable, __file__, "--embedded", f"sqlite://{folder}/{interval}.db", str(interval)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(script, env=environment, check=True, capture_output=True, text=True, timeout=300)
    return [
        CallPath(name, frozenset((file, function) for file, function in functions), threads)
        for name, functions, threads in json.loads(done.stdout)
    ]


def measure() -> list[CallPath]:
    """Each program is measured in a process of its own, so all are at the same time: they wait most of it."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as threads:
        place = Path(folder)
        measured = [
            threads.submit(server_paths, place),
            *(threads.submit(embedded_paths, place, interval) for interval in (0.01, 2.0)),
            threads.submit(task_paths, place),
        ]
        return [path for one in measured for path in one.result()]


def table(paths: list[CallPath]) -> str:
    lines = ["| path | functions | files | threads | functions outside `http/` | files |", "|---|---|---|---|---|---|"]
    for path in paths:
        rest = path.without_http()
        lines.append(
            f"| {path.name} | {len(path.functions)} | {path.files} | {path.threads} "
            f"| {len(rest.functions)} | {rest.files} |"
        )
    return "\n".join(lines)


PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- call paths: begin -->", "<!-- call paths: end -->"


def documented() -> dict[str, int]:
    """The number of functions of each path, as docs/architecture.md has it."""
    part = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")]
    return {row[0]: int(row[1]) for row in rows[2:]}


def write(paths: list[CallPath]) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(paths)}\n{END}{rest.partition(END)[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", metavar="WORD", help="list the functions of the paths whose name has this word")
    parser.add_argument("--json", action="store_true", help="print the functions of all paths as JSON")
    parser.add_argument("--write", action="store_true", help="renew the table in docs/architecture.md")
    options = parser.parse_args()
    paths = measure()
    if options.write:
        write(paths)
    if options.json:
        print(json.dumps({path.name: sorted(path.functions) for path in paths}))
    elif options.list:
        for path in paths:
            if options.list in path.name:
                print(path.name, *(f"  {file}: {function}" for file, function in sorted(path.functions)), sep="\n")
    else:
        print(table(paths))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--run", *arguments]:
            run_measured(arguments)
        case ["--embedded", store, interval]:
            measured = measure_embedded(store, float(interval))
            print(json.dumps([(one.name, sorted(one.functions), one.threads) for one in measured.values()]))
        case _:
            main()

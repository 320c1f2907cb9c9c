"""Programs that open a client and then fork, as people run them: gunicorn --preload, a pool of processes, a prefork
worker that takes jobs. Each of their processes talks to the store on its own, and no job is lost or doubled.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

import duetime
from tests.plugins.ci import missing_service
from tests.plugins.ports import find_free_port
from tests.plugins.processes import guard, release

REQUESTS = 60

APP = """
import os
import duetime

client = duetime.connect({url!r})
client.queue("web").push("before the fork", id="before")


def app(environ, start_response):
    queue = client.queue("web")
    moved = queue.push(environ["PATH_INFO"])
    taken = queue.pop() if environ["QUERY_STRING"].startswith("take") else None
    if taken:
        taken.ack()
    start_response("200 OK", [("content-type", "text/plain")])
    return [f"{{os.getpid()}} {{moved.id}} {{taken.id if taken else '-'}}".encode()]
"""

POOL = """
import multiprocessing, os, sys, threading
import duetime

client = duetime.connect(sys.argv[1])
queue = client.queue("pool")
queue.push("before the fork")


def work(number):
    # Threads in the child: they share its client as they share the parent's.
    ids = []
    def push(part):
        ids.append(queue.push(f"{number}-{part}").id)
    threads = [threading.Thread(target=push, args=[part]) for part in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [thread.name for thread in threading.enumerate()].count("duetime engine") <= 1  # none on a server
    return os.getpid(), ids

with multiprocessing.get_context("fork").Pool(3) as pool:
    answers = pool.map(work, range(20), chunksize=1)
for pid, ids in answers:
    print(pid, *ids)
client.close()
"""

PREFORK = """
import os, sys
import duetime

client = duetime.connect(sys.argv[1])
client.queue("prefork").counts()
children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        while taken := client.queue("prefork").pop(ttr="1m", wait="200ms"):
            os.write(1, f"{os.getpid()} {taken.id}\\n".encode())
            taken.ack()
        os._exit(0)
    children.append(pid)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
"""


@pytest.fixture
def gunicorn(url: str, tmp_path: Path) -> Iterator[str]:
    """gunicorn with an application that opens its client before the fork, in three processes of two threads."""
    if importlib.util.find_spec("gunicorn") is None:
        missing_service("gunicorn is not installed: make setup-dev")
    (tmp_path / "shop.py").write_text(APP.format(url=url))
    port = find_free_port()
    address = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "3", "--threads", "2", "--bind", address]
    process = subprocess.Popen([*command, "shop:app"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    guard(process.pid)
    assert process.stderr is not None
    for line in process.stderr:
        if "Booting worker" in line:
            break
    reader = threading.Thread(target=process.stderr.read)  # or it would wait for somebody to read on
    reader.start()
    yield f"http://{address}"
    process.terminate()
    process.wait(90)
    reader.join()
    process.stderr.close()
    release(process.pid)


def test_gunicorn_with_preload(gunicorn: str, url: str) -> None:
    """Requests of 16 callers, until each of the three processes has answered some; every second one takes a job."""

    def get(number: int) -> list[str]:
        reply = httpx.get(f"{gunicorn}/{number}", params="take" if number % 2 else "", timeout=60)
        assert reply.status_code == 200, reply.text
        return reply.text.split()

    with ThreadPoolExecutor(16) as callers:
        answers = list(callers.map(get, range(REQUESTS)))

    pids, pushed, taken = zip(*answers, strict=True)
    done = [job_id for job_id in taken if job_id != "-"]
    assert len(set(pids)) > 1
    assert len(set(pushed)) == REQUESTS
    assert len(done) == len(set(done)) == REQUESTS // 2
    with duetime.connect(url) as client:
        left = {job.id for job in client.queue("web").list_jobs("ready", limit=500).jobs}
    assert left == {"before", *pushed} - set(done)


def run_and_fork(program: str, url: str) -> list[list[str]]:
    """The words of each line that a program and its children print. If they hang, the error has their stacks."""
    shows_stacks = "import faulthandler, signal; faulthandler.register(signal.SIGUSR1, all_threads=True)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", shows_stacks + program, url],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    guard(process.pid)
    try:
        out, err = process.communicate(timeout=150)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGUSR1)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=5)
        os.killpg(process.pid, signal.SIGKILL)
        _, err = process.communicate()
        pytest.fail(f"the program or a child hangs: {err}")
    finally:
        release(process.pid)
    assert process.returncode == 0, err
    return [line.split() for line in out.splitlines()]


def test_a_pool_of_processes_with_threads(url: str) -> None:
    lines = run_and_fork(POOL, url)
    pids, ids = {line[0] for line in lines}, [job_id for line in lines for job_id in line[1:]]
    assert (len(lines), len(pids) > 1) == (20, True)
    assert len(ids) == len(set(ids)) == 60
    with duetime.connect(url) as client:
        assert client.queue("pool").counts().ready == 61


def test_children_that_take_jobs_have_each_job_once(url: str) -> None:
    with duetime.connect(url) as client:
        pushed = client.queue("prefork").bulk([str(number) for number in range(60)])
        lines = run_and_fork(PREFORK, url)
        assert sorted(line[1] for line in lines) == sorted(moved.id for moved in pushed)
        assert client.queue("prefork").counts().total == 0

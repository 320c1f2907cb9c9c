"""gunicorn --preload: the App is made, and has pushed, before the workers are forked."""

import subprocess
import sys
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest

import duetime
from tests.frameworks.conftest import STOP_S, Program
from tests.plugins.ci import missing_service
from tests.plugins.ports import find_free_port
from tests.plugins.processes import guard, release
from tests.plugins.until import until

SHOP = """
    import os
    import duetime

    jobs = duetime.App(os.environ["DUETIME_URL"])

    @jobs.task
    def send(to: str) -> None: ...

    send.delay("before the fork")  # opens the connection that no child may use

    def web(environ, start_response):
        pushed = send.delay("ann")
        start_response("200 OK", [("content-type", "text/plain"), ("connection", "close")])
        return [f"{os.getpid()} {pushed.id}".encode()]
"""
REQUESTS = 40


def serve(program: Program, url: str, options: list[str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *options, "shop:web"],
            cwd=program.folder,
            env={**program.environment, "DUETIME_URL": url},
            stdout=out,
            stderr=out,
        )
    guard(server.pid)
    return server


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_workers_that_were_forked_push(program: Program, kind: str, request: pytest.FixtureRequest) -> None:
    if find_spec("gunicorn") is None:
        missing_service("gunicorn is not installed")
    url = program.url if kind == "sqlite" else request.getfixturevalue("redis_url")
    program.write("shop.py", SHOP)
    port = find_free_port()
    options = ["--preload", "--workers", "3", "--bind", f"127.0.0.1:{port}", "--no-control-socket"]
    log = Path(program.folder, "log")
    server = serve(program, url, options, log)
    try:
        answers: list[list[str]] = []

        def answered() -> bool:
            assert server.poll() is None, log.read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=STOP_S) as reply:
                    answers.append(reply.read().decode().split())
            except ConnectionError:
                return False
            except urllib.error.URLError as error:
                if isinstance(error.reason, ConnectionError):
                    return False
                raise
            return len(answers) >= REQUESTS and len({pid for pid, _ in answers}) > 1

        await until(answered, every_s=0.01)
    finally:
        server.terminate()
        server.wait(STOP_S)
        release(server.pid)

    with duetime.connect(url) as client:
        jobs = client.queue("default").list_jobs("ready", limit=500).jobs
        assert len(jobs) == len(answers) + 1
    assert {job_id for _, job_id in answers} <= {job.id for job in jobs}

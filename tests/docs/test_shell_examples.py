"""Every shell command of every page runs as it is written, on stores and servers of a test.

A line of a page is one test, with the names of hosts, folders and stores replaced by the test's own, on a store that
has what the commands speak of. `NOT_RUN` is the one table of lines that do not run, each with its reason. The pages
about moving and production tell a story, so their lines run one after the other, on the same store.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import duetime
from tests.docs.pages import PAGES, ROOT, blocks
from tests.e2e.conftest import Serve, serve, shell
from tests.e2e.shell import DEADLINE_S, Shell, program
from tests.plugins.processes import guard, release
from tests.plugins.serving import Served, serving

__all__ = ["serve", "shell"]

STORIES = ("moving.md", "production.md", "protocol.md")

NOT_RUN = {
    r"^make |^tools/|^DUETIME_TEST_SCALE=": "the repository's own tools, which CI calls",
    r"duetime pipeline|^export |^\s*--due ": "Spark: tests/spark runs each of these commands on data of its own",
    r"duetime top( |$)(?!.*--once)": "draws on a terminal until Ctrl-C: tests/e2e/test_cli_top.py",
    r"duetime demo": "tells a story of a minute",
    r"duetime (topic|alert) test": "calls hosts of the internet: tests/e2e/test_cli_topic.py, tests/alerts/test_cli.py",
    r"duetime pool (add|remove)": "takes servers only; tests/e2e/test_cli_pool.py runs both",
    r"duetime console": "runs until Ctrl-C: tests/e2e/test_cli_console.py",
    r"duetime mcp": "talks to an agent: tests/mcp",
    r"duetime bridge": "another system that runs: tests/bridges",
    r"--follow": "goes on until Ctrl-C",
    r"duetime worker progress": "follows a batch that is running: tests/worker",
    r"duetime worker output": "of a job that is running: tests/worker",
    r"^(while|if|else|fi|done)\b|^lease=.*\$job": "a loop around a program of the reader's",
    r"\| psql": "a database of the reader's: tests/e2e/test_cli_postgres.py",
    r"duetime (token revoke|limit (set|remove))": "of a token that was made before: tests/e2e/test_cli_tokens.py",
    r"http://user:password@host": "a server with a password: tests/e2e/test_cli_tokens.py",
    r"duetime batch (show|pause|resume|cancel|shift)": "of a batch that a program has opened: tests/worker",
    r"duetime schedule (show|pause|resume|run|remove|backfill)": "a schedule: tests/e2e/test_cli_schedule.py",
}

SHOP = """
from duetime import App
app = App()
@app.task(queue="mail")
def send(to): pass
"""


def lines_of(page: Path) -> list[str]:
    """Every command in the page's blocks of shell code; one that continues in the next line is one."""
    joined = [re.sub(r"\\\n\s*", " ", block) for _, block in blocks(page, "sh", "bash")]
    return [re.sub(r"\s+#\s.*$", "", line).strip() for block in joined for line in block.splitlines() if line.strip()]


def reason_not_to_run(line: str) -> str:
    return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, line)), "")


PAGE_OF = {line: page for page in reversed(PAGES) if page.name not in STORIES for line in lines_of(page)}
"""The first page of each line: one that is on several pages runs once."""

LINES = [
    pytest.param(line, id=f"{page.name}:{line[:70]}") for line, page in PAGE_OF.items() if not reason_not_to_run(line)
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with serving(folder, "--dev", DUETIME_PHP_ADMIN_TOKEN="SECRET") as running:
        yield running


def prepared(shell: Shell, line: str) -> str:
    """Make what the line speaks of; answers the line with the lease of a job in the place of its `$lease`."""
    folder = shell.folder
    (folder / "duetime.toml").write_text("")
    (folder / "folder").mkdir()
    (folder / "jobs.jsonl").write_text('{"body": "one"}\n{"body": "two"}\n')
    (folder / "shop").mkdir()
    for name in ("__init__.py", "tasks.py"):
        (folder / "shop" / name).write_text(SHOP)
    journal = str(folder / "journal") if re.search("duetime (history|journal)", line) else None
    with duetime.connect(shell.url, journal=journal) as client:
        mail, backup = client.queue("mail"), client.queue("backup")
        backup.push(b"tar", id="nightly")
        if '"$lease"' in line or "duetime failed" in line:
            mail.push("hello", id="welcome-42")
            lease = mail.take("1m", ttr="1h")
            if "duetime failed" in line:
                lease.kill("no such address")
            else:
                return line.replace('"$lease"', f"'{lease_text(shell, lease)}'")
        elif "push" not in line and "later" not in line:
            mail.push("hello", id="welcome-42", delay="1h" if "reschedule" in line else 0)
    if "cold=" in line:
        shell.ok("push", "mail", "hello", "--url", f"sqlite://{folder}/cold.db")
    if "duetime topic" in line and "duetime topic add" not in line:
        shell.ok("topic", "add", "mail", "https://shop.example.com/mail")
    if "duetime restore" in line:
        shell.ok("backup", "jobs.backup")
    if "duetime alert remove" in line:
        shell.ok("alert", "add", "ops@example.com")
    return line


def lease_text(shell: Shell, lease: duetime.LeasedJob) -> str:
    lease.release()
    return shell.json("reserve", "mail", "--wait", "1m", "--ttr", "1h")[0]["lease"]


def placed(line: str, shell: Shell, served: Served) -> str:
    """The line with the test's hosts, folders and stores."""
    places = {
        "redis://127.0.0.1:6379/0": shell.url,
        "redis://localhost": shell.url if "duetime move" not in line else f"sqlite://{shell.folder}/moved.db",
        "postgresql://db/app": f"sqlite://{shell.folder}/app.db",
        "postgresql://localhost/jobs": f"sqlite://{shell.folder}/cold.db",
        "http://127.0.0.1:7778": served.admin,
        "http://127.0.0.1:7777": served.api,
        "localhost:7777": served.api,
        "$URL": served.api,
        "/var/lib/duetime": str(shell.folder),
        "/etc/": f"{shell.folder}/",
        "/run/duetime/": f"{shell.folder}/",
        "/backups/": f"{shell.folder}/",
        ".venv/bin/duetime": "duetime",
        ".venv/bin/python": sys.executable,
    }
    for name, place in places.items():
        line = line.replace(name, place)
    return line


@pytest.mark.parametrize("line", LINES)
def test_a_line_runs(line: str, shell: Shell, served: Served) -> None:
    if "duetime serve" in line:
        _serve(placed(line, shell, served), shell)
        return
    ready = placed(prepared(shell, line), shell, served)
    if "/reserve" in ready:
        with duetime.connect(served.api) as client:
            client.queue("mail").push("hello")
    if "duetime work " in ready:
        ready += " --stop-when-empty"
    if re.search("queue purge|journal end", ready) and "-y" not in ready:
        ready += " --yes"
    if "duetime failed" in ready and re.search("delete|prune", ready) and "--yes" not in ready:
        ready += " --yes"
    if re.match(r"duetime [^|>$]*$", ready) and "duetime work" not in ready:
        ran = shell.run(*shlex.split(ready)[1:])
        assert ran.code in OTHER_CODES.get(line, (0,)), f"{ready}: exit {ran.code}: {ran.err}"
        return
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", ready],
        cwd=shell.folder,
        env=shell.environment(PATH=path, PYTHONPATH=str(shell.folder)),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{ready}: {done.stderr}"


OTHER_CODES = {"duetime monitor --max-failed 1 --max-late 5m --json": (0, 1)}


def _serve(line: str, shell: Shell) -> None:
    """Start the server of a line on free ports until it says that it serves, and stop it."""
    before, _, command = line.partition("duetime serve")
    arguments = [*program(), "serve", *shlex.split(command), "--port", "0", "--admin-port", "0"]
    more = dict(one.split("=", 1) for one in before.rpartition("&& ")[2].split())
    if "DUETIME_TCP_ENABLED" in more:
        more["DUETIME_TCP_PORT"] = "0"
    (shell.folder / "duetime.toml").write_text("")
    process = subprocess.Popen(
        arguments, cwd=shell.folder, env=shell.environment(**more), stdout=subprocess.PIPE, text=True
    )
    guard(process.pid)
    assert process.stdout is not None
    try:
        assert any(said.strip().startswith("stop") for said in process.stdout), "the server did not start"
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE_S)
        release(process.pid)


def test_every_reason_not_to_run_is_needed() -> None:
    every = [line for page in PAGES for line in lines_of(page)]
    assert [pattern for pattern in NOT_RUN if not any(re.search(pattern, line) for line in every)] == []
    assert len(LINES) > 60


# --- the pages that tell a story


def run(shell: Shell, line: str, **places: str) -> str:
    for name, place in places.items():
        line = line.replace(PLACES[name], place)
    return shell.ok(*shlex.split(line)[1:]).out


PLACES = {
    "folder": "/var/lib/duetime",
    "backups": "/backups",
    "redis": "redis://localhost",
    "token": "TOKEN",
}


def commands(page: str) -> list[str]:
    return [line for line in lines_of(ROOT / "docs" / page) if line.startswith("duetime ")]


@pytest.mark.store_kind("redis")
def test_moving(shell: Shell, redis_url: str, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    shell.ok("push", "mail", "hello", "--delay", "1h", "--url", url)
    assert len(commands("moving.md")) == 5
    # The backup is of the store that the move has emptied; it holds the queue's rules.
    for line in commands("moving.md"):
        run(shell, line, folder=str(tmp_path), backups=str(tmp_path), redis=redis_url)
    assert shell.json("queue", "counts", "--url", redis_url)[0]["delayed"] == 1


def test_production(shell: Shell, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose server has the usual ports."""
    server = serve("--store", f"sqlite://{tmp_path}/jobs.db")
    monkeypatch.setattr("duetime.cli.options.DEFAULT_URL", server.api)
    for name, url in (("API_PORT", server.api), ("ADMIN_PORT", server.admin)):
        monkeypatch.setattr(f"duetime.cli.options.{name}", int(url.rpartition(":")[2]))
    operator = Shell("", tmp_path)
    [create, *rest] = commands("production.md")
    token = run(operator, create).strip()
    said = [run(operator, line, folder=str(tmp_path), backups=str(tmp_path), token=token) for line in rest]
    tokens, _, limits, *_ = said
    assert "the web shop" in tokens
    assert "1,000" in limits
    assert len(said) == 6


def test_the_protocol(shell: Shell, served: Served, tmp_path: Path) -> None:
    script = "\n".join(lines_of(ROOT / "docs/protocol.md"))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=shell.environment(URL=served.api),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"acked"' in done.stdout

"""The import rules in pyproject.toml must refuse what they say they refuse, also for packages that come later."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

FORBIDDEN = [
    ("model.job", "stores.base"),
    ("model.ids", "engine"),
    ("stores.base", "engine"),
    ("stores.base", "stores.memory"),
    ("stores.memory", "stores.sqlite"),
    ("stores.redis", "stores.memory"),
    ("stores.sqlite", "stores.memory"),
    ("stores.sql", "stores.sqlite"),
    ("stores.base", "stores.open"),
    ("http", "engine"),
    ("http", "stores.base"),
    ("engine", "stores.open"),
    ("engine", "stores.memory"),
    ("engine", "journal"),
    ("engine", "metrics"),
    ("engine", "protocols"),
    ("alerts", "callbacks"),
    ("protocols", "server"),
    ("protocols", "stores.open"),
    ("console", "stores.open"),
    ("worker", "stores.open"),
    ("server", "stores.sqlite"),
    ("cli", "stores.memory"),
    ("client", "worker"),
    ("spark", "cli"),
]
ALLOWED = [
    ("stores.base", "model.job"),
    ("stores.sqlite", "stores.base"),
    ("stores.sqlite", "stores.sql"),
    ("stores.open", "stores.memory"),
    ("stores.open", "stores.sqlite"),
    ("engine", "stores.base"),
    ("journal", "engine"),
    ("callbacks", "alerts"),
    ("protocols", "engine"),
    ("protocols", "http"),
    ("server", "protocols"),
    ("server", "stores.open"),
    ("client", "stores.open"),
    ("spark.source", "stores.open"),
    ("cli", "stores.open"),
    ("worker", "client"),
    ("console", "protocols"),
    ("cli", "server"),
]
KERNEL_MUST_NOT = ["asyncio", "sqlite3", "redis", "httpx"]
NEW = ["helpers", "stores.mongo"]
"""Modules that have no place in the layers yet."""


def write_import(folder: Path, importer: str, imported: str) -> None:
    parts = ["duetime", *importer.split(".")]
    package = folder.joinpath(*parts)
    package.mkdir(parents=True, exist_ok=True)
    for depth in range(1, len(parts) + 1):
        (folder.joinpath(*parts[:depth]) / "__init__.py").touch()
    with (package / "__init__.py").open("a") as module:
        module.write(f"import {imported}\n")


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "pyproject.toml", folder)
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run([program, "--no-cache"], cwd=folder, capture_output=True, text=True, timeout=150, check=False)


def plant(folder: Path, pairs: list[tuple[str, str]]) -> None:
    for importer, imported in pairs:
        write_import(folder, imported, "os")
        write_import(folder, importer, f"duetime.{imported}")


def test_what_the_design_allows_is_allowed(tmp_path: Path) -> None:
    plant(tmp_path, ALLOWED)

    result = lint(tmp_path)

    assert result.returncode == 0, result.stdout + result.stderr


def test_what_the_design_forbids_is_refused(tmp_path: Path) -> None:
    """In one run, because a run takes a second: it must name each forbidden import by itself."""
    plant(tmp_path, [*ALLOWED, *FORBIDDEN, *((module, "model.job") for module in NEW)])
    for imported in KERNEL_MUST_NOT:
        write_import(tmp_path, "model.job", imported)

    result = lint(tmp_path)

    assert result.returncode == 1, result.stdout + result.stderr
    named = set(re.findall(r"^- (\S+) -> (\S+) \(l\.\d+\)\n\n", result.stdout, re.MULTILINE))
    assert {(f"duetime.{importer}", f"duetime.{imported}") for importer, imported in FORBIDDEN} <= named
    assert {("duetime.model.job", imported) for imported in KERNEL_MUST_NOT} <= named
    unplaced = re.findall(r"not listed as layers:\n\n((?:- \S+\n)+)", result.stdout)
    assert {f"- duetime.{module}\n" for module in NEW} <= set(unplaced)


def test_programs_that_only_push_need_nothing_of_posix(tmp_path: Path) -> None:
    """As on Windows: the modules and functions that it lacks are taken away."""
    program = """
import asyncio, concurrent.futures.process, importlib, multiprocessing.connection, os, subprocess, sys, zoneinfo
import httpx, rich.live, rich.progress, typer._click.termui, typer.main
for name in ("fcntl", "resource", "pwd", "grp", "termios", "uvloop"):
    sys.modules[name] = None
for name in ("register_at_fork", "sysconf", "fork", "getuid"):
    delattr(os, name)
sys.platform = "win32"
import duetime, duetime.testing
duetime.connect("http://127.0.0.1:9").close()
with duetime.connect("memory:") as client:
    client.queue("mail").push("hello")
try:
    duetime.connect("sqlite:jobs.db").queue("mail").push("hello")
except duetime.InvalidSettings as error:
    assert str(error).startswith("sqlite: needs a POSIX system"), error
else:
    raise AssertionError("a SQLite store must be refused")
app = duetime.App("http://127.0.0.1:9")
@app.task
def send(to: str) -> None: ...
with duetime.testing.in_memory(app) as box:
    send.later("5m", "ann")
    box.travel("5m")
    assert [one.is_done for one in box.run()] == [True]
for name in ("program", "push", "consume", "jobs", "queues", "failed", "top", "topic", "schedule", "tokens", "batches"):
    importlib.import_module("duetime.cli." + name)
from duetime.cli.main import main
sys.argv = ["duetime", "doctor", "--url", "sqlite:jobs.db"] if "--url" in sys.argv else ["duetime", "doctor"]
open("jobs.db", "w").close()
main()
"""
    for arguments, code, says in ((["--url"], 1, "sqlite: needs a POSIX system"), ([], 0, "0 warnings")):
        command = [sys.executable, "-c", program, *arguments]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        assert (ran.returncode, says in ran.stdout) == (code, True), ran.stdout + ran.stderr

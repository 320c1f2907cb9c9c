"""`duetime init`: the project that it writes runs with the three commands of its README."""

import os
import subprocess
import sys
from pathlib import Path

from duetime.model.settings import load, parse_file
from tests.e2e.conftest import Serve
from tests.e2e.shell import DEADLINE_S, Shell, program


def test_the_project_runs(shell: Shell, serve: Serve, tmp_path: Path) -> None:
    wrote = shell.run("init", "my-shop")
    assert wrote.code == 0
    assert "continue with my-shop/README.md" in wrote.out
    folder = tmp_path / "my-shop"
    readme = (folder / "README.md").read_text()
    assert readme.startswith("# my-shop\n")
    for command in ("duetime serve --dev", "duetime work jobs:app", "python jobs.py"):
        assert f"\n    {command} " in readme

    file = parse_file((folder / "duetime.toml").read_text(), "duetime.toml")
    assert load(flags={}, environment={}, file=file).store == "sqlite:duetime-data/jobs.db"
    environment = {**os.environ, "DUETIME_URL": serve("--dev").api}
    subprocess.run([sys.executable, "jobs.py", "10ms"], cwd=folder, env=environment, check=True, timeout=DEADLINE_S)
    worker = subprocess.run(
        [*program(), "work", "jobs:app", "--max-jobs", "1"],
        cwd=folder,
        env=environment,
        check=True,
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
    )
    assert "hello ann" in worker.stdout


def test_nothing_is_overwritten(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    ran = shell.run("init")
    assert ran.code == 2
    assert "must not contain README.md" in ran.err
    assert (tmp_path / "README.md").read_text() == "mine"
    assert not (tmp_path / "jobs.py").exists()


def test_json(shell: Shell) -> None:
    assert shell.run("init", "other", "--json").document == {
        "folder": "other",
        "files": ["jobs.py", "duetime.toml", "README.md", ".gitignore"],
    }

"""A folder for a program of a framework, and its commands as real processes."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

STOP_S = 120

# Django 6 needs Python 3.12: `make quick` runs these tests there.
collect_ignore = [] if find_spec("django.tasks") else ["test_django_suite.py"]


class Program:
    """Files of a program, and the store that it uses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite://{folder / 'jobs.db'}?synchronous=OFF"
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environment = {**os.environ, "DUETIME_URL": self.url, "PYTHONPATH": path, "NO_COLOR": "1"}

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))

    def run(self, *command: str) -> str:
        """Run `python ...` in the folder; answers what it wrote."""
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=STOP_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)

"""No call path is longer than docs/architecture.md says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.call_paths import documented

ROOT = Path(__file__).parents[2]
TOLERANCE = 6
"""Background work that happened to run in every repetition."""


@pytest.mark.timeout(600)
def test_no_call_path_has_grown() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "call_paths.py", "--json"],
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    measured = {name: len(functions) for name, functions in json.loads(done.stdout).items()}
    allowed = documented()
    assert measured.keys() == allowed.keys(), "renew the table: tools/call_paths.py --write"
    assert {name: count for name, count in measured.items() if count > allowed[name] + TOLERANCE} == {}

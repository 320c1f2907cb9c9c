"""The notebook of the docs runs from its first cell to its last, in a Jupyter kernel of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "journal-to-answers.ipynb"


def cells(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["cells"]


def test_it_is_kept_without_outputs() -> None:
    assert [cell for cell in cells(NOTEBOOK) if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.timeout(900)
def test_it_runs(tmp_path: Path) -> None:
    copy = Path(shutil.copy(NOTEBOOK, tmp_path))
    own = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython")}
    execute = [Path(sys.executable).with_name("jupyter-execute"), "--inplace", "--timeout=800", copy]
    ran = subprocess.run(
        execute, env={**os.environ, **own}, cwd=tmp_path, capture_output=True, text=True, timeout=850, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = "".join(text for cell in cells(copy) for one in cell.get("outputs", []) for text in one.get("text", []))
    assert "of 20 jobs" in said
    assert "sound\n{'accepted': 20, 'waiting': 7, 'acked': 13}" in said
    assert not list(tmp_path.glob("tmp*/lake"))

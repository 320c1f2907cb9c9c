"""The page of the SDK says what the docstrings say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "sdk_reference.py"), "--check"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)


def test_the_page_is_up_to_date() -> None:
    ran = check(ROOT)
    assert (ran.returncode, ran.stderr) == (0, "")
    page = (ROOT / "docs" / "sdk.md").read_text()
    assert "#### QueueClient.push\n" in page
    assert "Finish a job. Repeating it is not an error" in page


def test_a_page_that_differs_is_found(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "sdk.md").read_text()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "sdk.md").write_text(page.replace("Finish a job.", "Begin a job."))
    (tmp_path / "docs" / "errors.md").write_text((ROOT / "docs" / "errors.md").read_text())
    assert "out of date" in check(tmp_path).stderr

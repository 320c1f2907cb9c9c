"""The lock files are what a fresh clone installs, so they are checked like code."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
PIN = re.compile(r"^([a-z0-9._-]+)==(\S+)( ;.*)? \\$", re.MULTILINE)


def pins(path: Path) -> set[tuple[str, ...]]:
    return {match.groups(default="") for match in PIN.finditer(path.read_text())}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_a_lock_pins_with_hashes_and_names_no_address(path: Path) -> None:
    text = path.read_text()

    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text
    assert len(pins(path)) > 0
    for block in re.split(r"\n(?=[a-z0-9])", text)[1:]:
        assert "--hash=sha256:" in block, block


def test_the_dev_lock_holds_every_pin_of_the_run_lock() -> None:
    assert {pin[:2] for pin in pins(ROOT / "requirements/run.lock")} <= {
        pin[:2] for pin in pins(ROOT / "requirements/dev.lock")
    }


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = list(project["project"]["dependencies"])
    extras = project["project"]["optional-dependencies"]
    airflow = {re.split(r"[\[<>=; ]", requirement)[0] for requirement in extras.pop("airflow")} - {"duetime"}
    for extra in extras.values():
        wanted.extend(extra)
    names = {re.split(r"[\[<>=; ]", requirement)[0] for requirement in wanted} - {"duetime"}  # extras name others

    assert names <= {pin[0] for pin in pins(ROOT / "requirements/dev.lock")}
    assert airflow <= {pin[0] for pin in pins(ROOT / "requirements/airflow.lock")}

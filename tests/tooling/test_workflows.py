"""The workflows of .github: zizmor finds nothing, actions are pinned, and every command that they run exists."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


def test_zizmor_finds_nothing() -> None:
    zizmor = Path(sys.executable).with_name("zizmor")
    ran = subprocess.run(
        [str(zizmor), "--offline", "--no-progress", str(GITHUB)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


if actionlint := shutil.which(
    "actionlint", path=f"{ROOT}/.venv/go:{os.environ['PATH']}"
):  # `make lint-tools` builds it

    def test_actionlint_finds_nothing() -> None:
        command = [str(actionlint), *map(str, WORKFLOWS)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_commands_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for step in steps(path):
        if "uses" in step:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]), step
        for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", "")):
            assert target in targets
        for file in re.findall(r"\b(?:tools|deploy)/[\w./-]+|(?<!\S)\.ci/run", step.get("run", "")):
            assert (ROOT / file).exists(), file
    text = path.read_text()
    for action, version in re.findall(r"uses: (\S+)(.*)", text):
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", version), action


def test_the_folders_that_dependabot_watches_exist() -> None:
    for update in yaml.safe_load((GITHUB / "dependabot.yml").read_text())["updates"]:
        assert (ROOT / update["directory"].lstrip("/")).is_dir()


def test_release_notes_are_a_section_of_the_changelog() -> None:
    command = [sys.executable, str(ROOT / "tools" / "release_notes.py")]
    ran = subprocess.run([*command, "0.1.0"], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.startswith("### Added")
    assert subprocess.run([*command, "9.9.9"], capture_output=True, check=False, timeout=60).returncode == 1

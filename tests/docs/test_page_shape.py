"""How pages are written: lines of prose that fit a screen, tables with few columns, and paths that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, name_of

DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
EVERY = [*PAGES, *DECISIONS]
SOURCE = ROOT / "src" / "duetime"
LONGEST_LINE = 120
HALF_A_PAGE = 2_200
MODULE = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:py|lua|sql)|[a-z_0-9]+(?:/[a-z_0-9]+)*/)`")
STEP = re.compile(r"^(?:-> )?([a-z_0-9/]+\.py) +(?:([A-Z]\w*)\.)?(\w+)", re.MULTILINE)
FOLDERS = {path.name for path in SOURCE.iterdir() if path.is_dir()}

every_page = pytest.mark.parametrize("page", EVERY, ids=name_of)


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without tables and code: a row or a command cannot be broken."""
    code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code and not line.startswith(("|", "    ")):
            yield number, line


@every_page
def test_lines_of_prose_have_at_most_120_characters(page: Path) -> None:
    assert [(number, len(line)) for number, line in prose(page) if len(line) > LONGEST_LINE] == []


@pytest.mark.parametrize("record", DECISIONS, ids=name_of)
def test_a_decision_record_has_half_a_page(record: Path) -> None:
    assert len(record.read_text()) <= HALF_A_PAGE, "measurements belong in docs/speed.md"


@every_page
def test_files_that_a_page_names_exist(page: Path) -> None:
    """Paths like `duties.py` are relative to src/duetime, others to the repository."""
    named = set(MODULE.findall(page.read_text()))
    missing = [path for path in named if not any((root / path).exists() for root in (SOURCE, ROOT, ROOT / "tests"))]
    assert [path for path in missing if path.endswith(".py") or path.split("/")[0] in FOLDERS] == []


def test_steps_of_the_call_paths_exist() -> None:
    steps = STEP.findall((ROOT / "docs" / "architecture.md").read_text())
    assert len(steps) > 50
    for path, owner, function in steps:
        code = (SOURCE / path).read_text()
        assert not owner or re.search(rf"^class {owner}\b", code, re.MULTILINE), (path, owner)
        assert re.search(rf"\bdef {function}\b", code), (path, owner, function)

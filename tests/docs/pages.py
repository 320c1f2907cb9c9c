"""The pages that the tests of this folder read, and their blocks of code."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "coming-from").glob("*.md")])
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
FENCE = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> Iterator[tuple[int, str]]:
    """The line and the text of every block whose fence names one of these languages."""
    text = page.read_text()
    for found in FENCE.finditer(text):
        if found[1].strip() in languages:
            yield text.count("\n", 0, found.start()) + 1, found[2]


def name_of(page: Path) -> str:
    """For the ids of tests."""
    return str(page.relative_to(ROOT))

"""docs/security.md: every threat names tests, and they exist."""

import re
from pathlib import Path

from tests.tooling.test_lanes import missing

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
TEST = re.compile(r"`(tests/[^`]+::[^`]+)`")


def threats() -> list[list[str]]:
    section = PAGE.read_text().partition("## Threats")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [TEST.findall(row) for row in rows]


def test_every_threat_names_tests_that_exist() -> None:
    tests = threats()
    assert len(tests) > 20
    assert all(tests)
    assert missing(frozenset(name for row in tests for name in row)) == []

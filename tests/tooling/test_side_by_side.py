"""CI's two cores: tests that need no shared Spark session are not queued behind those that do."""

import re
from pathlib import Path

from tests.plugins.side_by_side import SPARK, WITHOUT_SESSION, SideBySide

ROOT = Path(__file__).parents[2]
ASKS_FOR_SESSION = re.compile(r"^(?:async )?def \w+\([^)]*\bspark\b", re.MULTILINE)


def test_files_without_the_shared_session_are_listed() -> None:
    files = sorted((ROOT / SPARK).glob("test_*.py"))
    without = [f"{SPARK}{file.name}::" for file in files if not ASKS_FOR_SESSION.search(file.read_text())]
    assert list(WITHOUT_SESSION) == without


def test_only_tests_of_the_shared_session_share_a_process() -> None:
    scope = SideBySide._split_scope
    shared = [f"{SPARK}test_{name}.py::test_x" for name in ("audit", "schedule")]
    alone = [f"{SPARK}test_{name}.py::test_x" for name in ("cluster", "connect")]
    assert {scope(None, test) for test in shared} == {SPARK}  # pyright: ignore[reportArgumentType]
    assert [scope(None, test) for test in alone] == alone  # pyright: ignore[reportArgumentType]

"""CI's two cores: tests that need no shared Spark session are not queued behind those that do."""

import re
from pathlib import Path
from types import SimpleNamespace

from tests.plugins.side_by_side import SPARK, WITHOUT_SESSION, SideBySide, pytest_collection_modifyitems

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


def test_long_tests_come_first() -> None:
    items = [SimpleNamespace(nodeid=f"tests/{name}/test_x.py::test_x") for name in ("unit", "spark", "docs", "faults")]
    pytest_collection_modifyitems(items)  # pyright: ignore[reportArgumentType]
    assert [item.nodeid.split("/")[1] for item in items] == ["spark", "faults", "unit", "docs"]


def test_what_is_done_is_not_counted_again() -> None:
    workload = {"done": {"a": True}, "begun": {"b": True, "c": False}, "waiting": {"d": False}}
    assert SideBySide._pending_of(None, workload) == 2  # pyright: ignore[reportArgumentType]
    assert list(workload) == ["begun", "waiting"]

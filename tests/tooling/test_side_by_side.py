"""CI's two cores: tests that need no shared Spark session are not queued behind those that do."""

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.plugins.side_by_side import SPARK, WITHOUT_SESSION, SideBySide, pytest_collection_modifyitems

ROOT = Path(__file__).parents[2]
ASKS_FOR_SESSION = re.compile(r"^(?:async )?def \w+\([^)]*\bspark\b", re.MULTILINE)


def test_files_without_the_shared_session_are_listed() -> None:
    files = sorted((ROOT / SPARK).glob("test_*.py"))
    without = [f"{SPARK}{file.name}::" for file in files if not ASKS_FOR_SESSION.search(file.read_text())]
    assert list(WITHOUT_SESSION) == without


@pytest.mark.parametrize("is_full", [False, True])
def test_only_tests_that_share_something_share_a_process(is_full: bool) -> None:
    lane = SimpleNamespace(config=SimpleNamespace(getoption=lambda _: is_full))
    scope = partial(SideBySide._split_scope, lane)  # pyright: ignore[reportArgumentType]
    shared = [f"{SPARK}test_{name}.py::test_x" for name in ("audit", "schedule")]
    image = [f"tests/tooling/test_deploy.py::test_the_image_{what}" for what in ("is_small", "builds")]
    alone = [f"{SPARK}test_{name}.py::test_x" for name in ("cluster", "connect")]
    assert {*map(scope, shared)} == {SPARK}
    assert len({*map(scope, image)}) == 1
    assert [*map(scope, alone)] == alone
    assert (scope(f"{SPARK}test_growth.py::test_x") == SPARK) is not is_full


def test_long_tests_come_first() -> None:
    files = ("unit/test_x.py", "spark/test_x.py", "docs/test_x.py", "docs/test_call_paths.py", "faults/test_x.py")
    items = [SimpleNamespace(nodeid=f"tests/{file}::test_x") for file in files]
    pytest_collection_modifyitems(items)  # pyright: ignore[reportArgumentType]
    assert [files.index(item.nodeid[6:-8]) for item in items] == [1, 3, 4, 0, 2]


def test_what_is_done_is_not_counted_again() -> None:
    workload = {"done": {"a": True}, "begun": {"b": True, "c": False}, "waiting": {"d": False}}
    assert SideBySide._pending_of(None, workload) == 2  # pyright: ignore[reportArgumentType]
    assert list(workload) == ["begun", "waiting"]

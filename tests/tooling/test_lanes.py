"""tests/lanes.toml and tests/regressions.toml name only files and tests that exist, and the lanes run what they say."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.lanes import ROOT, TESTS, full_only, lanes, regression_tests

pytest_plugins = ["pytester"]


def names_in(body: list[ast.stmt], before: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from names_in(node.body, f"{before}{node.name}::")
        elif isinstance(node, ast.If):
            yield from names_in(node.body, before)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield before + node.name


def missing(names: Iterator[str] | frozenset[str]) -> list[str]:
    known: dict[str, set[str]] = {}
    absent: list[str] = []
    for name in names:
        path, _, test = name.partition("[")[0].partition("::")
        file = ROOT / path
        if path not in known:
            known[path] = set(names_in(ast.parse(file.read_text()).body)) | {""} if file.exists() else set()
        if test not in known[path]:
            absent.append(name)
    return absent


def test_every_test_of_a_repaired_fault_exists() -> None:
    assert missing(regression_tests()) == []


def test_every_repaired_fault_names_a_test() -> None:
    faults = tomllib.loads((TESTS / "regressions.toml").read_text())
    assert [fault for fault, tests in faults.items() if not tests] == []


def test_every_file_and_case_of_the_lanes_exists() -> None:
    assert missing(full_only()) == []
    for folder, kinds in lanes()["chosen"].items():
        assert missing(frozenset(f"{folder}/{entry}" for entries in kinds.values() for entry in entries)) == []


SAMPLE = """
    import pytest
    from tests.plugins.lanes import parametrize_by_store

    def pytest_generate_tests(metafunc):
        parametrize_by_store(metafunc, "store_kind", ["memory", "mysql"])

    @pytest.fixture
    def store_kind(request):
        return request.param

    @pytest.mark.parametrize("number", [1, 2])
    def test_chosen_case(store_kind, number):
        pass

    def test_chosen(store_kind):
        pass

    def test_repaired(store_kind):
        pass

    def test_other(store_kind):
        pass

    @pytest.mark.parametrize("store_kind", ["mysql"], indirect=True)
    def test_with_its_own_stores(store_kind):
        pass
"""
LANES = """
full_only = ["test_story.py", "test_repaired_story.py", "test_cases.py::test_long", "test_cases.py::test_short[2]"]
[chosen."."]
mysql = ["test_sample.py::test_chosen", "test_sample.py::test_chosen_case[mysql-2]"]
"""
REGRESSIONS = """
"a fault" = ["test_sample.py::test_repaired"]
"another fault" = ["test_repaired_story.py::test_first"]
"""
STORY = """
    def test_first():
        pass

    def test_second():
        pass
"""
CASES = """
    import pytest

    def test_long():
        pass

    @pytest.mark.parametrize("number", [1, 2])
    def test_short(number):
        pass
"""
SHORT = [
    "test_cases.py::test_short[1]",
    "test_repaired_story.py::test_first",
    "test_sample.py::test_chosen[memory]",
    "test_sample.py::test_chosen[mysql]",
    "test_sample.py::test_chosen_case[memory-1]",
    "test_sample.py::test_chosen_case[memory-2]",
    "test_sample.py::test_chosen_case[mysql-2]",
    "test_sample.py::test_other[memory]",
    "test_sample.py::test_repaired[memory]",
    "test_sample.py::test_repaired[mysql]",
    "test_sample.py::test_with_its_own_stores[mysql]",
]
FULL = [
    *SHORT,
    "test_cases.py::test_long",
    "test_cases.py::test_short[2]",
    "test_repaired_story.py::test_second",
    "test_sample.py::test_chosen_case[mysql-1]",
    "test_sample.py::test_other[mysql]",
    "test_story.py::test_first",
    "test_story.py::test_second",
]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], SHORT),
        (["--full"], FULL),
        (["test_story.py"], ["test_story.py::test_first", "test_story.py::test_second"]),
    ],
    ids=["short", "full", "a file by name"],
)
def test_what_a_lane_collects(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: list[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_sample=SAMPLE, test_cases=CASES, test_story=STORY, test_repaired_story=STORY)
    folder = Path(pytester.path)
    (folder / "lanes.toml").write_text(LANES)
    (folder / "regressions.toml").write_text(REGRESSIONS)
    pytester.makepyfile(
        here=f"""
        from pathlib import Path
        import tests.plugins.lanes as lanes
        lanes.TESTS = lanes.ROOT = Path({str(folder)!r})
        """
    )
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{folder}")
    result = pytester.runpytest_subprocess(
        "-p", "tests.plugins.lanes", "-p", "here", "--collect-only", "-q", *arguments
    )

    assert result.ret == 0
    assert sorted(line for line in result.outlines if "::" in line) == sorted(expected)

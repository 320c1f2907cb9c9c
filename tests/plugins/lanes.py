"""The two lanes: `make test` runs before each merge, `make test-full` (`--full`) runs everything.

tests/lanes.toml lists what the short lane leaves out: files and tests, and, for stores that repeat the work of another
one, all cases but a chosen few. tests/regressions.toml lists tests that always run, on every store they have.
What the short lane leaves out is not collected. A file that is named on the command line always runs.
"""

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
KIND_KEYS = ("store_kind", "url", "kind")
"""Parameters that may name a store's kind."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run everything, not only what tests/lanes.toml leaves in")


@cache
def lanes() -> dict[str, Any]:
    return tomllib.loads((TESTS / "lanes.toml").read_text())


@cache
def full_only() -> frozenset[str]:
    """Files, path::test and path::test[case]."""
    return frozenset(lanes()["full_only"])


@cache
def chosen_cases(folder: str) -> Mapping[str, frozenset[str]]:
    """Store kind to what runs on it in the short lane: file, file::test or file::test[case] in that folder."""
    return {kind: frozenset(chosen) for kind, chosen in lanes()["chosen"].get(folder, {}).items()}


@cache
def regression_tests() -> frozenset[str]:
    """The tests of repaired faults, as path::test."""
    faults = tomllib.loads((TESTS / "regressions.toml").read_text())
    return frozenset(test for tests in faults.values() for test in tests)


def parametrize_by_store(
    metafunc: pytest.Metafunc, argument: str, kinds: Sequence[str], scope: str = "function"
) -> None:
    """Parametrise the fixture `argument` with the kinds on which this lane runs the test.

    Does nothing for a test that does not use the fixture, or that has its own parameters for it.
    """
    if argument not in metafunc.fixturenames:
        return
    if any(argument in _names(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize")):
        return
    if metafunc._arg2fixturedefs[argument][-1].params is not None:
        return
    path, _, name = metafunc.definition.nodeid.partition("::")
    if not metafunc.config.getoption("--full") and f"{path}::{name}" not in regression_tests():
        chosen = chosen_cases(str(Path(path).parent))
        file = Path(path).name
        kinds = [kind for kind in kinds if kind not in chosen or _has(chosen[kind], file, name)]
    metafunc.parametrize(argument, kinds, indirect=True, scope=scope)  # type: ignore[arg-type]


def _names(names: str | Sequence[str]) -> list[str]:
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


def _has(chosen: frozenset[str], file: str, name: str) -> bool:
    test = f"{file}::{name}"
    return not chosen.isdisjoint((file, test)) or any(entry.startswith(f"{test}[") for entry in chosen)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    path = str(collection_path.relative_to(ROOT)) if collection_path.is_relative_to(ROOT) else ""
    if config.getoption("--full") or path not in full_only() or _is_named(path, config):
        return None
    return None if any(test.startswith(f"{path}::") for test in regression_tests()) else True


def _is_named(path: str, config: pytest.Config) -> bool:
    return any(argument.partition("::")[0].endswith(path) for argument in config.args)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    left_out = [item for item in items if _is_left_out(item, config)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        leaving = set(left_out)
        items[:] = [item for item in items if item not in leaving]


def _is_left_out(item: pytest.Item, config: pytest.Config) -> bool:
    path, _, case = item.nodeid.partition("::")
    name = case.partition("[")[0]
    if f"{path}::{name}" in regression_tests():
        return False
    if not full_only().isdisjoint((path, f"{path}::{name}", item.nodeid)):
        return not _is_named(path, config)
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec is not None else {}
    chosen = chosen_cases(str(Path(path).parent)).get(
        str(next((params[key] for key in KIND_KEYS if key in params), ""))
    )
    if chosen is None:
        return False
    if "store_kind" not in params and not _has(chosen, Path(path).name, name):
        return True
    test = f"{Path(path).name}::{name}"
    # An entry without a case stands for all cases; parametrize_by_store left out tests that are not chosen.
    return any(entry.startswith(f"{test}[") for entry in chosen) and f"{Path(path).name}::{case}" not in chosen

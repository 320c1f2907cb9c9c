"""Records what each test reaches of some modules: the named statements that it runs, and the steps from line to line.

Not a plugin of every run: tests/tooling/test_chosen_cases.py runs the chosen cases of a store with it.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from duetime.stores.mysql.session import MysqlSession

SOURCE = Path(__file__).parents[2] / "src" / "duetime"
OUT = "DUETIME_REACH_OUT"
FOLDERS = "DUETIME_REACH_FOLDERS"
"""Folders below src/duetime, separated by a colon."""

_reached: dict[str, set[str]] = {}
_now: set[str] = set()
_folders = tuple(f"{SOURCE}/{name}/" for name in os.environ.get(FOLDERS, "").split(":") if name)


def _trace_calls(frame: FrameType, event: str, argument: Any) -> Any:
    file = frame.f_code.co_filename
    if not file.startswith(_folders):
        return None
    name, before = file.removeprefix(f"{SOURCE}/"), frame.f_lineno

    def trace_lines(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal before
        if event == "line":
            _now.add(f"{name} {before} {frame.f_lineno}")
            before = frame.f_lineno
        return trace_lines

    return trace_lines


def pytest_configure(config: pytest.Config) -> None:
    texts = MysqlSession._texts

    def noting_texts(self: MysqlSession, command: tuple[str, Any]) -> Iterator[str]:
        _now.add(command[0])
        return texts(self, command)

    MysqlSession._texts = noting_texts  # type: ignore[method-assign]
    threading.settrace(_trace_calls)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    _now.clear()
    sys.settrace(_trace_calls)
    done = yield
    _reached[item.nodeid] = set(_now)
    return done


def pytest_sessionfinish(session: pytest.Session) -> None:
    sys.settrace(None)
    threading.settrace(None)
    if OUT in os.environ:
        found = {test: sorted(reached) for test, reached in _reached.items()}
        Path(os.environ[OUT]).write_text(json.dumps(found))

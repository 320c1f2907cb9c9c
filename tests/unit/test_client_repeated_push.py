"""The mark that a push over HTTP carries: new each time, and in the order of time."""

import time

import pytest

from duetime.client.calls import mark_for_repeats
from duetime.model.job import NewJob


def name_at(ms: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(time, "time_ns", lambda: ms * 1_000_000)
    mark = mark_for_repeats([NewJob("a", b"")])
    assert mark is not None
    return mark.name


def test_marks_of_one_moment_differ_and_sort_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [name_at(ms, monkeypatch) for ms in (1_794_890_000_000, 1_794_890_000_001, 1_794_999_999_999)]
    assert made == sorted(made)
    twins = {name_at(1_794_890_000_000, monkeypatch) for _ in range(100)}
    assert len(twins) == 100
    assert max(twins) < made[1]

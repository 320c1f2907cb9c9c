"""What the doctor finds, and how a table of checks turns facts into findings.

A `Check` has a name that programs can rely on, and its possible verdicts: the first one whose condition holds becomes
the finding. The texts of a verdict are format strings over the facts. A verdict that is not fine says why it matters
and what to do; the functions ask for both.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Facts = Mapping[str, Any]
Condition = Callable[[Facts], object]


class Grade(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    check: str
    grade: Grade
    what: str
    why: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Verdict:
    grade: Grade
    when: Condition | None
    texts: tuple[str, ...]
    """`what`, and unless it is fine `why` and `fix`."""


def ok(what: str, *, when: Condition | None = None) -> Verdict:
    return Verdict(Grade.OK, when, (what,))


def warn(what: str, *, why: str, fix: str, when: Condition | None = None) -> Verdict:
    return Verdict(Grade.WARN, when, (what, why, fix))


def fail(what: str, *, why: str, fix: str, when: Condition | None = None) -> Verdict:
    return Verdict(Grade.FAIL, when, (what, why, fix))


class Check:
    """`rows` yields more facts, such as the rows of a query: one finding for each of them, or one if there are none."""

    def __init__(
        self, name: str, *verdicts: Verdict, rows: Callable[[Facts], Iterable[Facts]] = lambda facts: ()
    ) -> None:
        self.name, self.verdicts, self.rows = name, verdicts, rows


def judge(checks: Iterable[Check], facts: Facts) -> Iterator[Finding]:
    """The findings of the checks, in their order. A check of which no verdict applies has none."""
    for check in checks:
        for row in tuple(check.rows(facts)) or ({},):
            seen = {**facts, **row}
            for verdict in check.verdicts:
                if verdict.when is None or verdict.when(seen):
                    yield Finding(check.name, verdict.grade, *(text.format_map(seen) for text in verdict.texts))
                    break

"""What the doctor finds: a grade, what was seen, why it matters and what to do about it.

Each check has a name that programs can rely on. Whoever makes a finding that is not fine must say why and what to do;
the type asks for it.
"""

from dataclasses import dataclass
from enum import StrEnum


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


def ok(check: str, what: str) -> Finding:
    return Finding(check, Grade.OK, what)


def warn(check: str, what: str, *, why: str, fix: str) -> Finding:
    return Finding(check, Grade.WARN, what, why, fix)


def fail(check: str, what: str, *, why: str, fix: str) -> Finding:
    return Finding(check, Grade.FAIL, what, why, fix)


def size(number: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"

"""A class name stands once in `src/`, so that a search for it finds one thing."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"

EXCEPTIONS: dict[str, str] = {
    "Command": "Django finds a command of manage.py by this name",
    "Meta": "Django finds what is said about a model by this name",
}
"""Class names that may stand more than once, each with the reason."""


def classes_by_name() -> dict[str, list[str]]:
    lines: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                lines[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    return lines


def test_no_class_name_stands_twice() -> None:
    twice = {name: lines for name, lines in classes_by_name().items() if len(lines) > 1}

    assert {name: lines for name, lines in twice.items() if name not in EXCEPTIONS} == {}


def test_every_exception_is_needed_and_has_a_reason() -> None:
    twice = {name for name, lines in classes_by_name().items() if len(lines) > 1}

    assert set(EXCEPTIONS) <= twice
    assert all(EXCEPTIONS.values())

"""docs/collections.md: every method that its tables name exists, and a test uses it."""

import re
from pathlib import Path

import pytest

import duetime

ROOT = Path(__file__).parents[2]

CLASSES = {
    "Delayed queue": duetime.DelayedQueue,
    "Blocking queue": duetime.BlockingQueue,
    "Reliable queue": duetime.ReliableQueue,
}
ELSEWHERE = {"ReliableFanout", "QueueSettings", "MessageOptions", "subscribe", "unsubscribe", "subscribers", "publish"}


def named_methods(section: str) -> list[str]:
    page = (ROOT / "docs/collections.md").read_text()
    text = page.partition(f"## {section}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[2] for line in text.splitlines() if line.startswith("|")]
    return sorted(
        {name for cell in cells for code in re.findall(r"`([^`]+)`", cell) for name in re.findall(r"^(\w+)\(", code)}
    )


@pytest.mark.parametrize("section", CLASSES)
def test_every_method_of_the_tables_is_there_and_used_in_a_test(section: str) -> None:
    tests = (ROOT / "tests/e2e/test_collections.py").read_text()
    names = [name for name in named_methods(section) if name != "len"]

    assert len(names) > 10
    missing = [name for name in names if not hasattr(CLASSES[section], name) and name not in ELSEWHERE]
    unused = [
        name for name in names if f".{name}(" not in tests and f"{name}(" not in tests and f'"{name}"' not in tests
    ]
    assert (missing, unused) == ([], [])

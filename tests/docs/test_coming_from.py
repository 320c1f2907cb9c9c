"""The programs "before" on the pages for users of other queues; `test_examples.py` runs those "after"."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, FENCE, ROOT
from tests.examples.test_clients import node, php
from tests.plugins.ci import missing_service

TITLED = re.compile(r'(\w+) title="(.+)"')
PEERS = ROOT / ".venv-bench" / "bin" / "python"
CHECKERS: dict[str, Callable[[], list[str]]] = {
    "python": lambda: [sys.executable, "-m", "py_compile"],
    "php": lambda: [php(), "-l"],
    "javascript": lambda: [node(), "--check"],
}


def programs(page: Path) -> list[tuple[str, str, str]]:
    """The language, the system and the text of every program with a title."""
    found = [(TITLED.fullmatch(one[1].strip()), one[2]) for one in FENCE.finditer(page.read_text())]
    return [(title[1], title[2], code) for title, code in found if title]


PAGES = [page for page in DOCS if programs(page)]
BEFORE = {page.stem: programs(page)[0] for page in PAGES}


def test_each_system_has_a_page_with_a_table_and_two_programs() -> None:
    listed = re.findall(r"^\| \[.*?\]\((.+?)\)", (ROOT / "docs/coming-from/index.md").read_text(), re.MULTILINE)
    assert {(ROOT / "docs/coming-from" / link).resolve() for link in listed} == set(PAGES)
    for page in PAGES:
        assert page.read_text().startswith("# Coming from ")
        [(_, before, _), (_, after, _)] = programs(page)
        assert after == "Duetime"
        assert re.search(rf"^\| .*{before}.* \| Duetime \|$", page.read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", [name for name, (language, _, _) in BEFORE.items() if language in CHECKERS])
def test_a_program_before_has_no_error_of_syntax(name: str, tmp_path: Path) -> None:
    language, _, code = BEFORE[name]
    file = tmp_path / ("before.mjs" if language == "javascript" else "before")
    file.write_text(code)
    done = subprocess.run([*CHECKERS[language](), file], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [name for name, (language, _, _) in BEFORE.items() if language == "python"])
@pytest.mark.store_kind("redis")
def test_a_python_program_before_runs(name: str, tmp_path: Path, redis_url: str) -> None:
    if not PEERS.exists():
        missing_service("the peers of the benchmarks are not installed: run make setup-bench")
    (tmp_path / "before.py").write_text(BEFORE[name][2].replace("redis://localhost", redis_url))
    command = [PEERS, "-c", "import before"]  # RQ's workers import the functions that they run
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr

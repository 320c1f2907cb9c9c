"""What the pages say works: every Python example runs, every setting exists, every link leads somewhere."""

import ast
import importlib
import json
import re
from pathlib import Path

import pytest

import duetime
from duetime.model.job import TRANSITIONS
from duetime.model.settings import FIELDS, OTHER_VARIABLES, Settings, load, row, shown, variable
from tests.docs.pages import PAGES, ROOT, blocks, name_of

TABLE_ROW = re.compile(r"^\| (.*) \|$", re.MULTILINE)


EXAMPLES = [
    pytest.param(text, id=f"{name_of(page)}:{line}")
    for page in PAGES
    for line, text in blocks(page, "python", 'python title="Duetime"')
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_a_python_example_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "<example>", "exec"), {"__name__": "__main__"})


MODULES = [one for one in EXAMPLES if str(one.values[0]).startswith("# shop.py")]


@pytest.mark.parametrize("code", MODULES)
def test_a_module_that_workers_import_pushes_nothing_at_import(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "<example>", "exec"), {"__name__": "shop"})
    with duetime.connect("sqlite:jobs.db") as client:
        assert client.queues() == []


@pytest.mark.parametrize("notebook", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_what_a_notebook_imports_exists(notebook: Path) -> None:
    """`make test-full` runs the notebooks."""
    cells = [
        "".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"
    ]
    imports = [node for cell in cells for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.ImportFrom)]
    for node in imports:
        module = importlib.import_module(str(node.module))
        assert [name.name for name in node.names if not hasattr(module, name.name)] == [], node.module
    assert imports


def test_the_readme_starts_with_one_sentence_two_commands_and_an_example() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:25])
    assert "make run" in first_screen
    assert "make test" in first_screen
    assert "```python" in first_screen


def settings_tables() -> list[list[str]]:
    """Without the heads of the tables."""
    page = (ROOT / "docs" / "settings.md").read_text()
    part = page.partition("<!-- settings: begin -->")[2].partition("<!-- settings: end -->")[0]
    rows = [[cell.strip().strip("`") for cell in found[1].split("|")] for found in TABLE_ROW.finditer(part)]
    return [row for row in rows if row[0] != "setting"]


def test_the_table_of_settings_is_the_table_of_settings() -> None:
    defaults: Settings = load(flags={}, environment={}, file={})
    expected = [[name, shown(defaults, name), row(name).flag, row(name).about.strip("`")] for name in FIELDS]
    assert settings_tables() == expected


def test_the_variable_of_a_setting_is_its_name_in_capitals() -> None:
    assert {variable(name) for name in FIELDS} == {f"DUETIME_{name.upper()}" for name in FIELDS}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_variables_that_a_page_names_exist(page: Path) -> None:
    known = {variable(name) for name in FIELDS} | set(OTHER_VARIABLES)
    named = set(re.findall(r"\bDUETIME_[A-Z_]+\b", page.read_text()))
    assert {name for name in named - known if not name.startswith("DUETIME_TEST_")} == set()


def test_the_verbs_of_the_concepts_are_those_of_the_kernel() -> None:
    page = (ROOT / "docs" / "concepts.md").read_text().partition("## What a verb does")[2].partition("\n## ")[0]
    [header, *rows] = [[cell.strip() for cell in found[1].split("|")] for found in TABLE_ROW.finditer(page)]
    assert header == ["verb", "waiting", "leased", "dead", "absent"]
    assert [cells[0] for cells in rows] == list(TRANSITIONS)
    for verb, *cells in rows:
        filled = {place for place, cell in zip(header[1:], cells, strict=True) if cell}
        assert filled == set(TRANSITIONS[verb]), verb


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#|mailto:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []

"""The policies and the support matrix agree with what the project says elsewhere."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from duetime import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = re.compile(r"^([a-z0-9._-]+)==([0-9.]+)", re.MULTILINE)


def rows() -> dict[str, list[str]]:
    table = re.search(r"<!-- matrix: begin -->\n(.*?)<!-- matrix: end -->", _page("docs/support.md"), re.DOTALL)
    assert table
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]
    return {first: others for first, *others in found}


def _page(name: str) -> str:
    return (ROOT / name).read_text()


def test_the_citation_has_the_version() -> None:
    citation = yaml.safe_load(_page("CITATION.cff"))
    assert (citation["version"], citation["license"]) == (__version__, PROJECT["license"])


def test_the_matrix_has_the_python_versions_of_the_classifiers() -> None:
    classified = {one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)}
    ci, also = rows()["Python"][:2]
    assert {ci, *also.split(", ")} == classified
    workflow = yaml.safe_load(_page(".github/workflows/ci.yml"))
    assert set(workflow["jobs"]["python"]["strategy"]["matrix"]["python"]) == set(also.split(", "))


@pytest.mark.parametrize(
    ("row", "package", "locks"),
    [("Spark", "pyspark", "dev spark-4.0"), ("Airflow", "apache-airflow", "airflow"), ("Django", "django", "dev")],
)
def test_the_matrix_has_the_versions_that_are_pinned(row: str, package: str, locks: str) -> None:
    pages = "\n".join(_page(f"requirements/{lock}.lock") for lock in locks.split())
    pins = {version for name, version in PINS.findall(pages) if name == package}
    said = {one for cell in rows()[row][:2] for one in cell.split(", ") if one}
    assert said == {".".join(version.split(".")[:2]) for version in pins}


def test_what_agents_are_asked_to_run_exists() -> None:
    text = _page("AGENTS.md")
    targets = set(re.findall(r"^([a-z-]+):", _page("Makefile"), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) <= targets
    paths = re.findall(r"\b(?:src|tests|docs|tools)/[\w./-]+", text)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    "name", ["SECURITY.md", "CODE_OF_CONDUCT.md", "AGENTS.md", "docs/support.md", "docs/formats.md"]
)
def test_links_of_policies_lead_somewhere(name: str) -> None:
    page = ROOT / name
    links = [link for link in re.findall(r"\]\(([^)#]+)", page.read_text()) if not link.startswith("https://")]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_dependency_has_its_purpose() -> None:
    table = _page("docs/install.md").partition("## What each dependency is for")[2]
    said: set[tuple[str, str]] = set()
    for names, extra in re.findall(r"^\| ([a-z0-9, -]+) \| (\w*) ?\|", table, re.MULTILINE):
        said |= {(name, extra) for name in names.split(", ") if name != "dependency"}
    extras = PROJECT["optional-dependencies"]
    lists = {"": PROJECT["dependencies"], "cli": extras["cli"], "server": extras["server"]}
    wanted = {(re.split(r"[\[<>=; ]", one)[0], extra) for extra, several in lists.items() for one in several}
    assert said == wanted - {("duetime", "server")}


def test_every_extra_is_described() -> None:
    page = _page("docs/install.md")
    extras = PROJECT["optional-dependencies"].keys() - {"test", "dev"}
    assert [extra for extra in extras if f"`{extra}`" not in page and f"[{extra}]`" not in page] == []

"""The documentation site builds without a warning, every page is in it, and a link that leads nowhere is an error."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import DOCS, ROOT

ICON = "src/duetime/console/static/icon.svg"


def build(root: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / "tools" / "docs_site.py"), *map(str, arguments)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


def test_the_site_is_whole(tmp_path: Path) -> None:
    site = tmp_path / "0.1"
    (tmp_path / "0.0").mkdir()
    (tmp_path / "0.0" / "index.html").touch()
    ran = build(ROOT, tmp_path, "0.1.7")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [one["version"] for one in json.loads((tmp_path / "versions.json").read_text())] == ["0.1", "0.0"]
    assert "url=0.1/" in (tmp_path / "index.html").read_text()
    pages = [str(path.relative_to(ROOT / "docs").with_suffix("")) for path in DOCS if path.stem != "index"]
    assert [page for page in pages if not (site / page / "index.html").exists()] == []
    assert "Accepted" in (site / "llms-full.txt").read_text()
    first = (site / "index.html").read_text()
    assert re.findall(r'(?:src|href)="(?:https?:)?//[^"]+\.(?:js|css|woff2?)"', first) == []  # nothing from elsewhere
    assert 'data-md-color-scheme="slate"' in first
    assert (site / "img" / "icon.svg").exists()
    assert '<td data-label="about">' in (site / "settings" / "index.html").read_text()  # for phones
    tabs = re.findall(r'href="([^"]+)" class="md-tabs__link"', first)
    assert tabs == [".", "frameworks/", "coming-from/", "operations/", "sdk/", "concepts/", "support/"]  # first pages
    index = (site / "llms.txt").read_text()
    linked = re.findall(r"\]\(([^)]+)\)", index)
    assert [link for link in linked if not (site / link).exists()] == []
    assert {"index.md", *(f"{page}.md" for page in pages)} <= set(linked)


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name in ("docs", "tools"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("npm"))
    for name in ("LICENSE", *(page.name for page in ROOT.glob("*.md"))):
        shutil.copyfile(ROOT / name, copy / name)
    shutil.copyfile(ROOT / "mkdocs.yml", copy / "mkdocs.yml")
    (copy / ICON).parent.mkdir(parents=True)
    shutil.copyfile(ROOT / ICON, copy / ICON)
    page = copy / "docs" / "stores.md"
    page.write_text(page.read_text() + "\n[nowhere](nothing.md) [no such part](journal.md#nothing)\n")
    ran = build(copy, tmp_path / "site")
    assert ran.returncode != 0
    assert "nothing.md" in ran.stderr
    assert "#nothing" in ran.stderr

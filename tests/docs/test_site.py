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
    lists = {page: re.findall("<ol>.*?</ol>", page.read_text(), re.DOTALL) for page in site.rglob("index.html")}
    broken = [page for page, found in lists.items() if any(one.count("<li>") == 1 for one in found)]
    assert broken == [], "blocks within a numbered list must be indented by four spaces"
    index = (site / "llms.txt").read_text()
    linked = re.findall(r"\]\(([^)]+)\)", index)
    assert [link for link in linked if not (site / link).exists()] == []
    assert {"index.md", *(f"{page}.md" for page in pages)} <= set(linked)


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    """In a copy with two pages and their menu."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "tools", copy / "tools", ignore=shutil.ignore_patterns("npm", "jars"))
    for folder in ("docs/img", "docs/decisions", Path(ICON).parent):
        (copy / folder).mkdir(parents=True)
    shutil.copyfile(ROOT / ICON, copy / ICON)
    shutil.copyfile(ROOT / "docs" / "site.css", copy / "docs" / "site.css")
    for name in ("LICENSE", *(page.name for page in ROOT.glob("*.md"))):
        (copy / name).write_text(f"# {name}\n")
    settings = (ROOT / "mkdocs.yml").read_text()
    menu = settings[settings.index("nav:") : settings.index("not_in_nav:")]
    (copy / "mkdocs.yml").write_text(settings.replace(menu, ""))
    (copy / "docs" / "other.md").write_text("# Other\n")
    (copy / "docs" / "index.md").write_text("# Home\n\n[nowhere](nothing.md) [no such part](other.md#nothing)\n")
    ran = build(copy, tmp_path / "site")
    assert ran.returncode != 0
    assert "nothing.md" in ran.stderr
    assert "#nothing" in ran.stderr

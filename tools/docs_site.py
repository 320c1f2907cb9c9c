"""Builds the documentation site: `make docs`, or `python tools/docs_site.py [FOLDER [VERSION]]`; build/site by default.

The pages are the plain Markdown files of the repository. They are copied to a folder of their own first, because some
are next to docs/ and link to each other across it. The build is strict: a link
that leads nowhere, or a page that no menu has, is an error. `llms.txt` lists all pages with their first sentence, and
`llms-full.txt` has their text.

With a version such as 0.1.0 the site is built into FOLDER/0.1 and has a menu of all versions in FOLDER, which the theme
reads from versions.json. FOLDER itself leads to the newest.
"""

import json
import logging
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import BasePlugin
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
BESIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "AGENTS.md": "agents.md",
}
ICON = Path("src/duetime/console/static/icon.svg")
SHORT_CELL = 32
"""Characters of a cell whose names stay in one line where there is room."""
LONG_WORD = 18
"""Characters of a word that do not fit into half of a phone's width."""
SHORT_NAME = 24
"""Characters of a name within a sentence that stay in one line."""
ONE_LINE = 9
"""Characters of a cell, such as 9,644 ms, that stay in one line everywhere."""
SEARCH = {"tasks.md": 5, "concepts.md": 3, "quickstart.md": 2, "production.md": 2, "cli.md": 0.5, "delayqueue.md": 0.5}
SEARCH |= {"lmstfy.md": 0.5, "coming-from": 0.5, "decisions": 0.01}
"""How far up a page or folder is in the results of a search; others have 1. The pages that explain a word come before
those that also use it. Decisions come last: who searches for a word wants to use it, not to know why it was chosen.
"""
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)\s]+)\)")


class TableLabels(Extension, Treeprocessor):
    """Gives each cell of a wide table the title of its column, which the style sheet shows on a phone. A table is wide
    if it has three columns or a word that would be broken there. It also marks cells and names that must not be broken.
    """

    def extendMarkdown(self, md: Markdown) -> None:
        md.treeprocessors.register(self, "table_labels", 0)

    def run(self, root: Element) -> None:
        for table in root.iter("table"):
            titles = ["".join(cell.itertext()) for cell in table.iter("th")]
            texts = {cell: "".join(cell.itertext()) for cell in table.iter("td")}
            longest = max((len(word) for text in texts.values() for word in text.split()), default=0)
            if len(titles) > 2 or longest > LONG_WORD:
                table.set("data-wide", "")
                for row in table.iter("tr"):
                    for title, cell in zip(titles, row.findall("td"), strict=False):
                        cell.set("data-label", title)
                        if len(texts[cell]) <= SHORT_CELL:
                            cell.set("data-short", "")
            for cell, text in texts.items():
                if len(text) <= ONE_LINE:
                    cell.set("data-line", "")
        for name in root.iter("code"):
            if len(name.text or "") <= SHORT_NAME:
                name.set("data-line", "")  # else --dry-run is broken after its first hyphen


class SearchOrder(BasePlugin):
    def on_page_markdown(self, markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> None:
        page.meta["search"] = {"boost": SEARCH.get(page.file.src_uri.partition("/")[0], 1)}


def stage(folder: Path) -> None:
    """All pages and pictures in one folder, with their links as they are there."""
    shutil.copytree(ROOT / "docs", folder, dirs_exist_ok=True)
    shutil.copyfile(ROOT / ICON, folder / "img" / "icon.svg")
    for name, page in BESIDE.items():
        (folder / page).write_text(_with_links(ROOT / name, (ROOT / name).read_text()))
    (folder / "license.md").write_text(f"# License\n\n```\n{(ROOT / 'LICENSE').read_text()}\n```\n")
    for source in sorted((ROOT / "docs").rglob("*.md")):
        (folder / source.relative_to(ROOT / "docs")).write_text(_with_links(source, source.read_text()))
    lines = [f"- [{_title(one)}]({one.name})" for one in sorted((folder / "decisions").glob("*.md"))]
    (folder / "decisions" / "index.md").write_text("# Decisions\n\n" + "\n".join(lines) + "\n")


def _with_links(source: Path, text: str) -> str:
    """Links between docs/ and the files beside it; a link to code stays as a word."""
    is_beside = source.parent == ROOT

    def place(found: re.Match[str]) -> str:
        path, _, part = found[1].partition("#")
        target = (source.parent / path).resolve()
        if target.parent == ROOT and target.name in BESIDE:
            up = "" if is_beside else "../" * (len(source.relative_to(ROOT).parts) - 2)
            path = up + BESIDE[target.name]
        elif target == ROOT / "LICENSE":
            path = "license.md"
        elif is_beside and target.is_relative_to(ROOT / "docs"):
            path = str(target.relative_to(ROOT / "docs")) + ("/index.md" if target.is_dir() else "")
        elif target.is_dir():
            path = path.rstrip("/") + "/index.md"
        return f"]({path}{'#' + part if part else ''})"

    return LINK.sub(place, text)


def _title(page: Path) -> str:
    return page.read_text().splitlines()[0].removeprefix("# ")


def _first_sentence(page: Path) -> str:
    """The first sentence of the first paragraph."""
    for paragraph in re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL).split("\n\n")[1:]:
        if paragraph.strip() and not paragraph.lstrip().startswith(("#", "|", "<", "!", "-", "1.")):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            return re.split(r"(?<=[.:])\s", text, maxsplit=1)[0]
    return ""


def write_index(source: Path, target: Path, menu: list[Any], name: str, about: str) -> None:
    """`llms.txt` and `llms-full.txt`, for programs that read the site, and each page as Markdown."""
    lines = [f"# {name}", "", f"> {about}", ""]
    for section, pages in _sections(menu):
        lines += [f"## {section}", ""]
        for page in pages:
            sentence = _first_sentence(source / page)
            lines.append(f"- [{_title(source / page)}]({page}){': ' + sentence if sentence else ''}")
            (target / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / page, target / page)
        lines.append("")
    (target / "llms.txt").write_text("\n".join(lines))
    pages = [page for _, pages in _sections(menu) for page in pages]
    (target / "llms-full.txt").write_text("\n\n".join((source / page).read_text() for page in pages))


def _sections(menu: list[Any]) -> Iterator[tuple[str, list[str]]]:
    for entry in menu:
        [(title, pages)] = entry.items()
        yield title, [pages] if isinstance(pages, str) else [page for one in pages for page in one.values()]


def write_versions(folder: Path) -> None:
    """What the theme's menu of versions reads, and a first page that leads to the newest."""
    found = (page.parent.name for page in folder.glob("*.*/index.html"))
    versions = sorted(found, key=lambda name: [int(number) for number in name.split(".")], reverse=True)
    listed = [{"version": name, "title": name, "aliases": []} for name in versions]
    (folder / "versions.json").write_text(json.dumps(listed))
    (folder / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={versions[0]}/">\n')


def main(folder: Path, version: str = "") -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    target = folder.absolute() / ".".join(version.split(".")[:2])
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "docs"
        stage(source)
        config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(source), site_dir=str(target), strict=True)
        config.markdown_extensions.append(TableLabels())
        config.plugins["search_order"] = SearchOrder()
        if version:
            config.extra["version"] = {"provider": "mike"}
        build(config)
        write_index(source, target, config.nav or [], config.site_name, config.site_description or "")
    if version:
        write_versions(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site", *sys.argv[2:])

import json
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_everything_in_the_package(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=150,
    )

    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    wanted = {
        name for name in files if name.endswith((".py", ".lua", ".sql", "py.typed", ".html", ".css", ".js", ".toml"))
    }
    assert wanted <= names
    assert "duetime/py.typed" in names
    assert "duetime/console/static/vendor/htmx.min.js" in names
    [bill] = [name for name in names if name.endswith(".dist-info/sboms/duetime.cdx.json")]
    with zipfile.ZipFile(wheel) as files:
        parts = json.loads(files.read(bill))["components"]
    assert {part["name"] for part in parts} >= {"htmx.org", "uplot"}
    assert all(part["purl"].startswith("pkg:npm/") and part["hashes"] for part in parts)


def test_the_source_distribution_needs_no_node(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=150,
    )
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {"src/duetime/console/static/vendor/stamp", "tools/npm/package-lock.json", "LICENSE"} <= names
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert not [one for one in build if "node" in one]  # the hook asks for it when the files are missing


@pytest.mark.parametrize(("tag", "error"), [("v9.9.9", "tag must be v"), ("0.1.0", "tag must be v")])
def test_a_tag_that_is_not_the_version_ends_the_release_check(tag: str, error: str) -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "release_check.py"), "--tag", tag],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ran.returncode, error in ran.stderr) == (1, True), ran.stderr

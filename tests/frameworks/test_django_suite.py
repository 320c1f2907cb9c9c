"""Django's own tests of task backends, from its source package, run on Duetime's backend.

The package is fetched from the registry into build/; none of it is in this repository.
"""

import re
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

import django
import pytest

from tests.plugins.ci import missing_service

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("django_suite.py")


@pytest.fixture(scope="module")
def suite() -> Path:
    """The folder `tests` of the source of the installed Django."""
    version = django.get_version()
    build = ROOT / "build"
    folder = build / f"django-{version}" / "tests"
    if not (folder / "tasks").is_dir():
        source = build / f"django-{version}.tar.gz"
        if not source.exists():
            options = ("--no-deps", "--no-binary", ":all:", "--dest", str(build))
            pip = [sys.executable, "-m", "pip", "download", "--quiet", *options, f"django=={version}"]
            done = subprocess.run(pip, capture_output=True, text=True, timeout=150, check=False)
            if done.returncode:
                missing_service(f"pip cannot fetch the source of Django {version}: {done.stderr.strip()[-300:]}")
        with tarfile.open(source) as archive:
            members = [one for one in archive if one.name.startswith(f"django-{version}/tests/tasks/")]
            archive.extractall(build, members, filter="data")
    return folder


@pytest.mark.skipif(find_spec("django.tasks") is None, reason="django.tasks is in Django 6, which needs Python 3.12")
def test_djangos_own_tests_of_backends_pass(suite: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(suite)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    ran = re.search(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
    assert ran, done.stderr
    assert int(ran[1]) >= 60

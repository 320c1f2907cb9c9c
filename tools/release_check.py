"""`make release-check`: everything that a release needs, short of publishing.

    python tools/release_check.py [--tag v0.1.0] [--keep DIR]

1. The version, the tag and the changelog agree.
2. A clean copy of what is committed builds: first the source distribution, then the wheel out of that, without Node.
3. `twine check`, and what must be in the wheel: console assets, licence, bill of materials.
4. Empty environments: the base, which is the SDK, and the extras `cli` and `server`. Each is used: push and pop on
   SQLite, `duetime init`, a server, a job over HTTP, the console, a worker.

Prints the sizes and the number of packages of each environment. Needs the environment of requirements/release.lock.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SDK_MB = 15
WITHIN_S = 600

USE = """
import duetime
with duetime.connect("sqlite:jobs.db") as client:
    client.queue("mail").later("50ms", {"to": "ann"})
    with client.queue("mail").take("30s") as job:
        assert job.json() == {"to": "ann"}
app = duetime.App("sqlite:jobs.db")
@app.task
def add(left: int, right: int) -> int:
    return left + right
add.delay(1, 2)
assert app.queue("default").counts().ready == 1
"""
OVER_HTTP = """
import sys, duetime
with duetime.connect(sys.argv[1]) as client:
    client.queue("mail").push("hello", id="one")
    with client.queue("mail").take("30s") as job:
        assert (job.id, job.text()) == ("one", "hello")
"""


def say(text: str) -> None:
    sys.stdout.write(f"release-check: {text}\n")
    sys.stdout.flush()


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ran = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    if ran.returncode:
        sys.exit(f"release-check: {' '.join(map(str, command))} failed\n{ran.stdout}\n{ran.stderr}")
    return ran.stdout


def check_version(tag: str | None) -> str:
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "src/duetime/__init__.py").read_text(), re.MULTILINE)
    assert found
    version = found[1]
    section = re.search(rf"^## {re.escape(version)} \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if not section:
        sys.exit(f"release-check: CHANGELOG.md must have a section `## {version} (date)`")
    if tag is not None:
        if tag != f"v{version}":
            sys.exit(f"release-check: tag must be v{version}, got {tag}")
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", section[1]):
            sys.exit(f"release-check: CHANGELOG.md must have the date of {version}, got ({section[1]})")
    say(f"version {version}, changelog ({section[1]})")
    return version


def build(folder: Path) -> tuple[Path, Path]:
    """The source distribution out of a clean copy, and the wheel out of the source distribution."""
    source, dist = folder / "source", folder / "dist"
    source.mkdir()
    archive = folder / "source.tar"
    run("git", "archive", "--output", archive, "HEAD")
    with tarfile.open(archive) as files:
        files.extractall(source, filter="data")
    vendor = Path("src/duetime/console/static/vendor")
    if (ROOT / vendor / "stamp").is_file():  # fetched before, by the lock of npm; otherwise the build fetches it
        shutil.copytree(ROOT / vendor, source / vendor)
    epoch = run("git", "log", "-1", "--format=%ct").strip()
    run(sys.executable, "-m", "build", "--sdist", "--outdir", dist, source, SOURCE_DATE_EPOCH=epoch)
    [sdist] = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as files:
        files.extractall(folder, filter="data")
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    # Without isolation: this environment has hatchling and no Node, so a build that needs Node fails here.
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", dist, unpacked, SOURCE_DATE_EPOCH=epoch)
    [wheel] = dist.glob("*.whl")
    say(f"{sdist.name} {sdist.stat().st_size / 1e6:.1f} MB, {wheel.name} {wheel.stat().st_size / 1e6:.1f} MB")
    return sdist, wheel


def check_contents(wheel: Path, version: str) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"duetime-{version}.dist-info"
    wanted = {"duetime/console/static/vendor/htmx.min.js", "duetime/py.typed", f"{info}/licenses/LICENSE"}
    if missing := wanted - names:
        sys.exit(f"release-check: wheel must contain {', '.join(sorted(missing))}")
    with zipfile.ZipFile(wheel) as files:
        bill = json.loads(files.read(f"{info}/sboms/duetime.cdx.json"))
    assert bill["metadata"]["component"]["version"] == version, bill
    say(f"twine and contents are fine; the bill of materials names {len(bill['components'])} packages")


def environment(folder: Path, requirement: str) -> Path:
    python = folder / "bin" / "python"
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    run(uv, "venv", "--quiet", "--python", sys.executable, folder)
    run(uv, "pip", "install", "--quiet", "--python", python, requirement)
    return python


def size_mb(folder: Path) -> float:
    return sum(one.stat().st_size for one in (folder / "lib").rglob("*") if one.is_file()) / 1e6


def report(name: str, folder: Path) -> float:
    packages = len(list(folder.glob("lib/*/site-packages/*.dist-info")))
    size = size_mb(folder)
    say(f"{name}: {size:.0f} MB, {packages} packages")
    return size


@contextmanager
def server(python: Path, folder: Path) -> Iterator[dict[str, str]]:
    command = [str(python.with_name("duetime")), "serve", "--dev", "--port", "0", "--admin-port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        facts: dict[str, str] = {}
        try:
            for line in process.stdout:
                label, _, value = line.strip().partition(" ")
                facts[label] = value.strip()
                if label == "stop":
                    break
            yield facts
        finally:
            process.terminate()
            process.communicate(timeout=90)


def try_out(folder: Path, wheel: Path) -> None:
    work = folder / "work"
    work.mkdir()
    sdk = environment(folder / "sdk", str(wheel))
    if report("base, which is the SDK", folder / "sdk") > SDK_MB:
        sys.exit(f"release-check: the SDK alone must have at most {SDK_MB} MB")
    run(sdk, "-c", USE, cwd=work, PYTHONDONTWRITEBYTECODE="1")

    commands = environment(folder / "cli", f"{wheel}[cli]")
    report("cli", folder / "cli")
    run(commands.with_name("duetime"), "init", "shop", cwd=work)

    full = environment(folder / "server", f"{wheel}[server]")
    report("server", folder / "server")
    with server(full, work) as facts:
        run(sdk, "-c", OVER_HTTP, facts["API"], cwd=work)
        with urllib.request.urlopen(facts["console"], timeout=60) as page:
            assert b"htmx.min.js" in page.read()
        shop = {"cwd": work / "shop", "DUETIME_URL": facts["API"]}
        run(sdk, "jobs.py", "10ms", **shop)
        out = run(commands.with_name("duetime"), "work", "jobs:app", "--max-jobs", "1", **shop)
        assert "hello ann" in out, out
    say("install, server, first job, console and worker are fine")


def main(arguments: Sequence[str]) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tag", help="the tag of the release, which must be v and the version")
    options.add_argument("--keep", type=Path, help="copy the source distribution and the wheel to this folder")
    given = options.parse_args(arguments)
    version = check_version(given.tag)
    with tempfile.TemporaryDirectory(prefix="duetime-release-") as name:
        folder = Path(name)
        sdist, wheel = build(folder)
        run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
        check_contents(wheel, version)
        try_out(folder, wheel)
        if given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
            for file in (sdist, wheel):
                shutil.copy(file, given.keep)
    say("ready: push the tag to publish")


if __name__ == "__main__":
    main(sys.argv[1:])

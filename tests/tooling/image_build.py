"""Follows deploy/Dockerfile without Docker: its COPY and RUN steps, on exactly the files of its build context.

Absolute paths of the image become paths below a folder of the test. Steps that make users are left out, and the base
image's Python is an empty virtual environment with pip. `make test` installs with uv, which has the packages in its
cache and takes the same arguments; `make test-full` installs with pip, as the Dockerfile says.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
DEADLINE_S = 600
PLACES = re.compile(r"(?<![\w.])/(?=opt/|src\b|var/lib/duetime)")
SETTINGS = ("PIP_", "UV_", "SSL_CERT_")
USERS = ("groupadd", "useradd")
PIP_BY_UV = f"""#!/bin/sh
[ "$1" = --python ] || exit 64
python=$2 verb=$3
shift 3
[ "$1" != --yes ] || shift
exec {Path(sys.executable).with_name("uv")} pip "$verb" --python "$python" "$@"
"""
"""For `pip --python P install ...` and `pip --python P uninstall --yes ...`."""


@dataclass
class Image:
    """`root` stands for the image's file system, `environment` is what its processes get."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])

    def place(self, text: str) -> str:
        return PLACES.sub(f"{self.root}/", text)

    def run(self, command: str, cwd: Path) -> None:
        done = subprocess.run(
            ["/bin/sh", "-ec", self.place(command)],
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def build_context(folder: Path) -> None:
    """Copy what `docker build` would send: every file that Dockerfile.dockerignore lets through."""
    lines = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    rules = [(not line.startswith("!"), _pattern(line.lstrip("!"))) for line in lines if line and line[0] != "#"]
    opened = [line[1:] for line in lines if line.startswith("!")]
    for name in opened:
        whole = ROOT / name
        for file in sorted(whole.rglob("*")) if whole.is_dir() else [whole]:
            path = file.relative_to(ROOT)
            if file.is_file() and not _is_ignored(path, rules):
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target)


def _pattern(text: str) -> re.Pattern[str]:
    parts = [".*" if part == "**" else re.escape(part).replace(r"\*", "[^/]*") for part in text.split("/")]
    written = "/".join(parts).replace(".*/", "(?:.*/)?")
    return re.compile(written.replace(r"\[", "[").replace(r"\]", "]"))


def _is_ignored(path: Path, rules: list[tuple[bool, re.Pattern[str]]]) -> bool:
    names = [str(path), *(str(parent) for parent in path.parents if parent != Path("."))]
    ignored = False
    for ignores, pattern in rules:
        if any(pattern.fullmatch(name) for name in names):
            ignored = ignores
    return ignored


def build(folder: Path, *, with_pip: bool) -> Image:
    """Both stages. Returns the second one: what runs."""
    context = folder / "context"
    build_context(context)
    python = _base_python(folder / "python", with_pip=with_pip)
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG") or name.startswith(SETTINGS)}
    stages = re.split(r"^FROM .*\n", DOCKERFILE.read_text(), flags=re.MULTILINE)[1:]
    image = Image(folder / "build")
    for number, stage in enumerate(stages):
        image = Image(folder / ("build" if number == 0 else "image"), {**kept, "PATH": f"{python}/bin:/usr/bin:/bin"})
        image.root.mkdir()
        cwd = image.root
        for instruction, rest in _instructions(stage):
            match instruction:
                case "WORKDIR":
                    cwd = Path(image.place(rest))
                    cwd.mkdir(parents=True, exist_ok=True)
                case "ENV":
                    pairs = (word.split("=", 1) for word in shlex.split(rest))
                    image.environment.update(
                        {name: image.place(value.replace("$PATH", image.environment["PATH"])) for name, value in pairs}
                    )
                case "COPY" if rest.startswith("--from=build "):
                    source, target = rest.split()[1:]
                    shutil.copytree(folder / "build" / source.lstrip("/"), image.place(target), symlinks=True)
                case "COPY":
                    *sources, target = rest.split()
                    for source in sources:
                        _copy(context / source, cwd / target)
                case "RUN" if any(word in rest for word in USERS):
                    Path(image.place("/var/lib/duetime")).mkdir(parents=True)
                case "RUN":
                    image.run(rest, cwd)
                case _:
                    assert instruction in ("USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD")
    return image


def _base_python(folder: Path, *, with_pip: bool) -> Path:
    venv = [sys.executable, "-m", "venv", *([] if with_pip else ["--without-pip"]), str(folder)]
    subprocess.run(venv, check=True, timeout=DEADLINE_S)
    if not with_pip:
        pip = folder / "bin" / "pip"
        pip.write_text(PIP_BY_UV)
        pip.chmod(0o755)
    return folder


def _instructions(stage: str) -> list[tuple[str, str]]:
    lines = re.sub(r"^\s*#.*\n", "", stage, flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", lines)
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines.splitlines() if line.strip()]


def _copy(source: Path, target: Path) -> None:
    """As COPY does: a folder's content goes into the target, a file becomes the target or goes into it."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
        return
    where = target / source.name if target.is_dir() else target
    where.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, where)

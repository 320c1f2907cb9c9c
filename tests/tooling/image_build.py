"""Follows deploy/Dockerfile without Docker: its COPY and RUN steps, on exactly the files of its build context.

Absolute paths of the stage that builds become paths below a folder of the test. The step that installs Debian's
packages and makes a user is left out, and the base image's Python is an empty virtual environment with pip. `make test`
installs with uv, which has the packages in its cache and takes the same arguments; `make test-full` installs with pip,
as the Dockerfile says. What is built then runs with the image's files as its whole file system (chroot).
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
METADATA = ("HEALTHCHECK", "ENTRYPOINT", "CMD")
PLACES = re.compile(r"(?<![\w.])/(?=opt/|src\b|image\b|var/lib/duetime)")
SETTINGS = ("PIP_", "UV_", "SSL_CERT_")
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
    """`root` has its files and `environment` is what its processes get. /opt of the image is at `opt` below `root`."""

    root: Path
    opt: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])

    def command(self, program: str, *arguments: str) -> tuple[str, ...]:
        """Runs a program of the image's environment that sees no file but those of the image."""
        unshare = () if os.geteuid() == 0 else (shutil.which("unshare") or "unshare", "--map-root-user")
        chroot = shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin:/bin") or "chroot"
        return (*unshare, chroot, str(self.root), f"{self.opt}/duetime/bin/{program}", *arguments)


@dataclass
class Stage:
    """`root` stands for the file system of the stage that builds."""

    root: Path
    environment: dict[str, str]

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
    first, second = re.split(r"^FROM .*\n", DOCKERFILE.read_text(), flags=re.MULTILINE)[1:]
    stage = Stage(folder / "build", {**kept, "PATH": f"{python}/bin:/usr/bin:/bin"})
    _build_stage(stage, first, context)
    image = Image(folder / "image", stage.root / "opt")
    for instruction, rest in _instructions(second):
        match instruction:
            case "COPY":
                source, target = rest.split()[-2:]
                shutil.copytree(stage.place(source), image.root / target.lstrip("/"), symlinks=True, dirs_exist_ok=True)
            case "ENV":
                image.environment |= {
                    name: value.replace("/opt/", f"{image.opt}/") for name, value in _environment(rest)
                }
            case _:
                assert instruction in ("USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", *METADATA)
    return image


def _build_stage(stage: Stage, text: str, context: Path) -> None:
    stage.root.mkdir()
    cwd = stage.root
    for instruction, rest in _instructions(text):
        match instruction:
            case "WORKDIR":
                cwd = Path(stage.place(rest))
                cwd.mkdir(parents=True, exist_ok=True)
            case "ENV":
                stage.environment |= dict(_environment(rest))
            case "COPY":
                *sources, target = rest.split()
                for source in sources:
                    _copy(context / source, cwd / target)
            case "RUN" if "useradd" in rest:
                Path(stage.place("/var/lib/duetime")).mkdir(parents=True)
            case _:
                assert instruction == "RUN"
                stage.run(rest, cwd)


def _environment(rest: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (word.partition("=") for word in shlex.split(rest))]


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

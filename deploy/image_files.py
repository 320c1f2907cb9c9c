"""Copies what a Duetime server needs to run into an empty folder: the whole content of the image.

    python deploy/image_files.py ENVIRONMENT FOLDER

Run it with the Python that the environment was made with. It copies this Python, the environment, the shared libraries
of both, certificates, time zones and a few files of /etc. The image has no shell, package manager or compiler.
"""

import ast
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

LEFT_OUT = (
    *("__pycache__", "*.c", "*.h", "*.pyx", "*.pxd", "*.pxi"),
    *("config-*", "test", "idlelib", "tkinter", "_tkinter.*", "turtledemo", "ensurepip", "lib2to3", "pydoc_data"),
)
"""Sources of C extensions, and what no server imports of the standard library."""

SYSTEM_FILES = (
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/ssl/certs/ca-certificates.crt"),
    "/etc/ld.so.cache",  # where libraries outside the default folders are, such as libpython
)
SYSTEM_FOLDERS = ("/usr/share/zoneinfo",)
MOUNT_POINTS = ("dev", "proc", "run", "sys", "tmp")

SERVER_MODULES = (
    *("duetime.cli.serve", "duetime.server.process", "duetime.server.supervision.supervisor", "duetime.worker.daemon"),
    *(f"duetime.stores.{name}.store" for name in ("sqlite", "redis", "postgres", "mysql")),
    "uvloop",
)


def main(environment: Path, image: Path) -> None:
    python = environment / "bin/python"
    standard_library = Path(sysconfig.get_path("stdlib"))
    copy_folder(environment, image, LEFT_OUT)
    copy_folder(standard_library, image, (*LEFT_OUT, "site-packages"))
    copied = [path for path in image.rglob("*.so*") if path.is_file()]
    subprocess.run(["strip", "--strip-unneeded", *copied], check=True)
    for link in chain_of_links(python):
        copy_file(link, image)
    for library in shared_libraries([python, *(Path("/") / path.relative_to(image) for path in copied)]):
        copy_file(library.resolve(), image, library)
    for name in SYSTEM_FILES:
        copy_file(Path(name), image)
    for name in SYSTEM_FOLDERS:
        copy_folder(Path(name), image)
    write_bytecode(python, image)
    for name in MOUNT_POINTS:
        (image / name).mkdir(exist_ok=True)
    (image / "tmp").chmod(0o1777)


def chain_of_links(path: Path) -> list[Path]:
    """The environment's Python is a link to the one that it was made with, which may be a link, too."""
    chain = [path]
    while chain[-1].is_symlink():
        chain.append(chain[-1].parent / chain[-1].readlink())
    return chain


def copy_folder(source: Path, image: Path, left_out: tuple[str, ...] = ()) -> None:
    """To the same path below the image."""
    target = image / source.relative_to("/")
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns(*left_out), dirs_exist_ok=True)


def copy_file(source: Path, image: Path, path: Path | None = None) -> None:
    target = image / (path or source).relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_symlink() and not target.exists():
        shutil.copy2(source, target, follow_symlinks=False)


def shared_libraries(binaries: list[Path]) -> list[Path]:
    """What the loader opens for these binaries, by the paths at which it looks."""
    listed = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout
    return sorted({Path(path) for path in re.findall(r"^\s+(?:\S+ => )?(/\S+) \(0x", listed, re.MULTILINE)})


def write_bytecode(python: Path, image: Path) -> None:
    """For what a server imports: its file system is often read-only, and each start would compile it again."""
    code = (
        f"import sys, {', '.join(SERVER_MODULES)}; print([getattr(m, '__file__', None) for m in sys.modules.values()])"
    )
    listed = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    for name in ast.literal_eval(listed):
        if name and name.endswith(".py"):
            py_compile.compile(
                str(image / Path(name).relative_to("/")),
                dfile=name,
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())

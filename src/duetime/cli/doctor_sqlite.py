"""What the doctor looks at around a SQLite store: the file, its settings, the disk it lies on.

Read only, and before the store is opened: opening would create the file and switch its journal mode.
"""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from duetime.cli.doctor_findings import Finding, fail, ok, size, warn

LITTLE_DISK = 1024**3
NO_DISK = 100 * 1024**2
NETWORK_FILESYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "afs"})
MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs"})
MOUNTS = Path("/proc/self/mounts")


def sqlite_file(url: str) -> Path:
    path = unquote(urlsplit(url).path)
    # To POSIX two leading slashes are not one; to everybody who writes a URL they are.
    return Path("/" + path.lstrip("/") if path.startswith("/") else path).absolute()


def examine_sqlite(url: str, *, deep: bool) -> Iterator[Finding]:
    path = sqlite_file(url)
    yield from examine_folder("sqlite.folder", path.parent, "the SQLite file")
    if path.parent.is_dir():
        yield _filesystem(path)
        yield _disk(path)
    yield _synchronous(url)
    if path.exists():
        yield from examine_permissions("sqlite.permissions", path)
        yield from _file(path, deep=deep)
    else:
        yield ok("sqlite.file", f"{path} does not exist yet; the first command or server creates it")


def examine_folder(check: str, folder: Path, what: str) -> Iterator[Finding]:
    if not folder.is_dir():
        yield fail(
            check,
            f"the folder for {what} does not exist: {folder}",
            why="nothing can be stored",
            fix=f"mkdir -p {folder}, owned by the user that runs Duetime",
        )
    elif not os.access(folder, os.W_OK | os.X_OK):
        yield fail(
            check,
            f"the folder for {what} cannot be written to: {folder}",
            why="new files are made there all the time, such as SQLite's log beside its file",
            fix=f"let the user that runs Duetime (now uid {os.getuid()}) write to {folder}",
        )
    else:
        yield ok(check, f"the folder for {what} can be written to: {folder}")


def examine_permissions(check: str, path: Path) -> Iterator[Finding]:
    """Warns of a file or folder with jobs that other users can open."""
    if path.stat().st_mode & 0o077:
        yield warn(
            check,
            f"other users of this machine can open {path}",
            why="it holds the bodies of jobs, and secrets that sign callbacks",
            fix=f"chmod {'700' if path.is_dir() else '600'} {path}",
        )


def _file(path: Path, *, deep: bool) -> Iterator[Finding]:
    if not os.access(path, os.R_OK | os.W_OK):
        yield fail(
            "sqlite.file",
            f"{path} cannot be read and written",
            why="no job can be pushed or delivered",
            fix=f"let the user that runs Duetime (now uid {os.getuid()}) own {path}",
        )
        return
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            problems = [row[0] for row in connection.execute("PRAGMA quick_check")] if deep else ["ok"]
    except sqlite3.Error as error:
        yield fail(
            "sqlite.file",
            f"{path} cannot be read: {error}",
            why="it is damaged, or another program's",
            fix="restore it from a backup, or name another file; Duetime's journal can refill an empty one",
        )
        return
    yield ok("sqlite.file", f"{path}, {size(path.stat().st_size)}")
    if mode == "wal":
        yield ok("sqlite.journal_mode", "SQLite writes a write-ahead log")
    else:
        yield warn(
            "sqlite.journal_mode",
            f"SQLite's journal mode is {mode}, not wal",
            why="readers would stop writers, and every commit costs more",
            fix="nothing, if it is new: opening the store switches it. Otherwise find out which program set it back",
        )
    if problems != ["ok"]:
        yield fail(
            "sqlite.quick_check",
            f"SQLite finds damage: {problems[0]}" + (f" and {len(problems) - 1} more" if problems[1:] else ""),
            why="jobs may be lost or stuck",
            fix="stop Duetime, keep a copy of the file, restore a backup or run `sqlite3 FILE .recover`",
        )
    elif deep:
        yield ok("sqlite.quick_check", "SQLite finds its file sound")


def _synchronous(url: str) -> Finding:
    word = parse_qs(urlsplit(url).query).get("synchronous", ["FULL"])[-1].upper()
    match word:
        case "OFF":
            return fail(
                "sqlite.synchronous",
                "synchronous=OFF",
                why="a loss of power can damage the whole file, not only lose the last jobs",
                fix="remove synchronous=OFF from the store's URL",
            )
        case "NORMAL":
            return warn(
                "sqlite.synchronous",
                "synchronous=NORMAL",
                why="accepted jobs survive the end of the process, but a loss of power undoes the last moments",
                fix="remove synchronous=NORMAL from the store's URL unless that is what you want",
            )
        case _:
            return ok("sqlite.synchronous", f"synchronous={word}: an accepted job survives a loss of power")


def _disk(path: Path) -> Finding:
    usage = shutil.disk_usage(path.parent)
    what = f"{size(usage.free)} of {size(usage.total)} are free on the disk of {path.parent}"
    why = "pushes are refused below 64 MiB (an eighth of a small disk, or `reserve=` in the URL); deliveries go on"
    fix = "make room, or move the file to a larger disk"
    if usage.free < NO_DISK:
        return fail("sqlite.disk", what, why=why, fix=fix)
    if usage.free < LITTLE_DISK:
        return warn("sqlite.disk", what, why=why, fix=fix)
    return ok("sqlite.disk", what)


def _filesystem(path: Path) -> Finding:
    kind = filesystem_of(path.parent.resolve(), MOUNTS.read_text() if MOUNTS.exists() else "")
    if kind in NETWORK_FILESYSTEMS:
        return fail(
            "sqlite.filesystem",
            f"the file lies on {kind}, a network file system",
            why="SQLite's log and locks need one machine's memory; over a network the file gets damaged",
            fix="put the file on a local disk, or use Redis or PostgreSQL",
        )
    if kind in MEMORY_FILESYSTEMS:
        return warn(
            "sqlite.filesystem",
            f"the file lies on {kind}, in memory",
            why="all jobs are lost when the machine restarts",
            fix="put the file on a disk",
        )
    return ok("sqlite.filesystem", f"the file lies on {kind or 'a local disk'}")


def filesystem_of(folder: Path, mounts: str) -> str:
    """The type of the file system, from the kernel's table of mounts; empty if that does not say."""
    best, kind = "", ""
    for line in mounts.splitlines():
        parts = line.split()
        point = parts[1].replace("\\040", " ")
        if folder.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, parts[2]
    return kind

"""What the doctor checks of a SQLite store: the file, its settings, the disk it lies on.

Read only, and before the store is opened: opening would create the file and switch its journal mode.
"""

import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from duetime.cli.doctor_checks import Check, Finding, fail, judge, ok, warn
from duetime.model.humanise import size

LITTLE_DISK = 1024**3
NO_DISK = 100 * 1024**2
NETWORK_FILESYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "afs"})
MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs"})
MOUNTS = Path("/proc/self/mounts")


ROOM = "pushes are refused below 64 MiB (an eighth of a small disk, or `reserve=` in the URL); deliveries go on"
MAKE_ROOM = "make room, or move the file to a larger disk"
FREE = "{free} of {total} are free on the disk of {folder}"

# fmt: off
FOLDER = (
    fail("the folder for {owner} does not exist: {folder}", when=lambda f: not f["folder"].is_dir(),
         why="nothing can be stored", fix="mkdir -p {folder}, owned by the user that runs Duetime"),
    fail("the folder for {owner} cannot be written to: {folder}",
         when=lambda f: not os.access(f["folder"], os.W_OK | os.X_OK), why="SQLite writes its log next to its file",
         fix="let the user that runs Duetime (now {user}) write to {folder}"),
    ok("the folder for {owner} can be written to: {folder}"),
)

PERMISSIONS = warn("other users of this machine can open {path}",
                   when=lambda f: sys.platform != "win32" and f["path"].exists() and f["path"].stat().st_mode & 0o077,
                   why="it holds the bodies of jobs, and secrets that sign callbacks", fix="chmod {private} {path}")

CHECKS = (
    Check("sqlite.folder",
        *FOLDER),
    Check("sqlite.filesystem",
        fail("the file lies on {filesystem}, a network file system",
             when=lambda f: f.get("filesystem") in NETWORK_FILESYSTEMS,
             why="SQLite's log and locks need one machine's memory; over a network the file gets damaged",
             fix="put the file on a local disk, or use Redis or PostgreSQL"),
        warn("the file lies on {filesystem}, in memory", when=lambda f: f.get("filesystem") in MEMORY_FILESYSTEMS,
             why="all jobs are lost when the machine restarts", fix="put the file on a disk"),
        ok("the file lies on {filesystem}", when=lambda f: "filesystem" in f)),
    Check("sqlite.disk",
        fail(FREE, when=lambda f: f.get("free_bytes", LITTLE_DISK) < NO_DISK, why=ROOM, fix=MAKE_ROOM),
        warn(FREE, when=lambda f: f.get("free_bytes", LITTLE_DISK) < LITTLE_DISK, why=ROOM, fix=MAKE_ROOM),
        ok(FREE, when=lambda f: "free" in f)),
    Check("sqlite.synchronous",
        fail("synchronous=OFF", when=lambda f: f["synchronous"] == "OFF",
             why="a loss of power can damage the whole file, not only lose the last jobs",
             fix="remove synchronous=OFF from the store's URL"),
        warn("synchronous=NORMAL", when=lambda f: f["synchronous"] == "NORMAL",
             why="accepted jobs survive the end of the process, but a loss of power undoes the last moments",
             fix="remove synchronous=NORMAL from the store's URL unless that is what you want"),
        ok("synchronous={synchronous}: an accepted job survives a loss of power")),
    Check("sqlite.permissions",
        PERMISSIONS),
    Check("sqlite.file",
        ok("{path} does not exist yet; the first command or server creates it", when=lambda f: not f["path"].exists()),
        fail("{path} cannot be read and written", when=lambda f: not os.access(f["path"], os.R_OK | os.W_OK),
             why="no job can be pushed or delivered", fix="let the user that runs Duetime (now {user}) own {path}"),
        fail("{path} cannot be read: {error}", when=lambda f: "error" in f, why="it is damaged, or another program's",
             fix="restore it from a backup, or name another file; Duetime's journal can refill an empty one"),
        ok("{path}, {size}")),
    Check("sqlite.journal_mode",
        ok("SQLite writes a write-ahead log", when=lambda f: f.get("mode") == "wal"),
        warn("SQLite's journal mode is {mode}, not wal", when=lambda f: "mode" in f,
             why="readers would stop writers, and every commit costs more",
             fix="nothing, if it is new: opening the store switches it. Otherwise find out which program set it back")),
    Check("sqlite.quick_check",
        ok("SQLite finds its file sound", when=lambda f: f.get("damage") == ["ok"]),
        fail("SQLite finds damage: {damage[0]}{more}", when=lambda f: f.get("damage"), why="jobs may be lost or stuck",
             fix="stop Duetime, keep a copy of the file, restore a backup or run `sqlite3 FILE .recover`")),
)
# fmt: on


def examine_sqlite(path: Path, url: str, *, deep: bool) -> Iterator[Finding]:
    synchronous = parse_qs(urlsplit(url).query).get("synchronous", ["FULL"])[-1].upper()
    facts = {**_folder(path.parent, "the SQLite file"), **_private(path), "synchronous": synchronous}
    if path.parent.is_dir():
        usage = shutil.disk_usage(path.parent)
        facts |= {"free_bytes": usage.free, "free": size(usage.free), "total": size(usage.total)}
        mounts = MOUNTS.read_text() if MOUNTS.exists() else ""
        facts["filesystem"] = filesystem_of(path.parent.resolve(), mounts) or "a local disk"
    if os.access(path, os.R_OK | os.W_OK):
        facts |= _read_file(path, deep=deep)
    yield from judge(CHECKS, facts)


def _read_file(path: Path, *, deep: bool) -> dict[str, Any]:
    """`damage` is what SQLite finds, or ["ok"]; only with `deep`."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            damage = [row[0] for row in connection.execute("PRAGMA quick_check")] if deep else []
    except sqlite3.Error as error:
        return {"error": error}
    more = f" and {len(damage) - 1} more" if damage[1:] else ""
    return {"mode": mode, "damage": damage, "more": more, "size": size(path.stat().st_size)}


def _folder(folder: Path, owner: str) -> dict[str, Any]:
    user = os.environ.get("USERNAME", "") if sys.platform == "win32" else f"uid {os.getuid()}"
    return {"folder": folder, "owner": owner, "user": user}


def _private(path: Path) -> dict[str, Any]:
    return {"path": path, "private": "700" if path.is_dir() else "600"}


def examine_folder(check: str, folder: Path, owner: str) -> Iterator[Finding]:
    yield from judge([Check(check, *FOLDER)], _folder(folder, owner))


def examine_permissions(check: str, path: Path) -> Iterator[Finding]:
    """Warns of a file or folder with jobs that other users can open."""
    yield from judge([Check(check, PERMISSIONS)], _private(path))


def filesystem_of(folder: Path, mounts: str) -> str:
    """The type of the file system, from the kernel's table of mounts; empty if that does not say."""
    best, kind = "", ""
    for line in mounts.splitlines():
        parts = line.split()
        point = parts[1].replace("\\040", " ")
        if folder.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, parts[2]
    return kind

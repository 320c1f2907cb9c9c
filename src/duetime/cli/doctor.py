"""`duetime doctor`: checks settings, ports, folders and stores, and prints how to fix what is wrong."""

import os
import socket
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import httpx
from rich.text import Text

from duetime.cli.config import read_settings
from duetime.cli.doctor_checks import Check, Finding, Grade, fail, judge, ok, warn
from duetime.cli.doctor_sqlite import examine_folder, examine_permissions
from duetime.cli.doctor_store import examine, examine_store
from duetime.cli.options import Target, flag
from duetime.cli.output import Answer, safe
from duetime.journal.options import options_of
from duetime.model.errors import DuetimeError, InvalidSettings
from duetime.model.masking import mask
from duetime.model.settings import DEFAULT_STORE

STYLES = {Grade.OK: "green", Grade.WARN: "yellow", Grade.FAIL: "bold red"}


class NotWell(DuetimeError):
    """The doctor found something that must be fixed."""

    code = "not_well"
    status = 409


def doctor(
    target: Target,
    deep: Annotated[bool, flag("Read the whole store and check that every job is in one place.", "--deep")] = False,
) -> None:
    """Check that settings and stores are safe, and print how to fix what is not.

    With --url: that store or server, its clock and its safety. Without: what a server started here would use, that is
    its settings, ports, folders and stores. Exits with 1 if anything failed.

    --deep is slow on a large store. Its result is valid only if no other program uses the store meanwhile.

    Examples:
        duetime doctor
        duetime doctor --deep --url sqlite:///var/lib/duetime/jobs.db
        duetime doctor --json
    """
    answer = target.answer
    seen = dict.fromkeys(Grade, 0)
    findings = examine_host(deep=deep) if not target.is_chosen else examine(target, deep=deep)
    for finding in findings:
        seen[finding.grade] += 1
        _show(answer, finding)
    if seen[Grade.FAIL]:
        raise NotWell(f"{seen[Grade.FAIL]} failed, {seen[Grade.WARN]} warnings, {seen[Grade.OK]} fine")
    if not target.json:
        answer.console.print(f"\n{seen[Grade.OK]} fine, {seen[Grade.WARN]} warnings")


def _show(answer: Answer, finding: Finding) -> None:
    text = Text.assemble((f"{finding.grade:<5}", STYLES[finding.grade]), safe(finding.what))
    if finding.why:
        text.append(f"\n     because {safe(finding.why)}", style="dim")
        text.append(f"\n     do: {safe(finding.fix)}")
    answer.show(asdict(finding), text)


PROBE_S = 2.0


# fmt: off
PORT = (
    ok("the {what} takes any free port", when=lambda f: f["port"] == 0),
    ok("{host}:{port} is free for the {what}", when=lambda f: _can_bind(f["host"], f["port"])),
    ok("a Duetime server has {host}:{port} for its {what}", when=lambda f: _is_duetime(f["host"], f["port"])),
    fail("{host}:{port} is not available for the {what}",
         why="another program has it, or this user may not use it, so no server can start",
         fix="stop that program, or choose another port in the settings"),
)

CHECKS = (
    Check("settings.valid",
        fail("{error.message}", when=lambda f: "error" in f, why="no server can start with these settings",
             fix="correct it; `duetime config` shows the settings and where each comes from"),
        ok("the settings are valid ({sources})")),
    Check("settings.dev",
        warn("dev is on", when=lambda f: f.get("dev"), why="every namespace is open to any or no token",
             fix="leave dev out and make tokens with `duetime token create` before others depend on this server")),
)
POOL = Check("pool", ok("pool {name}: {url}"))
NEW_FOLDER = Check("sqlite.folder", ok("{folder} does not exist yet; the first start makes it"))
# fmt: on


def examine_host(*, deep: bool) -> Iterator[Finding]:
    """Everything that `duetime serve`, started here and now, would use."""
    try:
        settings = read_settings({}, None)
        journal = options_of(settings)
    except InvalidSettings as error:
        yield from judge(CHECKS, {"error": error})
        return
    sources = sorted({source for source in settings.sources.values() if source != "default"})
    yield from judge(CHECKS, {"sources": ", ".join(sources) or "all at their defaults", "dev": settings.dev})
    yield from judge([Check("server.port", *PORT)], {"what": "API", "host": settings.host, "port": settings.port})
    yield from judge(
        [Check("server.admin_port", *PORT)],
        {"what": "admin API", "host": settings.admin_host, "port": settings.admin_port},
    )
    if settings.journal and journal:
        yield from examine_folder("journal.folder", journal.folder, "the journal")
    if journal and journal.folder.is_dir():
        yield from examine_permissions("journal.permissions", journal.folder)
    stores = {**settings.pools, **({"(registry)": settings.registry_store} if settings.registry_store else {})}
    for name, url in stores.items():
        yield from judge([POOL], {"name": name, "url": mask(url)})
        if url == DEFAULT_STORE and not _default_folder().is_dir():
            yield from _before_the_first_start()
        else:
            yield from examine_store(url, deep=deep)


def _default_folder() -> Path:
    return Path(DEFAULT_STORE.partition(":")[2]).parent


def _before_the_first_start() -> Iterator[Finding]:
    """The first start makes the default folder, so a missing one is only a problem if it cannot be made."""
    here = Path.cwd()
    if os.access(here, os.W_OK | os.X_OK):
        yield from judge([NEW_FOLDER], {"folder": here / _default_folder()})
    else:
        yield from examine_folder("sqlite.folder", here, "the default store")


def _can_bind(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _is_duetime(host: str, port: int) -> bool:
    host = "127.0.0.1" if host in ("0.0.0.0", "") else host  # noqa: S104 - a name is only compared
    shown = f"[{host}]" if ":" in host else host
    try:
        answer = httpx.get(f"http://{shown}:{port}/healthz", timeout=PROBE_S)
        return "status" in answer.json()
    except (httpx.HTTPError, ValueError):
        return False

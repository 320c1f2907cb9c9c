"""What the doctor looks at on this machine: the settings a server would start with, its ports and folders."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx

from duetime.cli.config import read_settings
from duetime.cli.doctor_findings import Finding, fail, ok, warn
from duetime.cli.doctor_sqlite import examine_folder, examine_permissions
from duetime.cli.doctor_store import examine_store
from duetime.errors import InvalidSettings
from duetime.journal.settings import options_of
from duetime.masking import mask
from duetime.settings import DEFAULT_STORE, Settings

PROBE_S = 2.0


def examine_host(*, deep: bool) -> Iterator[Finding]:
    """Everything that `duetime serve`, started here and now, would use."""
    try:
        settings = read_settings({}, None)
        journal = options_of(settings)
    except InvalidSettings as error:
        yield fail(
            "settings.valid",
            error.message,
            why="no server can start with these settings",
            fix="correct it; `duetime config` shows the settings and where each comes from",
        )
        return
    yield from _settings(settings)
    yield _port("server.port", "API", settings.host, settings.port)
    yield _port("server.admin_port", "admin API", settings.admin_host, settings.admin_port)
    if settings.journal and journal:
        yield from examine_folder("journal.folder", journal.folder, "the journal")
    if journal and journal.folder.is_dir():
        yield from examine_permissions("journal.permissions", journal.folder)
    stores = {**settings.pools, **({"(registry)": settings.registry_store} if settings.registry_store else {})}
    for name, url in stores.items():
        yield ok("pool", f"pool {name}: {mask(url)}")
        if url == DEFAULT_STORE and not _default_folder().is_dir():
            yield from _before_the_first_start()
        else:
            yield from examine_store(url, deep=deep)


def _settings(settings: Settings) -> Iterator[Finding]:
    changed = sorted({source for source in settings.sources.values() if source != "default"})
    yield ok("settings.valid", f"the settings are valid ({', '.join(changed) or 'all at their defaults'})")
    if settings.dev:
        yield warn(
            "settings.dev",
            "dev is on",
            why="every namespace is open to any or no token",
            fix="leave dev out and make tokens with `duetime token create` before others depend on this server",
        )


def _default_folder() -> Path:
    return Path(DEFAULT_STORE.partition(":")[2]).parent


def _before_the_first_start() -> Iterator[Finding]:
    """The first start makes the default folder, so a missing one is only a problem if it cannot be made."""
    here = Path.cwd()
    if os.access(here, os.W_OK | os.X_OK):
        yield ok("sqlite.folder", f"{here / _default_folder()} does not exist yet; the first start makes it")
    else:
        yield from examine_folder("sqlite.folder", here, "the default store")


def _port(check: str, what: str, host: str, port: int) -> Finding:
    if port == 0:
        return ok(check, f"the {what} takes any free port")
    address = f"{host}:{port}"
    if _can_bind(host, port):
        return ok(check, f"{address} is free for the {what}")
    local = "127.0.0.1" if host in ("0.0.0.0", "") else host
    if _is_duetime(local, port):
        return ok(check, f"a Duetime server has {address} for its {what}")
    return fail(
        check,
        f"{address} cannot be had for the {what}",
        why="another program has it, or this user may not use it, so no server can start",
        fix="stop that program, or choose another port in the settings",
    )


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
    shown = f"[{host}]" if ":" in host else host
    try:
        answer = httpx.get(f"http://{shown}:{port}/healthz", timeout=PROBE_S)
        return "status" in answer.json()
    except (httpx.HTTPError, ValueError):
        return False

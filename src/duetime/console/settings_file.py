"""Add a store to a group of duetime.toml, or remove one: the console changes one line and leaves all others alone.

A running server notices the change and applies it (server/supervision). What these functions cannot change safely they
refuse, with InvalidRequest: the result is parsed, and must differ from before by that store alone.
"""

import copy
import fcntl
import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duetime.model.errors import InvalidRequest

BY_HAND = "the console cannot change this file: edit [pool.{pool}] in {file} by hand"


def file_of(source: str) -> Path | None:
    """The file that a setting came from, by `Settings.sources`; None for a flag, a variable or a default."""
    table, _, name = source.rpartition(" in ")
    return Path(name) if table.startswith("[pool.") else None


def with_stores(text: str, pool: str, change: Mapping[str, str | None]) -> str | None:
    """The text with these stores of the pool added, or removed where the URL is None. None if it cannot be changed."""
    old = tomllib.loads(text)
    wanted: dict[str, Any] = copy.deepcopy(old)
    table = wanted["pool"][pool]
    for name, url in change.items():
        if url is None:
            table["stores"].pop(name, None)
            if "drain" in table:
                table["drain"] = [one for one in table["drain"] if one != name]
        else:
            table["stores"][name] = url
    stores = ", ".join(f"{name} = {json.dumps(url, ensure_ascii=False)}" for name, url in table["stores"].items())
    drain = json.dumps(table.get("drain", []))
    section = re.search(rf"^\[pool\.{re.escape(pool)}\][^\n]*\n(?:(?!\[).*\n?)*", text, re.MULTILINE)
    if section is None:
        return None
    lines = re.sub(r"^stores *= *\{[^\n]*\}", lambda _: f"stores = {{ {stores} }}", section[0], flags=re.MULTILINE)
    lines = re.sub(r"^drain *= *\[[^\n]*\]", lambda _: f"drain = {drain}", lines, flags=re.MULTILINE)
    changed = text[: section.start()] + lines + text[section.end() :]
    try:
        return changed if tomllib.loads(changed) == wanted else None
    except tomllib.TOMLDecodeError:
        return None


def change_stores(file: Path, pool: str, change: Mapping[str, str | None]) -> None:
    """Replaces the file in one step, with its mode; processes that change it at the same time take turns. Raises
    InvalidRequest.
    """
    refused = InvalidRequest(BY_HAND.format(pool=pool, file=file))
    fresh = file.with_name(f".{file.name}.new")
    try:
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            changed = with_stores(file.read_text(encoding="utf-8"), pool, change)
            if changed is None or file.is_symlink():
                raise refused
            fresh.unlink(missing_ok=True)
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as writing:
                writing.write(changed)
                writing.flush()
                os.fsync(writing.fileno())
            fresh.chmod(file.stat().st_mode & 0o7777)
            fresh.replace(file)
        finally:
            os.close(folder)
    except (OSError, UnicodeError, tomllib.TOMLDecodeError, KeyError) as error:
        raise InvalidRequest(f"{refused.message} ({type(error).__name__})") from None

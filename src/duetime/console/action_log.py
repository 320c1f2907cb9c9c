"""The log of the actions taken in the console: who did what to what.

The last ones are kept in one record of the registry and shown on the page Access. Each is also a line of the server's
log, which keeps them all.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import cast

import msgspec

from duetime.model.clock import rfc3339
from duetime.model.errors import VersionConflict
from duetime.stores.registry import Registry

log = logging.getLogger("duetime.console")

KIND = "console"
KEY = "actions"
KEPT = 200
LONGEST = 300


class ConsoleAction(msgspec.Struct, frozen=True):
    """`at` is epoch seconds; `subject` is what the action was done to, `detail` what it changed."""

    at: float
    user: str
    action: str
    subject: str
    detail: str = ""


def changes(before: msgspec.Struct, after: msgspec.Struct, names: Iterable[str]) -> str:
    """What differs between two states of a thing: `tries 3 -> 5, paused no -> yes`."""
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in names]
    return ", ".join(f"{name} {_shown(name, old)} -> {_shown(name, new)}" for name, old, new in pairs if old != new)


def _shown(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, bytes):
        return f"{len(value)} bytes {sha256(value).hexdigest()[:8]}"
    if name.endswith("_at") and isinstance(value, int) and value:
        return rfc3339(value)
    if isinstance(value, Mapping):
        return json.dumps(dict(cast("Mapping[str, object]", value)))
    return str(value) if value not in ("", None) else "nothing"


class ActionLog:
    def __init__(self, registry: Callable[[], Registry]) -> None:
        self._registry = registry

    async def read(self) -> Sequence[ConsoleAction]:
        """Newest first."""
        record = await self._registry().get(KIND, KEY)
        return msgspec.json.decode(record.value, type=list[ConsoleAction]) if record else []

    async def write(self, user: str, action: str, subject: str, detail: str = "") -> None:
        log.info("console_action", extra={"user": user, "action": action, "subject": subject, "detail": detail})
        entry = ConsoleAction(time.time(), user, action, subject[:LONGEST], detail[:LONGEST])
        while True:
            record = await self._registry().get(KIND, KEY)
            known = msgspec.json.decode(record.value, type=list[ConsoleAction]) if record else []
            value = msgspec.json.encode([entry, *known][:KEPT])
            try:
                await self._registry().put(KIND, KEY, value, if_version=record.version if record else 0)
            except VersionConflict:
                continue
            return

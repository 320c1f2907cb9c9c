"""The log of the actions taken in the console: who did what to what.

The last ones are kept in one record of the registry and shown on the page Access. Each is also a line of the server's
log, which keeps them all.
"""

import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from duetime.errors import VersionConflict
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

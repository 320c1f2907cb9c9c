"""The engines that work on a store without a journal, as counters of its registry that end by themselves.

An engine without a journal looks every LOOK_EVERY_S whether its pool journals by now, and says here that it exists. A
journal that begins finds it: it gives such engines the time to notice, or does not begin if one of them was told
to keep none. The engine announces itself first and looks then, and the journal writes its record first and reads the
announcements then; so at least one of the two sees the other.
"""

import time
from enum import StrEnum

from duetime.model.ids import IdMaker
from duetime.stores.base import Store

LOOK_EVERY_S = 1.0
_ANNOUNCE_EVERY_S = 20
_LIFE_MS = 60_000
_PREFIX = "engine-without-journal/"


class WithoutJournal(StrEnum):
    """Why an engine has no journal: nobody asked for one yet, or it was told to keep none."""

    SO_FAR = "so-far"
    TOLD_OFF = "told-off"


class EngineAnnouncement:
    """One engine's announcement, renewed for as long as the engine works without a journal."""

    def __init__(self, store: Store, why: WithoutJournal) -> None:
        self._store = store
        self._name = f"{_PREFIX}{why}/{IdMaker().make()}"
        self._made: dict[str, float] = {}

    async def renew(self) -> None:
        """A counter's life cannot be prolonged, so there is a new one from time to time."""
        now = time.monotonic()
        if self._made and now - max(self._made.values()) < _ANNOUNCE_EVERY_S:
            return
        self._made = {name: at for name, at in self._made.items() if (now - at) * 1000 < _LIFE_MS}
        name = f"{self._name}/{int(now)}"
        await self._store.registry.increment(name, life_ms=_LIFE_MS)
        self._made[name] = now

    async def withdraw(self) -> None:
        """The engine stops, or journals from now on."""
        while self._made:
            name, at = self._made.popitem()
            left_ms = _LIFE_MS - round((time.monotonic() - at) * 1000)
            if left_ms > 0:
                await self._store.registry.increment(name, -1, life_ms=left_ms)


async def engines_without_journal(store: Store) -> set[WithoutJournal]:
    """The reasons of all engines on the store that have no journal; empty if there is no such engine."""
    counters = await store.registry.counters(_PREFIX)
    found = {name.removeprefix(_PREFIX).partition("/")[0] for name, value in counters.items() if value > 0}
    return {why for why in WithoutJournal if why in found}

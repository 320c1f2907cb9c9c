"""Limits: how many requests a token may make per interval.

Every request counts once, except the end of a delivery, and a batch of jobs counts by its jobs. The window is fixed, as
in lmstfy: the first request opens it, and it ends after the interval. Its count is kept in the
registry, so all processes see the same one; the limits themselves are read from the process's copy of the registry. A
request that fails gives its slot back.
"""

import logging
import math
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, NamedTuple

import msgspec

from duetime.engine.registry_copy import RegistryCopy
from duetime.model.errors import DuetimeError, TooManyRequests
from duetime.protocols.tokens import Token
from duetime.stores.registry import Registry

log = logging.getLogger("duetime.server")

KIND = "limit"
LONGEST_S = 10**9


class Side(StrEnum):
    """The kind of a request for limits. The value names its counter."""

    READ = "r"
    WRITE = "w"


Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Limit(msgspec.Struct, frozen=True):
    """Requests per `interval` seconds and side; zero and less is unlimited."""

    interval: Number = 0
    read: Number = 0
    write: Number = 0

    def of(self, side: Side) -> int:
        return self.read if side is Side.READ else self.write


class Slot(NamedTuple):
    """The count of one request in a window. `until` is the end of the window on this process's clock."""

    counter: str
    life_ms: int
    until: float
    allowed: int
    amount: int = 1


class RateLimits:
    def __init__(self, registry_copy: RegistryCopy, registry: Callable[[], Registry]) -> None:
        self._registry_copy = registry_copy
        self._registry = registry

    # --- for the protocols

    async def spend(self, token: Token, side: Side) -> Slot | None:
        """Count a request; None if its token has no limit. Raises TooManyRequests with `retry_after_s`."""
        record = self._registry_copy.get(KIND, token.key)
        if record is None:
            return None
        limit = _decode(record.value)
        allowed = limit.of(side)
        if allowed <= 0:
            return None
        return await self.count(f"{KIND}/{token.key}/{side}", allowed, min(limit.interval, LONGEST_S) * 1000)

    async def count(self, name: str, allowed: int, life_ms: int) -> Slot:
        """Count a request in the window of this name. Raises TooManyRequests with `retry_after_s`."""
        counter = await self._registry().increment(name, life_ms=life_ms)
        if counter.value > allowed:
            raise TooManyRequests(retry_after_s=max(1, math.ceil(counter.left_ms / 1000)))
        return Slot(name, life_ms, time.monotonic() + counter.left_ms / 1000, allowed)

    async def widen(self, slot: Slot, amount: int) -> Slot:
        """Count the request of this slot `amount` times. Raises TooManyRequests, and then leaves the slot unchanged."""
        if amount > slot.allowed:
            raise TooManyRequests(
                f"batch must fit the token's limit of {slot.allowed} per interval, got {amount} jobs: send fewer at a "
                "time",
                retry_after_s=1,
            )
        wide = slot._replace(amount=amount)
        more = amount - slot.amount
        counter = await self._registry().increment(slot.counter, more, life_ms=slot.life_ms)
        if counter.value > slot.allowed:
            await self.refund(slot._replace(amount=more))
            raise TooManyRequests(retry_after_s=max(1, math.ceil(counter.left_ms / 1000)))
        return wide

    async def refund(self, slot: Slot) -> None:
        """Uncount a failed request, unless its window has ended or the registry does not answer."""
        if time.monotonic() < slot.until:
            try:
                await self._registry().increment(slot.counter, -slot.amount, life_ms=slot.life_ms)
            except DuetimeError as error:
                log.warning("slot_lost", extra={"error": error.code})

    # --- for administration

    async def get(self, token: Token) -> Limit | None:
        await self._registry_copy.refresh()
        record = self._registry_copy.get(KIND, token.key)
        return _decode(record.value) if record else None

    async def list_limits(self, *, refresh: bool = False) -> list[tuple[Token, Limit]]:
        """All limits with their tokens, of which only the key is known here."""
        if refresh:
            await self._registry_copy.refresh()
        return [(Token.of_key(record.key), _decode(record.value)) for record in self._registry_copy.list_records(KIND)]

    async def add(self, token: Token, limit: Limit) -> None:
        """Raises VersionConflict if the token has one."""
        await self._registry().put(KIND, token.key, msgspec.json.encode(limit), if_version=0)
        await self._registry_copy.refresh()

    async def put(self, token: Token, limit: Limit) -> None:
        await self._registry().put(KIND, token.key, msgspec.json.encode(limit))
        await self._registry_copy.refresh()

    async def delete(self, token: Token) -> None:
        await self._registry().delete(KIND, token.key)
        await self._registry_copy.refresh()


def _decode(value: bytes) -> Limit:
    return msgspec.json.decode(value, type=Limit)

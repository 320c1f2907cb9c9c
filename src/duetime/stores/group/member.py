"""One store of a group: opened when it can be reached, watched after a call that failed.

A member that is down refuses at once, so that its callers do not wait and the other members' callers do not wait with
them; one look at a time, with pauses that grow, brings it back.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from duetime.backoff import Exponential
from duetime.errors import DuetimeError, StoreUnavailable
from duetime.stores.base import Store

T = TypeVar("T")

REOPEN = Exponential(base_ms=50, cap_ms=2_000, jitter=0.5)


class Member:
    """`ready` is called with the open store each time before it serves; StoreUnavailable from it means not yet."""

    def __init__(
        self, name: str, open_it: Callable[[], Awaitable[Store]], ready: Callable[["Member", Store], Awaitable[None]]
    ) -> None:
        self.name = name
        self._open = open_it
        self._ready = ready
        self._store: Store | None = None
        self._down: StoreUnavailable | None = StoreUnavailable("not open yet")
        self._opener: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def is_up(self) -> bool:
        return self._down is None

    @property
    def store(self) -> Store:
        """Raises StoreUnavailable while it is down."""
        if self._store is None or self._down:
            raise self._named(self._down, unknown=False)
        return self._store

    async def start(self) -> None:
        """Try once; if that fails, go on in the background. Raises what no waiting would cure."""
        try:
            await self._try()
        except StoreUnavailable as error:
            self._lost(error)

    async def call(self, verb: Callable[[Store], Awaitable[T]]) -> T:
        """Raises StoreUnavailable with the member's name, at once while it is known to be down."""
        store = self.store
        try:
            return await verb(store)
        except StoreUnavailable as error:
            self._lost(error)
            raise self._named(error, unknown=error.outcome_unknown) from error

    async def close(self) -> None:
        self._closed = True
        if self._opener:
            self._opener.cancel()
            with suppress(asyncio.CancelledError):
                await self._opener
        if self._store:
            await self._store.close()

    def _named(self, error: StoreUnavailable | None, *, unknown: bool) -> StoreUnavailable:
        return StoreUnavailable(f"member {self.name}: {error.message if error else 'closed'}", unknown=unknown)

    def _lost(self, error: StoreUnavailable) -> None:
        self._down = error
        if not self._closed and (self._opener is None or self._opener.done()):
            self._opener = asyncio.create_task(self._keep_trying())

    async def _keep_trying(self) -> None:
        failures = 0
        while self._down:
            failures += 1
            await asyncio.sleep(REOPEN.delay_ms(failures) / 1000)
            try:
                await self._try()
            except StoreUnavailable as error:
                self._down = error
            except DuetimeError as error:
                # Wrong settings show at the start; what comes later may be mended without a restart.
                self._down = StoreUnavailable(error.message)

    async def _try(self) -> None:
        if self._store is None:
            self._store = await self._open()
        await self._store.ping()
        await self._ready(self, self._store)
        self._down = None

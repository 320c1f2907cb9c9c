"""One store of a group: opened when it can be reached, and tried again after a call that failed.

A member that is down refuses immediately, so that its callers do not wait, nor the other members' callers with
them. A background task tries it with growing pauses until it answers again. A member that is damaged or full is still
asked, because its other queues and verbs work.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from duetime.duties import Rounds, run_duty
from duetime.model.errors import DuetimeError, InvalidSettings, StoreDamaged, StoreFull, StoreUnavailable
from duetime.stores.base import Store, StoreInfo

T = TypeVar("T")

MemberProblem = StoreUnavailable | StoreFull | StoreDamaged
"""The errors that concern one member only. Every other error is an answer, or a bug."""
PROBLEMS = (StoreUnavailable, StoreFull, StoreDamaged)
"""The same errors, for `except`."""

LOG_EVERY_S = 10.0
TRY_AFTER_S = 0.05

log = logging.getLogger("duetime.stores")


def named(member: str, problem: MemberProblem) -> MemberProblem:
    return type(problem)(f"member {member}: {problem.message}", **problem.fields)


def outcome_unknown(problem: DuetimeError) -> bool:
    return bool(problem.fields.get("unknown"))


def unknown_first(problems: Iterable[MemberProblem]) -> list[MemberProblem]:
    """A call that may have taken effect is reported before one that certainly did nothing."""
    return sorted(problems, key=lambda problem: not outcome_unknown(problem))


class Member:
    """`ready` is called with the open store each time before the member serves; if it raises, the member stays down."""

    def __init__(
        self, name: str, open_it: Callable[[], Awaitable[Store]], ready: Callable[["Member", Store], Awaitable[None]]
    ) -> None:
        self.name = name
        self.epoch = "unknown"
        self._open = open_it
        self._ready = ready
        self._store: Store | None = None
        self._down: DuetimeError | None = StoreUnavailable("not open yet")
        self._opener: asyncio.Task[None] | None = None
        self._closed = False
        self._logged_at: dict[str, float] = {}

    @property
    def is_up(self) -> bool:
        return self._down is None

    @property
    def store(self) -> Store:
        """Raises StoreUnavailable while the member is down."""
        if self._store is None or self._down:
            raise StoreUnavailable(f"member {self.name}: {self._down.message if self._down else 'closed'}")
        return self._store

    async def start(self) -> None:
        """Try once; if that fails, go on in the background. Raises InvalidSettings, which no waiting would cure."""
        try:
            await self._try()
        except InvalidSettings:
            raise
        except DuetimeError as error:
            self._lost(error)

    async def call(self, verb: Callable[[Store], Awaitable[T]]) -> T:
        """Raises a MemberProblem with the member's name; StoreUnavailable immediately while it is known to be down."""
        store = self.store
        try:
            return await verb(store)
        except PROBLEMS as error:
            self._log_problem(error)
            if isinstance(error, StoreUnavailable) and not error.fields.get("locked"):
                self._lost(error)
            raise named(self.name, error) from error

    async def ping(self) -> StoreInfo:
        info = await self.call(lambda store: store.ping())
        self.epoch = info.epoch
        return info

    async def close(self) -> None:
        self._closed = True
        if self._opener:
            self._opener.cancel()
            with suppress(asyncio.CancelledError):
                await self._opener
        if self._store:
            await self._store.close()

    def _lost(self, error: DuetimeError) -> None:
        self._down = error
        if not self._closed and (self._opener is None or self._opener.done()):
            trying = Rounds(f"group member {self.name}", self._try_again)
            self._opener = asyncio.create_task(run_duty(trying, first_after_s=TRY_AFTER_S))

    async def _try_again(self) -> None:
        try:
            await self._try()
        except DuetimeError as error:
            # `start` raises InvalidSettings. One that comes later may be cured without a restart of this process.
            self._down = error
            raise

    async def _try(self) -> None:
        if self._store is None:
            self._store = await self._open()
        self.epoch = (await self._store.ping()).epoch
        await self._ready(self, self._store)
        self._down = None

    def _log_problem(self, error: DuetimeError) -> None:
        """Log a problem now and then: callers that are served by the other members do not get it."""
        now = time.monotonic()
        if now - self._logged_at.get(error.code, float("-inf")) >= LOG_EVERY_S:
            self._logged_at[error.code] = now
            log.warning("group_member_fails", extra={"member": self.name, "code": error.code, "error": error.message})

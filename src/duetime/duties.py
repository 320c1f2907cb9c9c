"""Runs background loops: one round after the other, with a pause that each chooses, through outages of the store.

A duty does one round in `run_once` and returns how long to rest. While its store cannot serve it (unreachable, full,
damaged), it backs off. Any other error is a bug: it ends the loop, which stops an engine, or is logged by loops that
must go on (`survives_bugs`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from duetime.model.backoff import OUTAGE, Backoff, Outage
from duetime.model.clock import to_tick
from duetime.model.errors import DuetimeError

log = logging.getLogger("duetime.duties")

STUCK_S = 60.0
"""A round that takes longer counts as stuck: it waits for something that has no deadline."""


class RoundTimer:
    """`began` is when the current round began, on the loop's clock; None between rounds."""

    def __init__(self) -> None:
        self.began: float | None = None

    def is_stuck(self) -> bool:
        return self.began is not None and asyncio.get_running_loop().time() - self.began > STUCK_S


class Duty(Protocol):
    """Inherit from it for a plain `rest`."""

    name: str

    async def run_once(self) -> float | None:
        """One round; returns the seconds to rest before the next, None to end."""
        ...

    async def rest(self, seconds: float) -> None:
        """Sleep about that long, until a tick. A duty may end its rest early."""
        await asyncio.sleep(to_tick(seconds, asyncio.get_running_loop()))


class Rounds(Duty):
    """A duty that calls one function."""

    def __init__(self, name: str, work: Callable[[], Awaitable[float | None]]) -> None:
        self.name = name
        self._work = work

    async def run_once(self) -> float | None:
        return await self._work()


async def run_duty(
    duty: Duty,
    policy: Backoff = OUTAGE,
    timer: RoundTimer | None = None,
    *,
    first_after_s: float = 0.0,
    survives_bugs: bool = False,
) -> None:
    """Run rounds until cancelled, until `run_once` returns None, or until a bug raises. With `survives_bugs`, a bug is
    logged and retried.
    """
    timer = timer or RoundTimer()
    loop = asyncio.get_running_loop()
    outage = Outage(policy)
    if first_after_s:
        await duty.rest(first_after_s)
    while True:
        timer.began = loop.time()
        try:
            pause = await duty.run_once()
        except DuetimeError as error:
            timer.began = None
            if outage.failed():
                log.warning("duty_fails", extra={"duty": duty.name, "code": error.code, "error": error.message})
            await asyncio.sleep(outage.pause_s)
            continue
        except Exception:
            if not survives_bugs:
                raise
            timer.began = None
            outage.failed()
            log.exception("duty_broke", extra={"duty": duty.name})
            await asyncio.sleep(outage.pause_s)
            continue
        timer.began = None
        if failures := outage.worked():
            log.info("duty_works", extra={"duty": duty.name, "failures": failures})
        if pause is None:
            return
        await duty.rest(pause)

"""Passes the store's wakes to waiting consumers, callers waiting for results, and the reaper."""

import asyncio

from duetime.engine.duties import Duty
from duetime.engine.reaper import Reaper
from duetime.engine.result_waiting import ResultWaiting
from duetime.engine.waiters import WaitingRoom
from duetime.model.backoff import OUTAGE
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.stores.base import Store

LASTING_S = OUTAGE.cap_ms / 1000
"""A connection that lasted longer ended an outage; shorter ones belong to the same outage."""


class WakeListener(Duty):
    """A wake without a queue says that others may have been lost, or that another program has committed jobs
    (`push_in`), which the reaper imports.
    """

    name = "wake-ups"

    def __init__(self, store: Store, room: WaitingRoom, results: ResultWaiting, reaper: Reaper) -> None:
        self._store = store
        self._room = room
        self._results = results
        self._reaper = reaper

    async def run_once(self) -> float:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async for wake in self._store.wakeups():
                if wake.queue is None:
                    self._room.check_now()
                    self._results.check_now()
                    self._reaper.expect(0)
                elif wake.results is not None:
                    self._results.notice(wake.queue, wake.results)
                else:
                    self._room.notice(wake.queue, wake.due_at)
        except DuetimeError:
            if loop.time() - started <= LASTING_S:
                raise
        else:
            raise StoreUnavailable("the store ended its wake-ups")
        return OUTAGE.base_ms / 1000

"""Turns the store's wakes into jobs and results that those who wait have noticed."""

import asyncio
import logging

from duetime.engine.reaper import Reaper
from duetime.engine.result_waiting import ResultWaiting
from duetime.engine.waiting import WaitingRoom
from duetime.model.backoff import OUTAGE, Exponential, Outage
from duetime.model.errors import DuetimeError
from duetime.stores.base import Store

log = logging.getLogger("duetime.engine")


async def listen(
    store: Store, room: WaitingRoom, results: ResultWaiting, reaper: Reaper, policy: Exponential = OUTAGE
) -> None:
    """Until cancelled, through outages of the store. A wake without a queue says that others may have been lost, or
    that another program has committed jobs (`push_in`), which the reaper takes in.
    """
    outage = Outage(policy)
    loop = asyncio.get_running_loop()
    while True:
        started, why = loop.time(), "the store ended them"
        try:
            async for wake in store.wakeups():
                if wake.queue is None:
                    room.check_now()
                    results.check_now()
                    reaper.expect(0)
                elif wake.results is not None:
                    results.notice(wake.queue, wake.results)
                else:
                    room.notice(wake.queue, wake.due_at)
        except DuetimeError as error:
            why = error.message
        if loop.time() - started > policy.cap_ms / 1000:
            outage.worked()  # a connection that lasted; shorter ones belong to one outage
        if outage.failed():
            log.warning("wakeups_lost", extra={"error": why})
        await asyncio.sleep(outage.pause_s)

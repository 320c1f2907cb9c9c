"""An engine in somebody's own program, on the store that a URL names.

It journals if the pool does when the engine opens, or if it is told to; nothing changes that while the engine runs. The
journal's node is made with the first change, so that a program that only reads writes nothing.
"""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from duetime.engine import Engine
from duetime.engine.recorder import Recorder
from duetime.journal import registration
from duetime.journal.journal import Journal
from duetime.journal.options import embedded_options, is_off
from duetime.journal.recorder import NodeWithoutJournal, open_journal_recorder
from duetime.journal.registration import registered
from duetime.model.names import DEFAULT_POOL
from duetime.stores.base import Store
from duetime.stores.open import open_store

log = logging.getLogger("duetime.journal")


@asynccontextmanager
async def embedded_engine(url: str, journal: str | None = None) -> AsyncGenerator[Engine]:
    """`journal` is the folder of the engine's journal, or "off". None: it journals if the pool does."""
    async with AsyncExitStack() as stack:
        store = await open_store(url)
        stack.push_async_callback(store.close)
        recorders = await _recorders(store, url, journal, stack)
        yield await stack.enter_async_context(Engine(store, recorders=recorders))


async def _recorders(store: Store, url: str, journal: str | None, stack: AsyncExitStack) -> Sequence[Recorder]:
    if url.startswith("memory:") and not journal:  # no other process can make it a pool that journals
        return ()
    found = None if is_off(url, journal) else await registration.find_journaling(store)
    if is_off(url, journal) or not (found or journal):
        return [NodeWithoutJournal(store)]
    options = embedded_options(url, journal, nodes=await registered(store))
    if options is None:
        return [NodeWithoutJournal(store)]
    pool = found.pool if found else DEFAULT_POOL
    log.info("journal_joined", extra={"pool": pool, "folder": str(options.folder)})
    opened = await stack.enter_async_context(Journal(options, lazy=True))
    return await open_journal_recorder(store, opened, pool)

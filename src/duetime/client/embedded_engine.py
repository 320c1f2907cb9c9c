"""An engine in somebody's own program, on the store that a URL names.

It journals if the pool does, or if it is told to; the journal's node is made with the first change, so that a program
that only looks writes nothing.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from duetime.engine import Engine
from duetime.engine.observers import Observer
from duetime.journal.journal import Journal
from duetime.journal.observer import join_journal
from duetime.journal.pool_journal import known, refusal
from duetime.journal.settings import embedded_options
from duetime.names import DEFAULT_POOL
from duetime.stores.open import open_store


@asynccontextmanager
async def embedded_engine(url: str, journal: str | None = None) -> AsyncGenerator[Engine]:
    """`journal` is the journal's folder; None: DUETIME_JOURNAL or beside the SQLite file, if the pool journals.

    Raises InvalidSettings if the pool journals and no folder is known, or it is "off".
    """
    async with AsyncExitStack() as stack:
        store = await open_store(url)
        stack.push_async_callback(store.close)
        found = await known(store)
        options = embedded_options(url, journal) if found or journal else None
        if found and options is None:
            raise refusal(found)
        observers: Sequence[Observer] = ()
        if options:
            writing = await stack.enter_async_context(Journal(options, lazy=True))
            observers = await join_journal(store, writing, found.pool if found else DEFAULT_POOL)
        yield await stack.enter_async_context(Engine(store, observers=observers))

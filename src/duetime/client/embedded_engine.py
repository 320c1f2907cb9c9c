"""An engine in somebody's own program, on the store that a URL names.

It journals if the pool does, from the start or as soon as it notices, or if it is told to. The journal's node is made
with the first change, so that a program that only looks writes nothing.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from duetime.engine import Engine
from duetime.journal.journal_follower import JournalFollower
from duetime.journal.options import JournalOptions
from duetime.journal.registered_nodes import RegisteredNode
from duetime.journal.settings import embedded_options, is_told_off
from duetime.stores.open import open_store


@asynccontextmanager
async def embedded_engine(url: str, journal: str | None = None) -> AsyncGenerator[Engine]:
    """`journal` is the folder of a journal that the pool is to have. None: none, unless the pool has one already.

    Raises InvalidSettings if the pool journals and `journal` or DUETIME_JOURNAL is "off".
    """

    def choose(nodes: Mapping[str, RegisteredNode]) -> JournalOptions | None:
        return embedded_options(url, journal, nodes=nodes)

    async with AsyncExitStack() as stack:
        store = await open_store(url)
        stack.push_async_callback(store.close)
        if url.startswith("memory:") and not journal:
            yield await stack.enter_async_context(Engine(store))
            return
        told_off = is_told_off(url, journal)
        follower = JournalFollower(store, choose, told_off=told_off)
        await follower.begin(wanted=bool(journal) and not told_off)
        yield await stack.enter_async_context(Engine(store, observers=[follower]))

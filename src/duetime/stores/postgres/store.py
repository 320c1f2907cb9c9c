"""The PostgreSQL store. Each step locks its queue's row first; docs/decisions/023-postgresql.md says why."""

import asyncio
from collections.abc import Sequence

from duetime.model.clock import Clock
from duetime.model.errors import DuetimeError
from duetime.model.names import Queue
from duetime.stores.base import Push, Pushed
from duetime.stores.direct import PostedCalls
from duetime.stores.postgres.connection import PostgresAddress, PostgresLink
from duetime.stores.postgres.posted import PostedPostgres
from duetime.stores.postgres.wake import PostgresWakeHub
from duetime.stores.sql.server_store import ServerStore


class PostgresStore(ServerStore):
    """Keeps the contract of `stores.base.Store`. Belongs to the event loop that opened it; made by `open`."""

    def __init__(self, address: PostgresAddress, link: PostgresLink) -> None:
        hub = PostgresWakeHub(address, link, self._registry_version)
        super().__init__("postgres", link, address.connections, hub)
        self._posted = PostedPostgres(link, hub)

    @classmethod
    async def open(cls, url: str, *, clock: Clock | None = None) -> "PostgresStore":
        """Connect, and make or upgrade the tables. Raises StoreUnavailable, StoreDamaged, InvalidSettings."""
        address = PostgresAddress.parse(url)
        link = PostgresLink(address, clock)
        await asyncio.to_thread(link.prepare_tables)
        return cls(address, link)

    def posted_calls(self) -> PostedCalls:
        """See `stores/direct.py`."""
        return self._posted

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        if len(requests) > 1:
            self._posted.avoid(queue)
        return await super().push(queue, requests)

    async def close(self) -> None:
        await self._posted.close()
        await super().close()

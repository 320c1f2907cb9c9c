"""The PostgreSQL store. Each step locks its queue's row first; docs/decisions/023-postgresql.md says why."""

import asyncio

from duetime.model.clock import Clock
from duetime.stores.postgres.connection import PostgresAddress, PostgresLink
from duetime.stores.postgres.one_job import PostgresOneJob
from duetime.stores.postgres.wake import PostgresWakeHub
from duetime.stores.sql.server_store import ServerStore


class PostgresStore(ServerStore):
    """Keeps the contract of `stores.base.Store`. Belongs to the event loop that opened it; made by `open`."""

    def __init__(self, address: PostgresAddress, link: PostgresLink) -> None:
        hub = PostgresWakeHub(address, link, self._registry_version)
        super().__init__("postgres", link, address.connections, hub)
        self.one_job = self._one_job = PostgresOneJob(link, hub, self.push)

    @classmethod
    async def open(cls, url: str, *, clock: Clock | None = None) -> "PostgresStore":
        """Connect, and make or upgrade the tables. Raises StoreUnavailable, StoreDamaged, InvalidSettings."""
        address = PostgresAddress.parse(url)
        link = PostgresLink(address, clock)
        await asyncio.to_thread(link.prepare_tables)
        return cls(address, link)

    async def close(self) -> None:
        await self._one_job.close()
        await super().close()

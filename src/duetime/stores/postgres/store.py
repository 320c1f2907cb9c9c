"""The PostgreSQL store. Each step locks its queue's row first; docs/decisions/023-postgresql.md tells why."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from duetime.clock import Clock
from duetime.errors import DuetimeError
from duetime.names import Queue
from duetime.stores.base import Push, Pushed, StoreInfo
from duetime.stores.postgres.connection import PostgresAddress, PostgresLink
from duetime.stores.postgres.wake import PostgresWakeHub
from duetime.stores.sql.incoming import incoming_queues, take_incoming
from duetime.stores.sql.server_store import ServerStore
from duetime.stores.sql.step import Step

log = logging.getLogger("duetime.postgres")


class PostgresStore(ServerStore):
    """Keeps the contract of `stores.base.Store`. Belongs to the event loop that opened it; made by `open`."""

    def __init__(self, address: PostgresAddress, link: PostgresLink) -> None:
        super().__init__("postgres", link, address.connections, PostgresWakeHub(address, link, self._registry_version))

    @classmethod
    async def open(cls, url: str, *, clock: Clock | None = None) -> "PostgresStore":
        """Connect, and make or upgrade the tables. Raises StoreUnavailable, StoreDamaged, InvalidSettings."""
        address = PostgresAddress.parse(url)
        link = PostgresLink(address, clock)
        await asyncio.to_thread(link.prepare_tables)
        return cls(address, link)

    async def _take_incoming(self) -> dict[Queue, Sequence[tuple[Push, Pushed]]]:
        pushed: dict[Queue, Sequence[tuple[Push, Pushed]]] = {}
        try:
            for queue in await self._read(incoming_queues):
                if taken := await self._write(partial(take_incoming, queue=queue), queue=queue):
                    pushed[queue] = taken
        except DuetimeError as error:
            # The next round takes the others.
            log.warning("incoming_jobs_not_taken", extra={"error": error.message})
        return pushed

    async def ping(self) -> StoreInfo:
        return await self._read(_info)


def _info(step: Step) -> StoreInfo:
    epoch, version = step.fetch_one("get_meta")
    return StoreInfo("postgres", version.partition(" ")[0], epoch, step.now)

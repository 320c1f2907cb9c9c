"""The store on MariaDB and MySQL. Each step locks its queue's row first, as on PostgreSQL."""

import asyncio

from duetime.model.clock import Clock
from duetime.stores.base import StoreInfo
from duetime.stores.mysql.connection import MysqlAddress, MysqlLink
from duetime.stores.mysql.wake import MysqlWakeHub
from duetime.stores.sql.server_store import ServerStore
from duetime.stores.sql.step import Step


class MysqlStore(ServerStore):
    """Keeps the contract of `stores.base.Store`. Belongs to the event loop that opened it; made by `open`."""

    def __init__(self, address: MysqlAddress, link: MysqlLink) -> None:
        hub = MysqlWakeHub(address, link, self._registry_version)
        super().__init__("mysql", link, address.connections, hub)

    @classmethod
    async def open(cls, url: str, *, clock: Clock | None = None) -> "MysqlStore":
        """Connect, and make or upgrade the tables. Raises StoreUnavailable, StoreDamaged, InvalidSettings."""
        address = MysqlAddress.parse(url)
        link = MysqlLink(address, clock)
        await asyncio.to_thread(link.prepare_tables)
        return cls(address, link)

    async def ping(self) -> StoreInfo:
        return await self._read(_info)


def _info(step: Step) -> StoreInfo:
    epoch, version = step.fetch_one("get_meta")
    return StoreInfo("mysql", version, epoch, step.now)
